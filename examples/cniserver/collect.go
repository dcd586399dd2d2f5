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
// nobody recorded, and passes the request on. Nothing else runs beside it.
func (s *server) gc(ctx context.Context, r *request, d *delegation) error {
	// Nothing runs beside it, so the request stays true until it is answered.
	valid, err := cnigc.New(r.Config, cnigc.Options{MaxAge: time.Hour})
	if err != nil {
		return err
	}
	at(gcBegun)
	errs := []error{s.detachInvalid(ctx, valid, r, d)}
	at(gcDetached)
	if err := s.release(ctx, valid, d.network); err != nil {
		errs = append(errs, fmt.Errorf("releasing leaked addresses: %w", err))
	}
	at(gcReconciled)
	if _, err := s.delegate(ctx, "GC", r, d); err != nil {
		errs = append(errs, fmt.Errorf("passing GC on to %s: %w", d.plugin, err))
	}
	at(gcForwarded)
	return errors.Join(errs...)
}

// detachInvalid does a DEL for each attachment that is recorded in the network
// and whose container has none that is valid. What is young stays: the runtime
// may have made its list before an ADD ended.
func (s *server) detachInvalid(ctx context.Context, valid podsource.Source, r *request, d *delegation) error {
	answer, err := valid.Pods(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range s.record.Entries() {
		isValid := slices.ContainsFunc(answer.Pods, func(p podsource.Pod) bool { return slices.Contains(p.ContainerIDs, e.ContainerID) })
		if e.Network != d.network || isValid || time.Since(e.Time) < s.gcMinAge {
			continue
		}
		one := &request{Command: "DEL", ContainerID: e.ContainerID, IfName: e.IfName, NetNS: sameNetNS(e.NetNS), Path: r.Path, Config: r.Config}
		if err := s.del(ctx, one, d); err != nil {
			errs = append(errs, fmt.Errorf("detaching %s: %w", e.Key, err))
		}
	}
	return errors.Join(errs...)
}

// release releases what nobody holds in the network of a GC request, and in no
// other one: the request speaks of that alone (hazard 74).
//
// The assertion is not the request's but this server's, which serves every ADD
// of the network: while it answers a GC none is under way, and the record has
// every container whose ADD ended. With it age does not count, so a reconciler
// that has not watched the clock will do.
func (s *server) release(ctx context.Context, valid podsource.Source, network string) error {
	// All sources are here: one that fails is not going to come up.
	opts := gc.Options{Logger: s.log, StartupTimeout: time.Second}
	r, err := gc.New(s.store, []string{network}, podsource.Union(valid, s.live()), opts)
	if err == nil {
		_, err = r.AtStartup(ctx, gc.NoADDInFlight)
	}
	return err
}

// recordExisting writes the first record, of the attachments that exist: those
// of which a source sees the pod and host-local has the reservation. What a source
// does not see because it is too young is recorded, too, or else its address would
// be released once it is older (hazard 52): a DEL or a GC forgets it.
func (s *server) recordExisting(ctx context.Context, existing podsource.Source) error {
	rs, err := s.store.List(ctx)
	if err != nil {
		return err
	}
	var all []checkpoint.Entry
	young := podsource.Answer{Source: "young reservations", Supplementary: true}
	for _, res := range rs {
		if res.ContainerID == "" || !slices.Contains(s.networks, res.Network) {
			continue
		}
		k := checkpoint.Key{Network: res.Network, ContainerID: res.ContainerID, IfName: res.IfName}
		if k.IfName == "" {
			k.IfName = "eth0" // host-local before v0.8 did not say
		}
		if time.Since(res.ReservedAt) < gc.DefaultMinAge {
			young.Pods = append(young.Pods, podsource.Pod{ContainerIDs: []string{res.ContainerID}})
		}
		i := slices.IndexFunc(all, func(e checkpoint.Entry) bool { return e.Key == k })
		if i < 0 {
			i = len(all)
			all = append(all, checkpoint.Entry{Key: k, Time: res.ReservedAt})
		}
		all[i].IPs = append(all[i].IPs, res.IP)
	}
	youngToo := podsource.Union(existing, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return young, nil }))
	return s.record.Backfill(ctx, youngToo, func(p podsource.Pod) (of []checkpoint.Entry, err error) {
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
