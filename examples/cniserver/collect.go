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

// gc detaches the recorded attachments that are no longer valid, releases the
// unrecorded addresses by a pass, and forwards the request to the delegate. It runs alone.
func (s *server) gc(ctx context.Context, r *request, d *delegation) error {
	// No other request runs until this one is answered, so its list does not become stale.
	valid, err := cnigc.New(r.Config, cnigc.Options{MaxAge: time.Hour})
	if err != nil {
		return err
	}
	failpoint(gcBegun)
	errs := []error{s.detachInvalid(ctx, valid, r, d)}
	failpoint(gcDetached)
	if err := s.release(ctx, valid, d.network); err != nil {
		errs = append(errs, fmt.Errorf("releasing leaked addresses: %w", err))
	}
	failpoint(gcReconciled)
	if _, err := s.delegate(ctx, "GC", r, d); err != nil {
		errs = append(errs, fmt.Errorf("forwarding GC to %s: %w", d.plugin, err))
	}
	failpoint(gcForwarded)
	return errors.Join(errs...)
}

// detachInvalid does a DEL for each attachment that is recorded in the network
// and whose container has no valid attachment. Attachments younger than the minimum age
// stay: the runtime may have made its list before their ADD ended.
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

// release releases the leaked addresses in the network of a GC request, and in no
// other one: the request lists the attachments of that network alone (hazard 74).
//
// It is this server, not the request, that asserts that no ADD is in flight: it serves
// every ADD of the network, none runs beside a GC, and the record has every container
// whose ADD ended. With the assertion no age is needed, so a new reconciler, which has
// not watched the clock, is enough.
func (s *server) release(ctx context.Context, valid podsource.Source, network string) error {
	asserts, err := s.assertions(ctx)
	if err != nil {
		return err
	}
	// All sources are in this process: waiting for one that fails is of no use.
	opts := gc.Options{Logger: s.log, StartupTimeout: time.Second}
	r, err := gc.New(s.store, []string{network}, podsource.Union(valid, s.livePods()), opts)
	if err == nil {
		_, err = r.AtStartup(ctx, asserts...)
	}
	return err
}

// assertions are those that hold while this server does no ADD: none during a
// take-over, when another server may do one.
func (s *server) assertions(ctx context.Context) ([]gc.Assertion, error) {
	over, err := s.takeOver.end(ctx)
	if !over {
		return nil, err
	}
	return []gc.Assertion{gc.NoADDInFlight}, nil
}
