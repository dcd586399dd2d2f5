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
	asserts, err := s.asserts(ctx)
	if err != nil {
		return err
	}
	// All sources are here: one that fails is not going to come up.
	opts := gc.Options{Logger: s.log, StartupTimeout: time.Second}
	r, err := gc.New(s.store, []string{network}, podsource.Union(valid, s.live()), opts)
	if err == nil {
		_, err = r.AtStartup(ctx, asserts...)
	}
	return err
}

// asserts is what this server may assert while it does no ADD. As long as a
// take-over lasts another one may.
func (s *server) asserts(ctx context.Context) ([]gc.Assertion, error) {
	over, err := s.takeOver.end(ctx)
	if !over {
		return nil, err
	}
	return []gc.Assertion{gc.NoADDInFlight}, nil
}
