// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A Report says what one pass found and did. It is complete and true also beside an
// error (R11): the pass removed exactly the reservations that are Released in it. Package reportjson
// writes it as JSON.
type Report struct {
	// DataDir is the data directory, and Networks are those that the Reconciler
	// releases in.
	DataDir  string   `json:"dataDir"`
	Networks []string `json:"networks,omitempty"`
	// Missing are those of Networks that have no directory: nothing was ever reserved in
	// them on this node, or the name or the data directory is wrong. DataDirMissing says
	// that the data directory does not exist.
	Missing        []string `json:"missing,omitempty"`
	DataDirMissing bool     `json:"dataDirMissing,omitempty"`
	// Started is when the pass began, by the wall clock.
	Started time.Time `json:"started"`
	// Duration is how long the pass took, with the sources, whose times are in
	// Sources.
	Duration time.Duration `json:"duration"`
	// LockHeld is how long the plugin's lock was held in all. LongestHold is the
	// longest single time, which is how long an ADD may have had to wait.
	LockHeld    time.Duration `json:"lockHeld"`
	LongestHold time.Duration `json:"longestHold"`
	// NextCheck is the earliest time at which another pass may release something
	// that this one kept. It is zero when there is no such time.
	NextCheck time.Time `json:"nextCheck,omitzero"`
	// Sources says what each source contributed. It is empty when no source was
	// called: see AtStartup.
	Sources []SourceReport `json:"sources,omitempty"`
	// Memory says why Options.Memory was not used. Empty: it was, or is not set.
	Memory string `json:"memory,omitempty"`
	// Looks is how often the sources were called: twice when the pass may release a
	// reservation that must have no owner in two answers (R5).
	Looks int `json:"looks"`
	// Duplicates are the addresses that two live pods claim (R10).
	Duplicates []Claim `json:"duplicates,omitempty"`
	// Unreserved are addresses of live pods without a reservation in any network of
	// the data directory when the pass began. Unless an ADD has reserved them since,
	// host-local may give them to the next pod.
	Unreserved []Claim `json:"unreserved,omitempty"`
	// Reservations has one entry for each reservation of every network, sorted
	// by network and address. It is empty when they could not be listed, and when no
	// source was called (see Sources).
	Reservations []Entry `json:"reservations,omitempty"`
	// Err is the error of the pass, or of AtStartup, or nil.
	Err error `json:"-"`
}

// A SourceReport says what one source contributed to a pass. When sources were called
// twice, it is about the second call.
type SourceReport struct {
	Name    string        `json:"name"`          // Answer.Source, or its position in the order of the calls
	Entries int           `json:"entries"`       // pods in its answer
	AsOf    time.Time     `json:"asOf,omitzero"` // zero: when it was called
	Took    time.Duration `json:"took"`
	Error   string        `json:"error,omitempty"` // why there is no answer
	Note    string        `json:"note,omitempty"`  // for people, such as why it declares less than it could
}

// An Entry is a reservation and what became of it.
type Entry struct {
	// Reservation is never nil in a report of this package. Its Err says why it
	// could not be read or released.
	*hostlocal.Reservation
	// Pod is the pod that Reason is about, or nil.
	Pod     *Pod    `json:"pod,omitempty"`
	Verdict Verdict `json:"verdict"`
	Reason  Reason  `json:"reason"`
}

// A Claim is an address, and the live pods that claim it.
type Claim struct {
	IP   netip.Addr `json:"ip"`
	Pods []*Pod     `json:"pods"`
}

// AtRisk reports whether host-local may hand out an address that is not reserved, which is
// whether it lies in one of the ranges. Without ranges it is true for pods with a name only,
// since the kernel also shows addresses that other runtimes and plugins gave.
func (c Claim) AtRisk(ranges iprange.Set) bool {
	return ranges.Has(c.IP) || len(ranges) == 0 && slices.ContainsFunc(c.Pods, func(p *Pod) bool { return p.Name != "" })
}

// Counts returns the number of reservations by verdict, without verdicts that none has.
func (r *Report) Counts() map[Verdict]int {
	counts := make(map[Verdict]int)
	for i := range r.Reservations {
		counts[r.Reservations[i].Verdict]++
	}
	return counts
}

// addLook records the answers of one look.
func (r *Report) addLook(answers []podsource.Answer) {
	r.Looks++
	r.Sources = r.Sources[:0]
	for i := range answers {
		a := &answers[i]
		r.Sources = append(r.Sources, SourceReport{Name: a.Source, Entries: len(a.Pods), AsOf: a.AsOf, Took: a.Took, Note: a.Note})
		if a.Err != nil {
			r.Sources[i].Error = a.Err.Error()
		}
	}
}

// note adds to the notes of sources in which networks a cache does not count, and what may be
// wrong with a source (hazard 85).
func (r *Report) note(s *snapshot) {
	for i, d := range s.evidence[len(s.evidence)-1] {
		if d.cache != nil {
			r.Sources[i].note(strings.Join(d.cache.notes, "; "))
			continue
		}
		named, noDir := make(map[string]bool), ""
		for k := range d.Pods {
			p := &d.Pods[k]
			if p.HostNetwork || p.HasFinished() {
				continue
			}
			if p.Network != "" && !slices.Contains(s.dirs, p.Network) {
				noDir = p.Network
			}
			for j := 0; d.Names != podsource.KubernetesPods && j < len(p.ContainerIDs); j++ {
				named[p.ContainerIDs[j]] = true
			}
		}
		owns := func(r candidate) bool { return named[r.ContainerID] }
		if len(named) > 0 && len(s.reservations) > 0 && !slices.ContainsFunc(s.reservations, owns) {
			r.Sources[i].note(fmt.Sprintf("none of the %d containers that it names owns a reservation: are these the IDs of sandboxes?", len(named)))
		}
		if noDir != "" {
			r.Sources[i].note(fmt.Sprintf("it names network %s, which has no directory here: is that the name of its directory?", noDir))
		}
	}
}

func (s *SourceReport) note(text string) { s.Note = strings.Trim(s.Note+"; "+text, "; ") }

// write adds what was decided, and what became of it.
func (r *Report) write(s *snapshot, decisions []decision, in time.Duration) {
	r.list(s, decisions)
	r.note(s)
	r.Duplicates, r.Unreserved = s.pods.compareClaims(s.reservations)
	if in = min(in, s.pods.nextFinish); in < forever {
		r.NextCheck = s.at.wall.Add(in)
	}
}

// list adds the entries.
func (r *Report) list(s *snapshot, decisions []decision) {
	r.Reservations = make([]Entry, len(decisions))
	for i, d := range decisions {
		r.Reservations[i] = Entry{Reservation: s.reservations[i].Reservation, Verdict: d.reason.Verdict(), Reason: d.reason}
		if d.pod != nil {
			r.Reservations[i].Pod = &d.pod.ref
		}
	}
}

// loggedReleases is the largest number of releases of a pass that have a line each at V(0).
const loggedReleases = 50

// log logs releases and a summary of a pass with news at V(0), other summaries at V(1),
// candidates that were kept at V(2), and all others at V(4).
func (r *Reconciler) log(report *Report) {
	log, releases := r.opts.Logger, 0
	for i := range report.Reservations {
		e := &report.Reservations[i]
		l, msg := log.V(2), "Kept a reservation"
		switch e.Verdict {
		case Released:
			l, msg = log, "Released a leaked reservation"
			if releases++; releases > loggedReleases { // the summary has their number
				l = log.V(4)
			}
		case InUse:
			l = log.V(4)
		}
		if !l.Enabled() {
			continue
		}
		if e.Pod != nil {
			l = l.WithValues("pod", e.Pod.String())
		}
		l.Info(msg, "network", e.Network, "IP", e.IP, "containerID", e.ContainerID, "ifName", e.IfName,
			"verdict", e.Verdict.String(), "reason", e.Reason.String())
	}
	add := func(when bool, key string, value any) {
		if when {
			log = log.WithValues(key, value)
		}
	}
	add(len(report.Missing) > 0, "missing", report.Missing) // a network's name or the data directory may be wrong
	add(len(report.Unreserved) > 0, "unreserved", len(report.Unreserved))
	add(len(report.Duplicates) > 0, "duplicates", len(report.Duplicates))
	add(report.Memory != "", "memory", report.Memory)
	add(report.DataDirMissing, "dataDirMissing", true)
	add(!report.NextCheck.IsZero(), "nextCheck", report.NextCheck)
	counts := report.Counts()
	for v := InUse; v <= Failed; v++ {
		add(counts[v] > 0, v.String(), counts[v])
	}
	for _, s := range report.Sources {
		add(true, "source."+s.Name, s.Entries)
		add(s.Note != "", "note."+s.Name, s.Note)
	}
	wrong := len(report.Missing) > 0 || report.DataDirMissing || report.Memory != "" ||
		slices.ContainsFunc(report.Unreserved, func(c Claim) bool { return c.AtRisk(nil) })
	if !wrong && counts[Released]+counts[Conflict]+counts[Malformed] == 0 {
		log = log.V(1) // no news
	}
	log.Info("Compared reservations with live pods", "dataDir", report.DataDir,
		"duration", time.Since(report.Started).Round(time.Millisecond).String())
}
