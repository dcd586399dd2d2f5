// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

// healthy says that the process answers. A restart would repair neither a source nor a disk that
// fails, and would lose what was learned of the node's clock (R5).
func (a *Agent) healthy(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, "ok")
	a.findings(w)
}

// ready says whether each source has answered. A setting that is wrong then stops a rollout. What
// fails later does not: the agent waits for it, and so would the next one. Only detailed answers
// have the error, which may name a pod.
func (a *Agent) ready(detailed bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if last := a.statuses.get(); !last.ready {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "waiting for the first answer of each source")
			if detailed && last.err != nil {
				fmt.Fprintln(w, last.err)
			}
			a.findings(w)
			return
		}
		a.healthy(w, nil)
	}
}

// findings lists the findings, one a line.
func (a *Agent) findings(w io.Writer) {
	last := a.statuses.get()
	for _, line := range lines(a.all(&last, time.Now())) {
		fmt.Fprintln(w, line)
	}
}
