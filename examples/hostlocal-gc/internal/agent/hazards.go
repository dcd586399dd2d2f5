// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A hazard is a condition that no pass settles and that needs a person.
type hazard struct {
	Live  bool     // live pods have lost their addresses, or may lose them
	Title string   // names no pod, since /healthz and the log show it, too
	Items []string // the addresses or pods concerned
	Do    string
}

// hazards returns the hazards that the passes found, the gravest for live pods first. A refused
// pass ends none of them: it judged nothing.
func (s *status) hazards() []hazard {
	r := &s.shown
	all := []hazard{s.missing(), duplicates(r), unreserved(s.atRisk()), conflicts(r), s.neverAnswered()}
	return slices.DeleteFunc(all, func(h hazard) bool { return h.Title == "" })
}

// Seen returns the items that the page shows, More those that it shows unfolded, and Left the
// number of others.
func (h hazard) Seen() []string { return h.Items[:min(few, len(h.Items))] }
func (h hazard) More() []string { return h.Items[len(h.Seen()):min(maxRows, len(h.Items))] }
func (h hazard) Left() int      { return max(0, len(h.Items)-maxRows) }

// titles returns the titles of hazards.
func titles(hazards []hazard) (all []string) {
	for _, h := range hazards {
		if h.Title != "" {
			all = append(all, h.Title)
		}
	}
	return all
}

// missing reports networks without a directory while live pods have addresses that are reserved
// nowhere. The first ADD creates a network's directory, so a missing one is normal on a new node. A
// typing error in the name, a wrong data directory and a lost mount look the same (hazard 63). A
// missing data directory is always reported.
func (s *status) missing() hazard {
	r := &s.report
	if len(r.Networks) == 0 { // the last pass did not get that far
		r = &s.shown
	}
	paths, lost := MissingPaths(r), len(s.atRisk())
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

// MissingPaths returns the directories that do not exist: the data directory, or those of networks.
func MissingPaths(r *gc.Report) (paths []string) {
	if r.DataDirMissing {
		return []string{r.DataDir}
	}
	for _, name := range r.Missing {
		paths = append(paths, filepath.Join(r.DataDir, name))
	}
	return paths
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
		"Delete all pods of an address but one, so that they are recreated with other addresses.")
}

// atRisk returns the addresses of live pods that host-local may hand out again.
func (s *status) atRisk() (all []gc.Claim) {
	for _, u := range s.shown.Unreserved {
		if u.AtRisk(s.ranges) {
			all = append(all, u)
		}
	}
	return all
}

func unreserved(atRisk []gc.Claim) (h hazard) {
	for _, u := range atRisk {
		h.Items = append(h.Items, u.IP.String()+": "+podName(u.Pods[0]))
	}
	return h.of("address of a live pod is not reserved, so host-local may hand it out again",
		"addresses of live pods are not reserved, so host-local may hand them out again",
		"Somebody removed files of host-local, or the data directory is not the one that it uses. Mend that, and delete these pods, "+
			"so that they are recreated.")
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
		"They are kept. Delete the pod that is named, so that it is recreated with another address.")
}

// of completes a hazard to live pods.
func (h hazard) of(one, many, do string) hazard {
	if len(h.Items) > 0 {
		h.Live, h.Title, h.Do = true, plural(len(h.Items), one, many), do
	}
	return h
}

// neverAnswered reports the sources that have given no answer since the start. A source that hangs may
// be in no report by name.
func (s *status) neverAnswered() (h hazard) {
	var names []string
	for name, answered := range s.answered {
		if !answered {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(s.answered) == 0 && errors.Is(s.err, gc.ErrRefused) {
		names = s.sources
	}
	if len(names) > 0 {
		h.Title = "No answer since the start: " + strings.Join(names, ", ")
		h.Do = "Is it up, is its socket mounted, and may the agent ask it?"
	}
	return h
}

// lastError reports the error of the last pass, if any.
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

// podName names a pod for people, and says where it was found.
func podName(p *gc.Pod) string {
	from := p.From
	if n := len(from) - 64; n >= 0 && podsource.SandboxContainers.Has(from[n:]) {
		from = term.ID(from) // the first digits of a sandbox's ID
	}
	if from == "" || p.String() == p.From {
		return p.String()
	}
	return p.String() + " (" + from + ")"
}
