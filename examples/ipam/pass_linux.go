// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// shortAge is the minimum age if both the kernel and a cache that has proved to be the node's have
// answered (R5).
const shortAge = 30 * time.Second

// A node is the sources of this process and the store in which it releases.
type node struct {
	conf   *config
	store  *hostlocal.Store
	kernel *netns.Source
	cache  *lastAnswer
	source podsource.Source
}

func newNode(conf *config) (*node, error) {
	opts := netns.Options{Nested: conf.nested}
	if conf.addresses() {
		opts.Networks = []string{conf.network}
	}
	kernel, err := netns.New(opts)
	if err != nil {
		return nil, err
	}
	cache, err := cnicache.New(cnicache.Options{Dirs: conf.cacheDirs, Living: kernel.Living})
	if err != nil {
		return nil, err
	}
	n := &node{conf: conf, store: hostlocal.New(conf.dataDir), kernel: kernel, cache: &lastAnswer{Source: cache}}
	n.source = podsource.Union(kernel, n.cache)
	return n, nil
}

// lastAnswer is a cache that records its last answer.
type lastAnswer struct {
	*cnicache.Source
	answer podsource.Answer
}

func (l *lastAnswer) Pods(ctx context.Context) (podsource.Answer, error) {
	a, err := l.Source.Pods(ctx)
	l.answer = a
	return a, err
}

// A finding is the result of a pass.
type finding struct {
	released int
	minAge   time.Duration
	text     string
	entries  []gc.Entry // entries of the network
}

// of returns the entry of an address, or nil.
func (f *finding) of(ip netip.Addr) *gc.Entry {
	for i := range f.entries {
		if f.entries[i].IP == ip {
			return &f.entries[i]
		}
	}
	return nil
}

// pass makes a pass in up to two steps. The first uses the library's default minimum age, asks the
// sources once, and takes milliseconds. The second runs only if that was not enough and younger
// reservations may be leaks. It uses the short minimum age, which takes two questions a second
// apart (R5).
//
// A killed plugin leaves an address in a namespace without a record until its runtime has removed
// the namespace. Until then the cache does not count. So the second step is repeated if nothing was
// released yet and some record belongs to a reservation. An error of the second step does not undo
// the releases of the first.
//
// The minimum age of a finding is the short one unless an older reservation was kept for its age:
// because the second step was not needed, or because the short age did not count.
func (a *attempt) pass(enough func(*finding) bool) (finding, error) {
	report, err := a.reconcile(gc.DefaultMinAge)
	if err != nil {
		return finding{}, err
	}
	f := finding{entries: a.entries(&report)}
	f.released = a.logReleases(f.entries)
	for step := 1; !enough(&f) && keptForAge(&report, f.entries) && step <= maxSteps; step++ {
		if step > 1 && (f.released > 0 || !a.recordsSome(f.entries) || !a.pause(stepPause)) {
			break
		}
		younger, err := a.reconcile(shortAge)
		if err != nil && f.released > 0 {
			a.found(err.Error())
			break
		}
		if err != nil {
			return finding{}, err
		}
		report = younger
		f.entries = a.entries(&report)
		f.released += a.logReleases(f.entries)
	}
	if f.minAge = shortAge; keptForAge(&report, f.entries) {
		f.minAge = gc.DefaultMinAge
	}
	f.text = a.describe(&f, &report)
	return f, nil
}

const (
	maxSteps  = 3
	stepPause = 500 * time.Millisecond
)

// recordsSome reports whether the caches have a record of some reservation's owner.
func (a *attempt) recordsSome(entries []gc.Entry) bool {
	return slices.ContainsFunc(entries, func(e gc.Entry) bool { return hasEntry(a.node.cache.answer.Cache, e.Reservation) })
}

// pause waits, and reports whether time is left.
func (a *attempt) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.ctx.Done():
		return false
	}
}

// keptForAge reports whether a reservation older than the short minimum age is kept for its age.
func keptForAge(report *gc.Report, entries []gc.Entry) bool {
	return slices.ContainsFunc(entries, func(e gc.Entry) bool {
		old := report.Started.Sub(e.ReservedAt) >= shortAge+time.Second // timestamps may be of whole seconds
		return e.Reason == gc.NotYetListed || e.Reason == gc.TooYoung && old
	})
}

// reconcile makes a pass of the library. Errors of single files or of the plugin's lock are in the
// report, and are not returned.
func (a *attempt) reconcile(minAge time.Duration) (gc.Report, error) {
	r, err := gc.New(a.node.store, []string{a.node.conf.network}, a.node.source, gc.Options{
		MinAge: minAge, SourceTimeout: sourceTime, Memory: a.node.conf.memory(),
	})
	if err != nil {
		return gc.Report{}, err
	}
	report, err := r.Reconcile(a.ctx)
	if err != nil && (len(report.Sources) == 0 || errors.Is(err, gc.ErrRefused)) {
		return report, fmt.Errorf("releasing what leaked in network %s: %w", a.node.conf.network, err)
	}
	return report, nil
}

// entries returns the report's entries of the network.
func (a *attempt) entries(report *gc.Report) (entries []gc.Entry) {
	for _, e := range report.Reservations {
		if e.Network == a.node.conf.network {
			entries = append(entries, e)
		}
	}
	return entries
}

// logReleases logs the released reservations, and returns their number.
func (a *attempt) logReleases(entries []gc.Entry) (released int) {
	for i := range entries {
		if entries[i].Verdict == gc.Released {
			released++
			a.logReleased(entries[i].Reservation, entries[i].Reason.Text())
		}
	}
	return released
}

// describe summarizes a pass in one sentence.
func (a *attempt) describe(f *finding, report *gc.Report) string {
	counts, reasons := make(map[gc.Reason]int), []gc.Reason{}
	for i := range f.entries {
		why := f.entries[i].Reason
		if counts[why]++; counts[why] == 1 {
			reasons = append(reasons, why)
		}
	}
	slices.Sort(reasons)
	parts := make([]string, len(reasons))
	for i, why := range reasons {
		parts[i] = fmt.Sprintf("%d %s (%s)", counts[why], why.Verdict(), why)
	}
	if counts[gc.ContainerLive]+counts[gc.AddressClaimed]+counts[gc.SiblingInUse] == len(f.entries) {
		return fmt.Sprintf("all %d reservations in network %s are in use: its range is too small", len(f.entries), a.node.conf.network)
	}
	text := fmt.Sprintf("a pass with a minimum age of %v released %d of %d reservations in network %s: %s",
		f.minAge, f.released, len(f.entries), a.node.conf.network, strings.Join(parts, ", "))
	for _, s := range report.Sources {
		if s.Note != "" {
			text += fmt.Sprintf("; %s: %s", s.Name, s.Note)
		}
	}
	if !report.NextCheck.IsZero() {
		text += "; more may be free at " + report.NextCheck.Format("15:04:05")
	}
	for _, dir := range a.node.conf.lacking {
		text += fmt.Sprintf("; the cache directory %s does not exist", dir)
	}
	if report.Err != nil {
		text += "; " + report.Err.Error()
	}
	return text
}

// passFor makes a pass for a requested address, and reports its holder if it is still not free.
func (a *attempt) passFor(ip netip.Addr) (again bool, err error) {
	lock, err := lockStorm(a.ctx, a.node.conf)
	if err != nil {
		return false, err
	}
	defer lock.unlock()
	f, err := a.passNoted(lock, func(f *finding) bool {
		e := f.of(ip)
		return e == nil || e.Verdict != gc.Young
	}, false)
	if err != nil {
		return false, err
	}
	e := f.of(ip)
	if e == nil || e.Verdict == gc.Released || e.Verdict == gc.Gone {
		return true, nil
	}
	holder := "container " + e.ContainerID
	if e.Pod != nil {
		holder += ", seen as " + e.Pod.String()
	}
	a.found(fmt.Sprintf("%v is %s: %s (%s)", ip, e.Verdict, e.Reason.Text(), holder))
	return false, nil
}
