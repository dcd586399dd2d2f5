// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// healthy says that the process answers. A restart would repair neither a source nor a disk that
// fails, and would lose what was learned of the node's clock (R5).
func (a *Agent) healthy(w http.ResponseWriter, _ *http.Request) { a.ok(w) }

// ready says whether the hook at the start has ended, well or not: nothing should wait longer for
// the node's addresses.
func (a *Agent) ready(w http.ResponseWriter, _ *http.Request) {
	if !a.statuses.isReady() {
		http.Error(w, "waiting for the first pass", http.StatusServiceUnavailable)
		return
	}
	a.ok(w)
}

// ok also lists the hazards, one a line: no restart would settle them.
func (a *Agent) ok(w http.ResponseWriter) {
	fmt.Fprintln(w, "ok")
	last, now := a.statuses.get(), time.Now()
	for _, title := range titles(append(last.hazards(), last.lastError(now), a.overdue(&last, now))) {
		fmt.Fprintln(w, title)
	}
}

// passTime is longer than a pass whose sources all hang.
const passTime = 5 * time.Minute

// overdue reports that no pass has ended for long. A pass that hangs, on its disk for example,
// reports nothing itself.
func (a *Agent) overdue(s *status, now time.Time) (h hazard) {
	wait := cmp.Or(a.opts.Passes.Interval, gc.DefaultInterval) + passTime
	if s.passes == 0 {
		wait = cmp.Or(a.opts.Passes.StartupTimeout, gc.DefaultStartupTimeout)
	}
	if now.Sub(s.ended) >= wait {
		h.Title = "No pass has ended for " + term.Age(now, s.ended)
		h.Do = "A disk that hangs keeps a pass from ending: the node's kernel log says which."
	}
	return h
}
