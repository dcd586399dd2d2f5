// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// The words of findings, gravest first. They are a contract.
const (
	wordMissing    = "MISSING"    // a network has no directory
	wordDuplicate  = "DUPLICATE"  // two live pods have one address
	wordUnreserved = "UNRESERVED" // host-local may hand out the address of a live pod
	wordLocked     = "LOCKED"     // a process holds the plugin's lock, and each ADD waits
	wordUnknown    = "UNKNOWN"    // the live pods or the reservations could not be read
	wordFull       = "FULL"       // no address is left
	wordLeaked     = "LEAKED"     // some are leaked, and some are left
	wordConflict   = "CONFLICT"   // a person has to look at a reservation
	wordOK         = "OK"
)

// words returns the words of all findings, in the order in which they are printed.
func words() []string {
	return []string{wordMissing, wordDuplicate, wordUnreserved, wordLocked, wordUnknown, wordFull, wordLeaked, wordConflict, wordOK}
}

// A finding is what check reports of a network or of a data directory.
type finding struct {
	Word    string `json:"word"`
	Network string `json:"network,omitempty"`
	Text    string `json:"text"`
	Run     string `json:"run,omitempty"` // a command that fixes it
}

// A place is a data directory with what check read of it. diagnose turns it into findings without
// further I/O.
type place struct {
	report   gc.Report // of a pass that released nothing
	judged   bool      // false: the sources gave no answer
	unread   bool      // not all reservations could be read
	unknown  []string  // the errors of the sources, if not judged
	confs    []cniconf.Network
	locks    map[string]string // network to a description of a lock that is held for long
	asked    []string          // networks that the user named
	release  string            // the command that releases, without its networks
	networks []string          // networks that have a directory
	named    bool              // the user named the data directory
}

// diagnose returns the findings about a data directory, gravest first. An address that is reserved
// in another of the places counts as reserved.
func diagnose(p *place, places []*place) (all []finding) {
	unreserved := p.unreserved(places)
	for _, n := range p.report.Networks {
		all = append(all, p.network(n, unreserved)...)
	}
	for _, d := range p.report.Duplicates {
		all = append(all, finding{Word: wordDuplicate, Text: fmt.Sprintf("%v is the address of several live pods: %s", d.IP, podNames(d.Pods))})
	}
	if missing := slices.ContainsFunc(all, func(f finding) bool { return f.Word == wordMissing }); len(unreserved) > 0 && !missing {
		all = append(all, finding{Word: wordUnreserved, Text: fmt.Sprintf("%s not reserved, so host-local may hand them out again: %s",
			wereOrWas(len(unreserved)), term.Few(unreserved, fewRows))})
	}
	if p.named && p.report.DataDirMissing {
		all = append(all, finding{Word: wordMissing, Text: "there is no data directory " + p.report.DataDir + "; --data-dir says where host-local keeps its networks"})
	}
	if !p.judged {
		all = append(all, finding{Word: wordUnknown, Text: "the live pods can't be determined: " + flagWords.Replace(strings.Join(p.unknown, "; "))})
	}
	if len(p.report.Networks) == 0 && p.judged && !p.unread && len(all) == 0 {
		all = append(all, finding{Word: wordOK, Text: "no network has a directory in " + p.report.DataDir +
			": nothing was ever reserved there; --data-dir and --cni-dir say where else to look"})
	}
	slices.SortStableFunc(all, func(a, b finding) int {
		return cmp.Compare(slices.Index(words(), a.Word), slices.Index(words(), b.Word))
	})
	return all
}

// network returns the findings about one network.
func (p *place) network(name string, unreserved []string) (all []finding) {
	if slices.Contains(p.report.Missing, name) {
		return p.missing(name, unreserved)
	}
	if holder := p.locks[name]; holder != "" {
		all = append(all, finding{Word: wordLocked, Network: name,
			Text: holder + ". Each ADD and DEL of the network waits for it: find out what the process does, or end it"})
	}
	c := p.count(name)
	if !p.judged {
		if c.full() {
			all = append(all, finding{Word: wordFull, Network: name, Text: c.used() + ", and it is not known how many are leaked"})
		}
		return all
	}
	if c.people > 0 {
		all = append(all, finding{Word: wordConflict, Network: name,
			Text: fmt.Sprintf("%s for a person to look at: %s --network %s shows which, and why", term.Count(c.people, "reservation"),
				strings.Replace(p.release, " release", " list", 1), name)})
	}
	run := p.release + " --network " + name
	switch {
	case c.full() && c.leaked > 0:
		all = append(all, finding{wordFull, name, fmt.Sprintf("%s, %d leaked", c.used(), c.leaked), run})
	case c.full() && c.inUse == c.reserved:
		all = append(all, finding{Word: wordFull, Network: name, Text: c.used() + ", all in use: the range is too small"})
	case c.full():
		all = append(all, finding{Word: wordFull, Network: name, Text: c.used() + ", none leaked: " + c.kept()})
	case c.leaked > 0:
		all = append(all, finding{wordLeaked, name, fmt.Sprintf("%s, %d leaked", c.used(), c.leaked), run})
	case len(all) == 0:
		all = append(all, finding{Word: wordOK, Network: name, Text: c.used() + c.rest()})
	}
	return all
}

// missing returns the finding about a network without a directory. The first ADD creates the
// directory, so this is fine unless something contradicts it.
func (p *place) missing(name string, unreserved []string) []finding {
	there := existing(p.networks)
	switch {
	case len(unreserved) > 0:
		return []finding{{Word: wordMissing, Network: name, Text: fmt.Sprintf(
			"it has no directory in %s, and %s not reserved anywhere: is the name right, is the directory mounted, was it removed? %s: %s",
			p.report.DataDir, wereOrWas(len(unreserved)), capital(there), term.Few(unreserved, fewRows))}}
	case slices.Contains(p.asked, name):
		return []finding{{Word: wordMissing, Network: name, Text: fmt.Sprintf("it has no directory in %s; %s", p.report.DataDir, there)}}
	}
	return []finding{{Word: wordOK, Network: name, Text: "nothing was ever reserved in it"}}
}

// A tally counts the reservations of a network.
type tally struct {
	reserved, inUse, leaked, people int
	outside                         int                // reserved, but in no known range
	other                           map[gc.Verdict]int // all other verdicts
	size, left                      float64            // of the range set with the fewest addresses left; size is 0 if unknown
}

func (p *place) count(network string) tally {
	t := tally{other: make(map[gc.Verdict]int)}
	var ips []netip.Addr
	for i := range p.report.Reservations {
		e := &p.report.Reservations[i]
		if e.Network != network {
			continue
		}
		t.reserved++
		ips = append(ips, e.IP)
		switch e.Verdict {
		case gc.InUse:
			t.inUse++
		case gc.Leaked:
			t.leaked++
		case gc.Conflict, gc.Malformed:
			t.people++
			t.other[e.Verdict]++
		default:
			t.other[e.Verdict]++
		}
	}
	t.outside = len(ips)
	var all iprange.Set
	for _, c := range p.confs {
		for _, set := range c.Ranges {
			if c.Name != network {
				continue
			}
			all = append(all, set...)
			size := set.Size()
			left := size
			for _, ip := range ips {
				if set.Has(ip) {
					left--
				}
			}
			if t.size == 0 || left < t.left {
				t.size, t.left = size, left
			}
		}
	}
	for _, ip := range ips {
		if all.Has(ip) {
			t.outside--
		}
	}
	return t
}

// countable is the largest range size worth printing. No node fills an IPv6 subnet, not even a
// /104.
const countable = 1 << 24

func (t *tally) full() bool { return t.size > 0 && t.left <= 0 }

// used says how many addresses are reserved, and of how many if that is known. Of several ranges it
// describes the one with the fewest addresses left.
func (t *tally) used() string {
	if t.size == 0 {
		return fmt.Sprintf("%s (no configuration of this network with this data directory has a range: see --range)", term.Count(t.reserved, "reservation"))
	}
	if t.size > countable {
		return fmt.Sprintf("%s, of a range that has far more addresses than a node can use", term.Count(t.reserved, "reservation"))
	}
	text := fmt.Sprintf("%.0f of %.0f addresses reserved", t.size-t.left, t.size)
	if t.outside > 0 { // the range has changed since
		text += fmt.Sprintf(", and %d outside of the range", t.outside)
	}
	return text
}

func (t *tally) rest() string {
	switch {
	case t.reserved == 0:
		return ""
	case t.inUse == t.reserved:
		return ", all in use"
	}
	return fmt.Sprintf(", %d in use, %s", t.inUse, t.kept())
}

// kept describes the reservations that are neither in use nor leaked.
func (t *tally) kept() string {
	var parts []string
	for _, v := range gc.Verdicts() {
		if n := t.other[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	if len(parts) == 0 {
		return "none is kept for another reason"
	}
	return strings.Join(parts, ", ")
}

// unreserved returns the addresses of live pods that no file reserves and that host-local may hand
// out, with their pods.
func (p *place) unreserved(places []*place) (all []string) {
	reserved := make(map[netip.Addr]bool)
	for _, other := range places {
		for i := range other.report.Reservations {
			reserved[other.report.Reservations[i].IP] = true
		}
	}
	var ours iprange.Set
	for _, c := range p.confs {
		ours = append(ours, slices.Concat(c.Ranges...)...)
	}
	for _, u := range p.report.Unreserved {
		if !reserved[u.IP] && u.AtRisk(ours) {
			all = append(all, fmt.Sprintf("%v (%s)", u.IP, u.Pods[0]))
		}
	}
	return all
}

func podNames(pods []*gc.Pod) string {
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = podAndSource(p)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func wereOrWas(n int) string {
	if n == 1 {
		return "1 address of a live pod is"
	}
	return fmt.Sprintf("%d addresses of live pods are", n)
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
