// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// A Cause is why a reservation leaked, as far as the node shows it. Its words are a contract.
type Cause string

// The causes. The first one that holds is told. What the node does not show is UnknownCause.
const (
	Torn         Cause = "torn"
	Reboot       Cause = "reboot"
	NoDEL        Cause = "no-del"        // libcni's cache has its entry, and the namespace is gone
	NoEntry      Cause = "no-entry"      // libcni's cache goes back further, and has no entry of it
	OtherRuntime Cause = "other-runtime" // its ID is not of the runtime that is asked
	UnknownCause Cause = "unknown"
)

// AllCauses returns all causes.
func AllCauses() []Cause { return []Cause{Torn, Reboot, NoDEL, NoEntry, OtherRuntime, UnknownCause} }

// Text explains the cause to people. Its wording may change.
func (c Cause) Text() string {
	return map[Cause]string{
		Torn: "file or cache entry cut short", Reboot: "from before the boot", NoDEL: "DEL never came or failed",
		NoEntry: "ADD failed, or DEL without host-local", OtherRuntime: "another's container", UnknownCause: "not shown by the node",
	}[c]
}

// Known reports whether there is a cause, and it is not unknown.
func (c Cause) Known() bool { return c != "" && c != UnknownCause }

// Causes are those of the leaks of a pass.
type Causes map[leak]Cause

// A leak is a reservation. Another one of the same address has another time or owner.
type leak struct {
	network     string
	ip          netip.Addr
	containerID string
	at          int64
}

func leakOf(e *gc.Entry) leak { return leak{e.Network, e.IP, e.ContainerID, e.ReservedAt.UnixNano()} }

// leaks reports whether an entry leaked in a network to release in, also if it was released.
func leaks(e *gc.Entry) bool {
	return e.Verdict == gc.Leaked && e.Reason != gc.NetworkNotNamed || e.Verdict == gc.Released || e.Reason == gc.ReleaseFailed
}

// Of returns the cause of a leak, which is unknown if it was not found yet, and nothing for any other entry.
func (c Causes) Of(e *gc.Entry) Cause {
	if !leaks(e) {
		return ""
	}
	return cmp.Or(c[leakOf(e)], UnknownCause)
}

// Line counts the causes of entries, as in "Causes: 2 reboot (from before the boot), 1 unknown.". It is
// empty if none is known.
func (c Causes) Line(entries []*gc.Entry) string {
	counts := make(map[Cause]int)
	for _, e := range entries {
		counts[c.Of(e)]++
	}
	var said []string
	for _, cause := range AllCauses() { // unknown is the last
		switch n := counts[cause]; {
		case n > 0 && cause.Known():
			said = append(said, fmt.Sprintf("%d %s (%s)", n, cause, cause.Text()))
		case n > 0 && said != nil:
			said = append(said, fmt.Sprintf("%d %s", n, cause))
		}
	}
	if said == nil {
		return ""
	}
	return "Causes: " + strings.Join(said, ", ") + "."
}

var earliest boottime.Earliest

// Booted returns when the node booted, by the earliest time that this process read, or zero. Tests replace it.
var Booted = earliest.Read

// An Inquiry finds causes. It reads the node; it changes and locks nothing.
type Inquiry struct {
	dirs  []string // of libcni's cache
	alive func(context.Context) (living, error)
	guard Guard
}

type living = func(path string, at time.Time) (lives, sure bool)

// NewInquiry returns an inquiry on the node that the values of --source are of.
func NewInquiry(specs []string) *Inquiry {
	q := new(Inquiry)
	for _, spec := range specs {
		if name, dir, _ := strings.Cut(spec, ":"); name == "cnicache" {
			q.dirs = append(q.dirs, cmp.Or(dir, cnicache.DefaultDir))
		}
	}
	if q.dirs == nil {
		q.dirs = []string{cnicache.DefaultDir, "/var/lib/cni/multus/results"} // Multus' is that of its delegates
	}
	q.alive = func(ctx context.Context) (living, error) {
		kernel, err := netns.New(netns.Options{Nested: slices.Contains(specs, "netns:nested")})
		if err != nil {
			return nil, err
		}
		return kernel.Living(ctx)
	}
	return q
}

// Find returns the causes of a report's leaks, and those leaks that are not in known. A reservation in known
// keeps its cause while it exists, or its network can't be read. If there are others, Find looks at libcni's cache, once.
func (q *Inquiry) Find(ctx context.Context, r *gc.Report, known Causes) (all Causes, found []*gc.Entry) {
	all = make(Causes)
	for l, cause := range known {
		if slices.Contains(r.Missing, l.network) || !slices.Contains(r.Networks, l.network) {
			all[l] = cause
		}
	}
	for e := range Entries(r) {
		if cause, is := known[leakOf(e)]; is {
			all[leakOf(e)] = cause
		} else if leaks(e) {
			found = append(found, e)
		}
	}
	if len(found) > 0 {
		seen := q.look(ctx)
		if seen == nil { // what stays is looked at again after the next pass
			found, seen = slices.DeleteFunc(found, func(e *gc.Entry) bool { return e.Verdict != gc.Released }), new(sight)
		}
		seen.compare(r)
		for _, e := range found {
			all[leakOf(e)] = seen.cause(e)
		}
	}
	return all, found
}

// look reads the cache. Where that fails it has seen nothing; it returns nil where that takes too long, or still hangs since
// the last look. Where the kernel does not answer, no namespace is certainly gone.
func (q *Inquiry) look(ctx context.Context) *sight {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	seen := new(sight)
	ended := q.guard.Do(func() {
		cache, err := cnicache.New(cnicache.Options{Dirs: q.dirs, Living: func(ctx context.Context) (living, error) {
			lives, err := q.alive(ctx)
			if err != nil {
				lives = func(string, time.Time) (bool, bool) { return true, false }
			}
			return lives, nil
		}})
		if err != nil {
			return
		}
		if a, err := cache.Pods(ctx); err == nil {
			seen.note(&a)
		}
	})
	if !ended {
		return nil // it is still written
	}
	return seen
}

// An owner is a container in a network.
type owner struct{ network, containerID string }

// A sight is what one look saw of the cache, and what the pass shows of it and of the boot.
type sight struct {
	entries         map[owner]bool
	since           map[string]time.Time
	living, damaged map[string]bool // by file: its namespace may live

	booted  time.Time       // zero, which is before everything, if unknown
	runtime bool            // a runtime's CRI answered in the pass, which has sandboxes only
	whole   map[string]bool // networks whose live containers have entries, so the cache is not an old one
}

func (s *sight) note(a *podsource.Answer) {
	s.entries, s.since = make(map[owner]bool), a.Cache.Since
	s.living, s.damaged = make(map[string]bool), make(map[string]bool)
	for i := range a.Pods {
		file, damaged := strings.CutSuffix(filepath.Base(a.Pods[i].Origin), ", which is damaged")
		s.living[file], s.damaged[file] = true, s.damaged[file] || damaged
	}
	for _, at := range a.Cache.Entries {
		s.entries[owner{at.Network, at.ContainerID}] = true
	}
}

// tolerance is how much clocks may differ.
const tolerance = time.Second

// compare notes what live containers show. Where one of a network has no entry, the cache is not whole; that of an ADD may be
// yet to come. Where one is from before the boot, as on a board whose clock was set since, no time shows a boot.
func (s *sight) compare(r *gc.Report) {
	s.booted, s.runtime, s.whole = Booted(), Answered(r, "cri"), make(map[string]bool)
	partly := make(map[string]bool)
	for e := range Entries(r) {
		if e.Reason != gc.ContainerLive {
			continue
		}
		if e.ReservedAt.Before(s.booted.Add(-tolerance)) && (e.Pod == nil || !e.Pod.NotRunning) {
			s.booted = time.Time{}
		}
		since, dated := s.since[e.Network]
		if s.entries[owner{e.Network, e.ContainerID}] {
			s.whole[e.Network] = true
		} else if dated && e.ReservedAt.After(since) && time.Since(e.ReservedAt) > gc.DefaultMinAge {
			partly[e.Network] = true
		}
	}
	maps.DeleteFunc(s.whole, func(network string, _ bool) bool { return partly[network] })
}

func (s *sight) cause(e *gc.Entry) Cause {
	entry, file := s.entries[owner{e.Network, e.ContainerID}], e.Network+"-"+e.ContainerID+"-"+e.IfName
	since, dated := s.since[e.Network]
	dated, sandbox := dated && s.whole[e.Network], podsource.SandboxContainers.Has(e.ContainerID)
	switch {
	case e.Owner == hostlocal.Empty, s.damaged[file]:
		return Torn
	case e.ReservedAt.Before(s.booted.Add(-tolerance)):
		if !entry && dated && e.ReservedAt.After(since) {
			return UnknownCause // it may have leaked before that
		}
		return Reboot
	case entry && e.IfName != "" && !s.living[file]:
		return NoDEL
	case entry:
		return UnknownCause
	case s.runtime && !sandbox:
		return OtherRuntime
	case dated && sandbox && e.ReservedAt.After(since):
		return NoEntry
	}
	return UnknownCause // also of what another runtime made, whose cache may be another one
}
