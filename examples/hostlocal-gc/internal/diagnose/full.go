// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

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
		if run := p.command("release", c.network); run != "" && p.nodeShows(true) && !strings.Contains(run, " --min-age") {
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
	if asked(&p.Report, "netns") && asked(&p.Report, "cnicache") { // whose note says why it proves nothing
		return text
	}
	return text + " --source netns --source cnicache may free it at once."
}

// each adds items to a finding FULL, and a command that runs another one for each of them.
func (p *Place) each(f *Finding, command string, items []string) {
	slices.Sort(items)
	f.Items = slices.Compact(items)
	switch {
	case len(f.Items) == 0 || p.Again == "":
	case len(f.Items) <= 3:
		f.Run = command + " " + strings.Join(f.Items, " && "+command+" ")
	default:
		f.Run = fmt.Sprintf("%s --network %s -o json | jq -r '.findings[] | select(.word == \"FULL\") | .items[]?' | xargs -n1 %s",
			p.Again, f.Network, command)
	}
}
