// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"strings"

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

// ok also tells what no restart would mend, and nobody should have to find.
func (a *Agent) ok(w http.ResponseWriter) {
	fmt.Fprintln(w, "ok")
	last := a.statuses.get()
	if text := missing(&last.report); text != "" {
		fmt.Fprintln(w, text)
	}
}

// missing says which directories do not exist although live pods have addresses
// that are reserved nowhere, or nothing: a network's directory comes with its
// first ADD, but a name with a typing error, a wrong data directory and a lost
// mount look like that, too (hazard 63).
func missing(r *gc.Report) string {
	paths := r.Missing()
	if len(paths) == 0 || len(r.Unreserved) == 0 {
		return ""
	}
	return fmt.Sprintf("missing: %s, while live pods have %s that no network has reserved; are --network and --data-dir right?",
		strings.Join(paths, ", "), plural(len(r.Unreserved), "address", "addresses"))
}
