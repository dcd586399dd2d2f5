// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const (
	// minAge is how old a reservation must be if both the kernel and a cache that has proved to be
	// the node's have answered. Otherwise it is 7 minutes (gc, Options.MinAge).
	minAge = 30 * time.Second
	// maxPasses is how often a pass is made if it releases nothing, and the next one may, which begins
	// doubtPause later: a killed plugin leaves an address in a namespace without a record until its
	// runtime has removed the namespace, and until then the cache does not count.
	maxPasses  = 3
	doubtPause = time.Second
)

// A pass is what a pass of the library found in the network.
type pass struct {
	entries  []gc.Entry
	released int
	text     string
}

// pass makes a pass. Its time does not end with that of this ADD: others wait for it.
func (r *request) pass() (p pass, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.conf.timeout+time.Second) // a second to say what did not answer
	defer cancel()
	rec, err := gc.New(r.store, []string{r.conf.network}, r.source, gc.Options{
		MinAge: minAge, SourceTimeout: r.conf.timeout, OwnADD: r.own,
		// What outlives this process, such as when a reservation without a usable timestamp was first
		// seen: beside the networks' directories, where host-local never looks.
		Memory: filepath.Join(r.conf.dataDir, ".gc-memory"),
	})
	for try := 1; err == nil; try++ {
		var report gc.Report
		report, err = rec.Reconcile(ctx)
		if err != nil && len(report.Sources) > 0 && !errors.Is(err, gc.ErrRefused) { // that of a single file is in the report
			err = nil
		}
		p = pass{entries: slices.DeleteFunc(report.Reservations, func(e gc.Entry) bool { return e.Network != r.conf.network })}
		p.released = r.logReleases(p.entries)
		p.text = r.describe(&p, &report)
		soon := !report.NextCheck.IsZero() && time.Until(report.NextCheck) < doubtPause
		if errors.Is(err, podsource.ErrIncomplete) && try < maxPasses && pause(ctx, doubtPause) { // a busy node
			err = nil
		} else if p.released > 0 || !soon || try == maxPasses || !pause(ctx, doubtPause) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("releasing what leaked in network %s: %w", r.conf.network, err)
	}
	return p, err
}

// answer reports whether another try is worthwhile after a pass. If not, it says why: for the
// requested address, or for each reservation that this container has.
func (r *request) answer(p *pass, why failure, ip netip.Addr) (again bool) {
	var kept []string
	for i := range p.entries {
		e := &p.entries[i]
		if why == taken && e.IP != ip || why == duplicate && e.ContainerID != r.own.ContainerID {
			continue
		}
		if e.Verdict == gc.Released || e.Verdict == gc.Gone {
			return true
		}
		holder := "container " + e.ContainerID
		if e.Pod != nil {
			holder += ", seen as " + e.Pod.String()
		}
		kept = append(kept, fmt.Sprintf("%v is %s: %s (%s)", e.IP, e.Verdict, e.Reason.Text(), holder))
	}
	if why == exhausted || len(kept) == 0 { // host-local found it where no reservation is, or it was removed
		kept = []string{p.text}
	}
	r.said = append(r.said, kept...)
	return false
}

// describe summarizes a pass in one sentence.
func (r *request) describe(p *pass, report *gc.Report) string {
	counts, parts := make(map[gc.Reason]int), []string{}
	for i := range p.entries {
		counts[p.entries[i].Reason]++
	}
	for _, why := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s (%s)", counts[why], why.Verdict(), why))
	}
	if counts[gc.ContainerLive]+counts[gc.AddressClaimed]+counts[gc.SiblingInUse] == len(p.entries) {
		return fmt.Sprintf("all %d reservations in network %s are in use: its range is too small", len(p.entries), r.conf.network)
	}
	text := fmt.Sprintf("a pass released %d of %d reservations in network %s: %s", p.released, len(p.entries), r.conf.network, strings.Join(parts, ", "))
	for _, s := range report.Sources {
		if s.Note != "" {
			text += fmt.Sprintf("; %s: %s", s.Name, s.Note)
		}
	}
	if !report.NextCheck.IsZero() {
		text += "; more may be free at " + report.NextCheck.Format("15:04:05")
	}
	if report.Memory != "" {
		text += "; " + report.Memory
	}
	if report.Err != nil {
		text += "; " + report.Err.Error()
	}
	return text
}
