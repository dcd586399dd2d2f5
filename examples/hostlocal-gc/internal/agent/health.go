// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"time"
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

// ok also lists the findings, one a line: no restart would settle them.
func (a *Agent) ok(w http.ResponseWriter) {
	fmt.Fprintln(w, "ok")
	last := a.statuses.get()
	for _, line := range lines(append(last.found, a.ofAgent(&last, time.Now())...)) {
		fmt.Fprintln(w, line)
	}
}
