// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc"
)

// gc detaches what is recorded and not valid any more, has a pass release what
// nobody recorded, and passes the request on. Nothing else runs beside it. What
// is younger than the minimum age is kept: the runtime may have made its list
// before an ADD ended.
func (s *server) gc(ctx context.Context, r *request, d *delegation, n *network) error {
	valid, err := cnigc.FromConfig(r.Config)
	if err != nil {
		return err
	}
	at(gcBegun)
	errs := []error{s.detachInvalid(ctx, valid, r, d)}
	at(gcDetached)
	report, err := gc.New(n.store, podsource.Union(valid, s.live()), gc.Options{MinAge: s.minAge, Logger: s.log}).Reconcile(ctx)
	if err != nil {
		errs = append(errs, fmt.Errorf("releasing leaked addresses (%d released): %w", report.Counts()[gc.Released], err))
	}
	at(gcReconciled)
	if _, err := s.delegate(ctx, "GC", r, d); err != nil {
		errs = append(errs, fmt.Errorf("passing GC on to %s: %w", d.plugin, err))
	}
	at(gcForwarded)
	return errors.Join(errs...)
}

// detachInvalid does a DEL for each attachment that is recorded in the network
// and whose container has none that is valid.
func (s *server) detachInvalid(ctx context.Context, valid podsource.Source, r *request, d *delegation) error {
	pods, err := valid.Pods(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range s.record.Entries() {
		isValid := slices.ContainsFunc(pods, func(p podsource.Pod) bool { return slices.Contains(p.ContainerIDs, e.ContainerID) })
		if e.Network != d.network || isValid || time.Since(e.Time) < s.youngFor() {
			continue
		}
		one := &request{Command: "DEL", ContainerID: e.ContainerID, IfName: e.IfName, NetNS: sameNetNS(e.NetNS), Path: r.Path, Config: r.Config}
		if err := s.del(ctx, one, d); err != nil {
			errs = append(errs, fmt.Errorf("detaching %s: %w", e.Key, err))
		}
	}
	return errors.Join(errs...)
}

// youngFor is the minimum age as a time.
func (s *server) youngFor() time.Duration {
	switch s.minAge {
	case gc.NoADDInFlight:
		return 0
	case 0:
		return gc.DefaultMinAge
	}
	return s.minAge
}

// recordExisting writes the first record, of the attachments that exist: those
// of which a source sees the pod and host-local has the reservation.
func (s *server) recordExisting(ctx context.Context, existing podsource.Source) error {
	var all []checkpoint.Entry
	for name, n := range s.networks {
		rs, err := n.store.List(ctx)
		if err != nil {
			return err
		}
		for _, res := range rs {
			if res.ContainerID == "" {
				continue
			}
			k := checkpoint.Key{Network: name, ContainerID: res.ContainerID, IfName: res.IfName}
			if k.IfName == "" {
				k.IfName = "eth0" // host-local before v0.8 did not say
			}
			i := slices.IndexFunc(all, func(e checkpoint.Entry) bool { return e.Key == k })
			if i < 0 {
				i = len(all)
				all = append(all, checkpoint.Entry{Key: k, Time: res.ReservedAt})
			}
			all[i].IPs = append(all[i].IPs, res.IP)
		}
	}
	return s.record.Backfill(ctx, existing, func(p podsource.Pod) (of []checkpoint.Entry, err error) {
		for _, e := range all {
			mine := slices.Contains(p.ContainerIDs, e.ContainerID)
			for _, ip := range e.IPs {
				mine = mine || slices.Contains(p.IPs, ip)
			}
			if mine {
				e.Pod, e.UID = p.NamespacedName, p.UID
				of = append(of, e)
			}
		}
		return of, nil
	})
}
