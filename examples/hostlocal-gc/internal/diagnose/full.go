// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
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
	switch largest {
	case leaked:
		f.Do, f.Run = p.release(c.network)
	case beforeBoot:
		f.Do = p.afterBoot()
	case notReady:
		f.Items, f.Do = c.sandboxes, "The runtime keeps them until kubelet removes them."
		f.Run = p.each("crictl rmp", c.network, f.Items)
	case noProcess:
		f.Items, f.Do = c.namespaces, "No process is in them any more."
		if f.Items == nil {
			f.Do = "Something else keeps these namespaces: the items of -o json say where each is."
		}
		f.Run = p.each("ip netns delete", c.network, f.Items)
	case oneProcess:
		f.Do = "A process that configures addresses keeps them from others: find out what it does, or end it."
	case starting:
		f.Do = "They are kept for pods that start: repair or delete these."
		switch c.waits {
		case gc.StartingNoEnd:
			f.Do = "They are kept for pods that start. A source that names the containers would end that: " +
				"--source cri, or --source netns with --source cnicache."
		case gc.EntryUnproven:
			f.Do = "Damaged entries of the CNI cache name their containers. A runtime that does not list them would end that: --source cri."
		}
	case young:
		f.Do = "What leaked is released once it is old enough" + in(&p.Report) + "."
		if run := p.command("release", c.network); run != "" && p.nodeShows(true) && !strings.Contains(run, " --min-age") {
			f.Do, f.Run = "These sources see each ADD, so what leaked can be told and released at once.", run+" --min-age=1s"
		}
	case foreign:
		f.Do = c.ask(&p.Report)
	case malformed:
		f.Run = p.command("remove-malformed", c.network)
	case inConflict:
		f.Do = "The list shows why each is kept: hostlocal-gc list."
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
	if asked(&p.Report, "netns") && asked(&p.Report, "cnicache") {
		return text + " The CNI cache would free them now, but it proves nothing here: see its note."
	}
	return text + " --source netns --source cnicache may free it at once."
}

// each returns a command that runs another one for each item of a finding FULL.
func (p *Place) each(command, network string, items []string) string {
	switch {
	case len(items) == 0 || p.Again == "":
		return ""
	case len(items) <= 3:
		return command + " " + strings.Join(items, " && "+command+" ")
	}
	return fmt.Sprintf("%s --network %s -o json | jq -r '.findings[] | select(.word == \"FULL\") | .items[]?' | xargs -n1 %s", p.Again, network, command)
}
