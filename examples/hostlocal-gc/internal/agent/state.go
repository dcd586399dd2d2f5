// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// NodePath is where an agent serves its node's state, also beside its metrics.
const NodePath = "/node"

// A NodeState is what an agent says of its node to those who look at a whole cluster. It names no pod,
// no container and no address. Its JSON is a contract.
type NodeState struct {
	SchemaVersion int    `json:"schemaVersion"`
	Node          string `json:"node,omitempty"`
	Version       string `json:"version"`
	// Configuration is a hash of the agent's settings: equal ones have the same.
	Configuration string `json:"configuration"`
	// Word is that of the first finding, or OK. Findings are what a person should look at, gravest first.
	Word     string             `json:"word"`
	Findings []diagnose.Finding `json:"findings,omitempty"` // without items and advice
	// LastPass is the end of the last pass, or the start of the agent before the first one.
	LastPass time.Time `json:"lastPass"`
	// Networks has the numbers of reservations by network and verdict, as of the last pass that judged them.
	Networks map[string]map[string]int `json:"networks"`
}

// NodeSchema is the version of the JSON of a NodeState.
const NodeSchema = 1

func (a *Agent) nodeState(now time.Time) NodeState {
	last := a.last.Load()
	state := NodeState{
		SchemaVersion: NodeSchema, Node: a.opts.Node, Version: a.opts.Version, Configuration: a.opts.Configuration,
		Word: diagnose.OK, LastPass: last.ended, Networks: make(map[string]map[string]int),
	}
	for _, f := range a.all(last, now) {
		if f.Word == diagnose.Leaked && !slices.Contains(last.shown.Networks, f.Network) {
			continue // another runtime's, perhaps; Networks has the numbers
		}
		since := cmp.Or(last.since[[2]string{f.Word, f.Network}], last.ended) // if no pass has ended since
		state.Findings = append(state.Findings, diagnose.Finding{Word: f.Word, Network: f.Network, Text: nameless(f.Text), Since: since})
	}
	if len(state.Findings) > 0 {
		state.Word = state.Findings[0].Word
	}
	for _, name := range networksOf(&last.shown) {
		state.Networks[name] = make(map[string]int)
	}
	for e := range diagnose.Entries(&last.shown) {
		state.Networks[e.Network][diagnose.Verdict(e)]++
	}
	return state
}

var (
	quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	word       = regexp.MustCompile(`[^\s,;()]+`)
)

// nameless replaces what a text has in quotes, such as a path that a tenant mounted, and addresses.
func nameless(text string) string {
	text = quotedText.ReplaceAllString(term.Clean(text), `"..."`)
	return word.ReplaceAllStringFunc(text, func(w string) string {
		bare := strings.TrimRight(w, ":.")
		_, err := netip.ParseAddr(bare)
		_, err2 := netip.ParseAddrPort(bare)
		if err == nil || err2 == nil {
			return "an address"
		}
		return w
	})
}

func (a *Agent) node(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(a.nodeState(time.Now())) // the client may be gone
}
