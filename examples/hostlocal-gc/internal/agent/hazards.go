// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A hazard is what no pass settles, and a person should.
type hazard struct {
	Live  bool     // live pods may lose their addresses, or have
	Title string   // names no pod: /healthz and the log say it, too
	Items []string // what it is about
	Do    string
}

// hazards returns those that the passes found, the gravest for live pods first. A pass
// that was refused ends none of them: it judged nothing.
func (s *status) hazards() []hazard {
	r := &s.shown
	all := []hazard{s.missing(), duplicates(r), unreserved(s.atRisk()), conflicts(r), s.neverHeard()}
	return slices.DeleteFunc(all, func(h hazard) bool { return h.Title == "" })
}

// Seen are the items that are seen at once, More those to be unfolded, and Left is how
// many are left out.
func (h hazard) Seen() []string { return h.Items[:min(few, len(h.Items))] }
func (h hazard) More() []string { return h.Items[len(h.Seen()):min(maxRows, len(h.Items))] }
func (h hazard) Left() int      { return max(0, len(h.Items)-maxRows) }

// titles are those of hazards.
func titles(hazards []hazard) (all []string) {
	for _, h := range hazards {
		if h.Title != "" {
			all = append(all, h.Title)
		}
	}
	return all
}

// missing tells which directories do not exist although live pods have addresses
// that are reserved nowhere: a network's directory comes with its first ADD, but a name
// with a typing error, a wrong data directory and a lost mount look like that, too
// (hazard 63). A data directory that does not exist is told in any case.
func (s *status) missing() hazard {
	r := &s.report
	if len(r.Networks) == 0 { // the last pass did not get as far as to look
		r = &s.shown
	}
	paths, lost := r.Missing(), len(s.atRisk())
	switch {
	case len(paths) > 0 && lost > 0:
		return hazard{
			Live: true, Do: "Are --network and --data-dir right, and is the directory mounted?",
			Title: fmt.Sprintf("Missing: %s, while live pods have %s that no network has reserved",
				strings.Join(paths, ", "), plural(lost, "address", "addresses")),
		}
	case r.DataDirMissing:
		return hazard{
			Title: "The data directory does not exist: " + r.DataDir,
			Do:    "host-local makes it with its first ADD. If pods have addresses here already, it is not mounted, or --data-dir is wrong.",
		}
	}
	return hazard{}
}

func duplicates(r *gc.Report) (h hazard) {
	for _, d := range r.Duplicates {
		names := make([]string, len(d.Pods))
		for i, p := range d.Pods {
			names[i] = podName(p)
		}
		h.Items = append(h.Items, d.IP.String()+": "+strings.Join(names, ", "))
	}
	return h.of("address belongs to several live pods", "addresses belong to several live pods each",
		"Delete all pods of an address but one, so that they are made anew with other addresses.")
}

// atRisk are the addresses of live pods that host-local may hand out again.
func (s *status) atRisk() (all []gc.Unreserved) {
	for _, u := range s.shown.Unreserved {
		if u.AtRisk(s.ranges) {
			all = append(all, u)
		}
	}
	return all
}

func unreserved(atRisk []gc.Unreserved) (h hazard) {
	for _, u := range atRisk {
		h.Items = append(h.Items, u.IP.String()+": "+podName(u.Pod))
	}
	return h.of("address of a live pod is not reserved, so host-local may hand it out again",
		"addresses of live pods are not reserved, so host-local may hand them out again",
		"Somebody removed files of host-local, or the data directory is not the one that it uses. Mend that, and delete these pods, "+
			"so that they are made anew.")
}

func conflicts(r *gc.Report) (h hazard) {
	for i := range r.Reservations {
		if e := &r.Reservations[i]; e.Verdict == gc.Conflict {
			text := fmt.Sprintf("%s in %s, of container %s: %s", e.IP, e.Network, term.ID(e.ContainerID), e.Reason.Text())
			if e.Pod != nil {
				text += ": " + podName(e.Pod)
			}
			h.Items = append(h.Items, text)
		}
	}
	return h.of("reservation is in conflict with a live pod", "reservations are in conflict with live pods",
		"They are kept. Delete the pod that is named, so that it is made anew with another address.")
}

// of completes what live pods may lose.
func (h hazard) of(one, many, do string) hazard {
	if len(h.Items) > 0 {
		h.Live, h.Title, h.Do = true, plural(len(h.Items), one, many), do
	}
	return h
}

// neverHeard tells which sources gave no answer since the start. One that hangs may
// be in no report by name.
func (s *status) neverHeard() (h hazard) {
	var names []string
	for name, heard := range s.heard {
		if !heard {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(s.heard) == 0 && errors.Is(s.err, gc.ErrRefused) {
		names = s.sources
	}
	if len(names) > 0 {
		h.Title = "Never heard since the start: " + strings.Join(names, ", ")
		h.Do = "Is it up, is its socket mounted, and may the agent ask it?"
	}
	return h
}

// lastError is the last pass's, or none.
func (s *status) lastError(now time.Time) (h hazard) {
	if s.err == nil {
		return h
	}
	h.Title, h.Items = "The last pass met an error", []string{s.err.Error()}
	if errors.Is(s.err, gc.ErrRefused) {
		h.Title, h.Do = "The last pass was refused, and released nothing", "No pass has judged anything yet: below is what is reserved."
	}
	if s.stale {
		h.Do = fmt.Sprintf("All verdicts here are of the last pass that judged, %s ago, at %s. What was reserved or released since is not among them.",
			term.Age(now, s.shown.Started), stamp(s.shown.Started))
	}
	return h
}

// podName names a pod for people, and says where it was seen.
func podName(p *gc.Pod) string {
	from := p.From
	if n := len(from) - 64; n >= 0 && podsource.Hex64.Matches(from[n:]) {
		from = term.ID(from) // as much of a sandbox as people need
	}
	if from == "" || p.String() == p.From {
		return p.String()
	}
	return p.String() + " (" + from + ")"
}
