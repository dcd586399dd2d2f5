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

// healthy says that the process answers. That a pod source fails, or the disk
// does, is no reason to start it anew: that mends neither, and forgets what was
// seen of the node's clock (R5).
func (a *Agent) healthy(w http.ResponseWriter, _ *http.Request) { a.ok(w) }

// ready says whether the hook at the start has ended, well or not: whoever waits
// for the node's addresses has waited long enough then.
func (a *Agent) ready(w http.ResponseWriter, _ *http.Request) {
	if !a.statuses.isReady() {
		http.Error(w, "waiting for the first pass", http.StatusServiceUnavailable)
		return
	}
	a.ok(w)
}

// ok also tells, a line each, what no restart would mend, and nobody should have to
// find.
func (a *Agent) ok(w http.ResponseWriter) {
	fmt.Fprintln(w, "ok")
	last, now := a.statuses.get(), time.Now()
	for _, title := range titles(append(last.hazards(), last.lastError(now), a.overdue(&last, now))) {
		fmt.Fprintln(w, title)
	}
}

// passTime is more than a pass takes whose sources all hang.
const passTime = 5 * time.Minute

// overdue tells that no pass has ended for long: one hangs, on its disk say, and comes to
// no end that could be told of.
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
