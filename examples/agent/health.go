// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"strings"
)

// healthy says that the process answers. That a pod source fails, or the disk
// does, is no reason to be started anew: that mends neither, and forgets what
// was seen of the node's clock (R5).
func healthy(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }

// ready says whether every hook of the start has ended, well or not: whoever
// waits for the node's addresses has waited long enough then.
func (a *agent) ready(w http.ResponseWriter, _ *http.Request) {
	networks, ready := a.board.waiting()
	switch {
	case ready:
		fmt.Fprintln(w, "ok")
	case len(networks) == 0:
		http.Error(w, "starting", http.StatusServiceUnavailable)
	default:
		http.Error(w, "waiting for the first pass over "+strings.Join(networks, ", "), http.StatusServiceUnavailable)
	}
}
