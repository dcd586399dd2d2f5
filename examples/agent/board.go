// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A board keeps what the passes reported, for who asks. A report that was noted
// is not changed any more, by nobody.
type board struct {
	since time.Time

	mu       sync.Mutex // guards what follows
	ready    bool       // once all hooks of the start have ended; stays so
	expected bool       // the first hooks are known
	hooks    map[string]bool
	networks map[string]*state
	trouble  error // why the networks can't be listed, or nil
}

// A state is what is known of one network.
type state struct {
	network string
	report  gc.Report // the last
	err     error     // that came with it
	refused bool      // by the source, or for its answer

	// Since the process started.
	passes, released int
	lastRelease      time.Time
}

func newBoard() *board {
	return &board{since: time.Now(), hooks: make(map[string]bool), networks: make(map[string]*state)}
}

// expect says which networks have a hook. Those of the first call decide when
// the agent is ready.
func (b *board) expect(networks []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expected {
		return
	}
	b.expected = true
	for _, name := range networks {
		if _, known := b.hooks[name]; !known {
			b.hooks[name] = false
		}
	}
	b.checkReady()
}

// hookEnded says that a network's hook is over.
func (b *board) hookEnded(network string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hooks[network] = true
	b.checkReady()
}

// checkReady needs b.mu.
func (b *board) checkReady() {
	if !b.expected || b.ready {
		return
	}
	for _, over := range b.hooks {
		if !over {
			return
		}
	}
	b.ready = true
}

// waiting returns the networks whose hook goes on, and whether the agent is
// ready.
func (b *board) waiting() (networks []string, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, over := range b.hooks {
		if !over {
			networks = append(networks, name)
		}
	}
	slices.Sort(networks)
	return networks, b.ready
}

// started reports whether a network's hook is over.
func (b *board) started(network string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hooks[network]
}

// note takes what a pass returned.
func (b *board) note(report gc.Report, err error) {
	if report.Network == "" {
		return // it gave up before it began
	}
	why := refused(&report, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.networks[report.Network]
	if n == nil {
		n = &state{network: report.Network}
		b.networks[report.Network] = n
	}
	n.report, n.err, n.refused = report, err, why
	n.passes++
	if released := report.Counts()[gc.Released]; released > 0 {
		n.released += released
		n.lastRelease = report.Started
	}
	if !why { // then AtStartup tries again
		b.hooks[report.Network] = true
		b.checkReady()
	}
}

// looked takes what became of the last look for networks.
func (b *board) looked(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trouble = err
}

// lookingFailed returns why the networks can't be listed, or nil.
func (b *board) lookingFailed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trouble
}

// states returns what is known of each network that had a pass, sorted by name.
func (b *board) states() []state {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]state, 0, len(b.networks))
	for _, n := range b.networks {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(x, y state) int { return strings.Compare(x.network, y.network) })
	return all
}

// refused reports whether a pass got no answer that counts (R2, R9). Where the
// folder is empty no reservation says so; then an error that came after the
// source was asked is taken for the source's.
func refused(report *gc.Report, err error) bool {
	if err == nil || errors.Is(err, gc.ErrNoPods) {
		return err != nil
	}
	if len(report.Reservations) == 0 {
		return report.SourceDuration > 0
	}
	return !slices.ContainsFunc(report.Reservations, func(e gc.Entry) bool {
		return e.Reason != gc.NoAnswer && e.Reason != gc.EmptyView
	})
}
