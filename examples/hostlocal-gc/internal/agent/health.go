// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"time"
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
	last := a.statuses.get()
	for _, title := range titles(append(last.hazards(), last.lastError(time.Now()))) {
		fmt.Fprintln(w, title)
	}
}
