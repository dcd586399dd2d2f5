// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// A kind is why a reservation is held.
type kind int

const (
	leaked kind = iota
	beforeBoot
	notReady   // a sandbox of the runtime
	noProcess  // a network namespace
	oneProcess // a network namespace with many addresses
	starting
	young
	foreign
	malformed
	inConflict
	inUse
	kinds
)

// kindTexts have the words that stand after the number of reservations of a kind, and what to do about a range that is full of
// them, unless the node shows more: with each item, such a command.
var kindTexts = [kinds]struct{ words, do, each string }{
	leaked:     {words: "leaked"},
	beforeBoot: {words: "from before the boot"},
	notReady:   {"by sandboxes that are not ready", "The runtime keeps them until kubelet removes them.", "crictl rmp"},
	noProcess:  {"by namespaces without a process", "No process is in them any more.", "ip netns delete"},
	oneProcess: {words: "in ", do: "A process that configures addresses keeps them from others: find out what it does, or end it."},
	starting:   {words: "starting", do: "They are kept for pods that start: repair or delete these."},
	young:      {words: "young"},
	foreign:    {words: "of owners that no source here knows"},
	malformed:  {words: "malformed"},
	inConflict: {words: "in conflict or not released", do: "The list shows why each is kept: hostlocal-gc plan."},
	inUse:      {words: "in use"},
}

// many is how many addresses in one network namespace are no pod's (hazard 100).
const many = 16

// A tally counts the reservations of a network.
type tally struct {
	network            string
	reserved, outside  int             // in all, and those in no known range
	n, tight           [kinds]int      // in all, and in the range set with the fewest addresses left
	process            string          // whose namespace holds oneProcess
	items              [kinds][]string // what findings say of a kind: conflicts with the pods, owners, sandboxes, names of namespaces
	runtimes, unspoken bool            // of the foreign ones: containers of other runtimes; a network of which nobody speaks
	waits              gc.Reason
	where              string  // " in DIR", unless that is where people look
	size, left         float64 // of that range set; size is 0 if unknown
}

func (p *Place) count(network string) *tally {
	t := &tally{network: network}
	if !p.DirNamed && p.Report.DataDir != hostlocal.DefaultDataDir {
		t.where = " in " + p.Report.DataDir
	}
	spaces := make(map[string]int)
	held := make(map[netip.Addr]kind)
	for e := range Entries(&p.Report) {
		if e.Network == network && e.Verdict == gc.InUse && inNamespace(e) {
			spaces[e.Pod.From()]++
		}
	}
	for e := range Entries(&p.Report) {
		if e.Network != network || e.Verdict == gc.Released || e.Verdict == gc.Gone {
			continue
		}
		t.reserved++
		k := p.kindOf(e)
		if k == inUse && inNamespace(e) && spaces[e.Pod.From()] >= many {
			k, t.process = oneProcess, space(e.Pod.From())
		}
		t.n[k]++
		held[e.IP] = k
		t.note(e, k)
	}
	t.measure(p, held)
	return t
}

// inNamespace reports whether only the kernel shows who has an address.
func inNamespace(e *gc.Entry) bool {
	return e.Pod != nil && strings.Contains(e.Pod.From(), "network namespace")
}

func (p *Place) kindOf(e *gc.Entry) kind {
	switch e.Verdict {
	case gc.Leaked:
		return leaked
	case gc.Young, gc.Starting, gc.Changed:
		switch {
		case !p.Booted.IsZero() && e.ReservedAt.Before(p.Booted):
			return beforeBoot
		case e.Verdict == gc.Starting:
			return starting
		}
		return young
	case gc.Foreign:
		return foreign
	case gc.Malformed:
		return malformed
	case gc.InUse:
		switch {
		case e.Pod == nil || !e.Pod.NotRunning:
			return inUse
		case inNamespace(e) && p.Report.Started.Sub(e.ReservedAt) < netns.DefaultLongestADD:
			return starting // its pause container is to come
		case inNamespace(e):
			return noProcess
		}
		return notReady
	}
	return inConflict
}

// note keeps what the findings say beside the numbers.
func (t *tally) note(e *gc.Entry, k kind) {
	item := ""
	switch k {
	case inConflict:
		if e.Verdict == gc.Conflict {
			item = fmt.Sprintf("%s, of container %s: %s", e.IP, term.ID(e.ContainerID), e.Reason.Text())
			if e.Pod != nil {
				item += ": " + PodName(e.Pod)
			}
		}
	case noProcess:
		named := namedSpace.FindStringSubmatch(e.Pod.From())
		if named != nil && isNamespace("/run/netns/"+named[2], named[1]) {
			item = named[2]
		}
	case notReady:
		if podsource.SandboxContainers.Has(e.ContainerID) {
			item = e.ContainerID
		}
	case foreign:
		item = e.IP.String() + ": " + e.ContainerID
		t.unspoken = t.unspoken || e.Reason != gc.ForeignOwner
		n := len(e.ContainerID) - 64
		t.runtimes = t.runtimes || n >= 0 && podsource.SandboxContainers.Has(e.ContainerID[n:])
	case starting:
		if t.waits != gc.StartingNoEnd {
			t.waits = e.Reason
		}
	}
	if item != "" {
		t.items[k] = append(t.items[k], item)
	}
}

// namedSpace is where netns found a namespace that "ip netns delete" would remove. A tenant may have mounted
// another one there, below a root of its own, or under a name with characters that a shell reads.
var namedSpace = regexp.MustCompile(`network namespace (\d+), mounted at "(?:/var)?/run/netns/([a-zA-Z0-9][a-zA-Z0-9_.-]*)"`)

// space names a network namespace by where a source found it, as in "netns: network namespace 4026531840, of process 7".
func space(from string) string {
	if _, where, found := strings.Cut(from, ", "); found {
		return "one namespace " + where
	}
	return strings.TrimPrefix(from, "netns: ")
}

func (t *tally) measure(p *Place, held map[netip.Addr]kind) {
	for _, c := range p.Confs {
		for _, set := range c.Ranges {
			if c.Name != t.network {
				continue
			}
			size := set.Size()
			left, n := size, [kinds]int{}
			for ip, k := range held {
				if set.Has(ip) {
					left--
					n[k]++
				}
			}
			if t.size == 0 || left < t.left {
				t.size, t.left, t.tight = size, left, n
			}
		}
	}
	all := p.ranges(t.network)
	for ip := range held {
		if !all.Has(ip) {
			t.outside++
		}
	}
}

// countable is the largest range size worth printing. No node fills an IPv6 subnet, not even a
// /104.
const countable = 1 << 24

// used says how many addresses are reserved, and of how many if that is known. Of several ranges it
// describes the one with the fewest addresses left.
func (t *tally) used() string {
	switch {
	case t.size == 0:
		return term.Count(t.reserved, "reservation") + t.where
	case t.size > countable:
		return term.Count(t.reserved, "reservation") + t.where + ", of more addresses than a node can use"
	}
	text := fmt.Sprintf("%.0f of %.0f addresses reserved%s", t.size-t.left, t.size, t.where)
	if t.outside > 0 { // the range has changed since
		text += fmt.Sprintf(", and %d outside of the range", t.outside)
	}
	return text
}

// parts says by whom so many addresses of each kind are held, the most first but for leaks.
func (t *tally) parts(n [kinds]int) (text string) {
	var held []kind
	for k := leaked; k < kinds; k++ {
		if n[k] > 0 {
			held = append(held, k)
		}
	}
	slices.SortStableFunc(held, func(a, b kind) int {
		return cmp.Or(cmp.Compare(min(a, 1), min(b, 1)), cmp.Compare(n[b], n[a]))
	})
	for _, k := range held {
		count := fmt.Sprintf("%d ", n[k])
		if len(held) == 1 {
			count = "all "
		}
		text += ", " + count + kindTexts[k].words
		if k == oneProcess {
			text += t.process
		}
	}
	return text
}

// askable reports whether another source may know the foreign owners. A name that the kernel does not
// know either may block an address by intent.
func (t *tally) askable(r *gc.Report) bool { return t.unspoken || t.runtimes || !Answered(r, "netns") }

// ask says who would know the owners that are kept as foreign.
func (t *tally) ask(r *gc.Report) string {
	switch {
	case t.unspoken && Answered(r, "cnicache"):
		return "Ask who lists all containers: --source cri, or --source file:PATH. The CNI cache does not count here, its note says why."
	case t.unspoken:
		return "No source that counts speaks of this network: ask --source cri, or --source netns with --source cnicache."
	case t.runtimes:
		return "Ask the kernel, which sees the containers of every runtime: --source netns."
	}
	return "Only a person knows such owners. If they have certainly ended: release --allow-foreign PREFIX."
}

// full returns the finding about a network that has no address left. It says what frees the largest
// part of the range set that is full. What starts or is young is no cause if more is in use.
func (p *Place) full(c *tally) Finding {
	f := Finding{Word: Full, Network: c.network, Text: c.used() + c.parts(c.tight)}
	largest := leaked // they are freed at once, and pods start again
	for k := leaked; k < inUse && c.tight[leaked] == 0; k++ {
		passes := k == starting || k == young
		if c.tight[k] > c.tight[largest] && !(passes && c.tight[k] < c.tight[inUse]) {
			largest = k
		}
	}
	if c.tight[largest] == 0 {
		f.Text += ": the range is too small for what runs here"
		return f
	}
	text := kindTexts[largest]
	if f.Do = text.do; text.each != "" {
		p.each(&f, text.each, c.items[largest])
	}
	switch {
	case largest == leaked:
		f = p.release(f)
	case largest == beforeBoot:
		f.Do = p.afterBoot()
	case largest == noProcess && f.Items == nil:
		f.Do = "Something else keeps these namespaces: the items of -o json say where each is."
	case largest == starting && c.waits == gc.StartingNoEnd:
		f.Do = "They are kept for pods that start. A source that names the containers would end that: " +
			"--source cri, or --source netns with --source cnicache."
	case largest == starting && c.waits == gc.EntryUnproven:
		f.Do = "Damaged entries of the CNI cache name their containers. A runtime that does not list them would end that: --source cri."
	case largest == young:
		f.Do = "What leaked is released once it is old enough" + in(&p.Report) + "."
		all := nodeShows(&p.Report) && !slices.ContainsFunc(p.Report.Sources, lacks)
		if run := p.command("release", c.network); run != "" && all && !strings.Contains(run, " --min-age") {
			f.Do, f.Run = "These sources see each ADD, so what leaked can be told and released at once.", run+" --min-age=1s"
		}
	case largest == foreign:
		f.Do = c.ask(&p.Report)
	case largest == malformed:
		f.Run = p.command("remove-malformed", c.network)
	}
	return f
}

// in says in how long the next pass may release something.
func in(r *gc.Report) string {
	if wait := r.NextCheck.Sub(r.Started); !r.NextCheck.IsZero() {
		return ", in " + term.Age(r.Started.Add(max(wait, time.Second)), r.Started)
	}
	return ""
}

// afterBoot says when reservations from before the boot are freed, and by which sources perhaps at once.
func (p *Place) afterBoot() string {
	text := "The agent, or a second release, frees what leaked" + in(&p.Report) + " after the first pass saw it."
	if nodeShows(&p.Report) { // the cache's note says why it proves nothing
		return text
	}
	return text + " --source netns --source cnicache may free it at once."
}

// each adds items to a finding FULL, and a command that runs another one for each of them.
func (p *Place) each(f *Finding, command string, items []string) {
	slices.Sort(items)
	f.Items = slices.Compact(items)
	switch {
	case len(f.Items) == 0 || p.Command == nil:
	case len(f.Items) <= 3:
		f.Run = command + " " + strings.Join(f.Items, " && "+command+" ")
	default:
		f.Run = p.command("check", f.Network) +
			" -o json | jq -r '.findings[] | select(.word == \"FULL\") | .items[]?' | xargs -n1 " + command
	}
}
