// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// beside asks for what is served beside the metrics.
func beside(t *testing.T, a *Agent, host, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	a.metricsHandler().ServeHTTP(w, r)
	return w
}

// nodeOf asks an agent for the state of its node, as the API server's proxy does.
func nodeOf(t *testing.T, a *Agent) (state NodeState, text string) {
	t.Helper()
	w := beside(t, a, "api.cluster.example:6443", NodePath)
	if err := json.Unmarshal(w.Body.Bytes(), &state); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", w.Code, err, w.Body)
	}
	return state, w.Body.String()
}

// With all that a report can have, the state and what else is served beside the metrics names no pod, no container and no address.
func TestNodeStateNamesNothing(t *testing.T) {
	a := bare(Options{Node: "node-1", Version: "v9", Configuration: "c0ffee"})
	names := []string{"secret-pod", "10.9.8.", "fd00:9", strings.Repeat("ab", 6), "tenant"}
	report := gc.Report{Started: time.Now(), DataDir: t.TempDir(), Networks: []string{"podnet", "gone"}, Missing: []string{"gone"}}
	pods := []*gc.Pod{{Namespace: "ns", Name: "secret-pod"}, {Name: "secret-pod-2"}}
	for i := range 40 {
		why := gc.Reasons()[i%len(gc.Reasons())]
		e := gc.Entry{Reason: why, Verdict: why.Verdict(), Pod: pods[i%2], Reservation: &hostlocal.Reservation{Network: []string{"podnet", "other"}[i/30],
			IP: netip.MustParseAddr(fmt.Sprintf("10.9.8.%d", i)), ContainerID: strings.Repeat("ab", 32)}}
		report.Reservations = append(report.Reservations, e)
	}
	claim := []gc.Claim{{IP: netip.MustParseAddr("10.9.8.200"), Pods: pods}}
	report.Unreserved, report.Duplicates = claim, claim
	err := fmt.Errorf(`%w: pod ns/secret-pod is not listed by 10.9.8.7:6443, "/tenant"`, gc.ErrRefused)
	a.statuses.note(report, nil, nil, nil)
	a.statuses.note(report, err, nil, nil)
	a.noteNode(time.Now())
	a.statuses.last.found = append(a.statuses.last.found, diagnose.Finding{Word: diagnose.Full, Network: strings.Repeat("n", 80),
		Text: `13 reserved, 13 in one namespace of process 7, mounted at "/a\"/` + strings.Repeat("tenant", 20) + `", from 10.9.8.7`})
	state, text := nodeOf(t, a)
	for path, text := range map[string]string{
		NodePath: text, "/healthz": beside(t, a, "localhost", "/healthz").Body.String(), "/readyz": beside(t, a, "localhost", "/readyz").Body.String(),
	} {
		for _, name := range names {
			if strings.Contains(text, name) || !strings.Contains(text, "13 in one namespace") {
				t.Errorf("%s has %s, or not all: %s", path, name, text)
			}
		}
	}
	if len(state.Findings) < 5 || len(state.Networks) != 3 || state.Networks[0].Reservations["in-use"]["container-live"] == 0 || state.Configuration != "c0ffee" {
		t.Errorf("it is not all there: %s", text)
	}
	const found = `31 in one namespace of process 7, mounted at "/tenant/\"web", from 10.9.8.7:80, 10.9.8.7, [fd00:9::1]:80 and fd00:9::1: 5 leaked.`
	const want = `31 in one namespace of process 7, mounted at "...", from an address, an address, an address and an address 5 leaked.`
	if got := nameless(found); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What the state says in the situations of a node, and since when.
func TestNodeState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bare(Options{SourceNames: []string{"cri"}})
		begin := time.Now()
		entry := func(network string, why gc.Reason) gc.Entry {
			return gc.Entry{Reason: why, Verdict: why.Verdict(), Reservation: &hostlocal.Reservation{Network: network, IP: netip.MustParseAddr("10.1.0.2")}}
		}
		for _, row := range []struct {
			reason string
			dryRun bool
			err    error
			found  []gc.Entry
			notes  []string // of configurations
			want   []string // word, network, and the minute since which it is so
		}{
			{reason: "before the first pass nothing is known", want: []string{"UNKNOWN  0"}},
			{reason: "the first pass was refused, and a configuration is yet to come", err: errAway, notes: []string{"none"}, want: []string{"UNKNOWN  1", "UNKNOWN  1"}},
			{reason: "another one, too", err: errAway, want: []string{"UNKNOWN  1", "UNKNOWN  1"}},
			{reason: "a leak is released by the next pass", found: []gc.Entry{entry("podnet", gc.NotTried)}},
			{reason: "but not in dry run", dryRun: true, found: []gc.Entry{entry("podnet", gc.NotTried)}, want: []string{"LEAKED podnet 4"}},
			{reason: "a container that only podman knows", found: []gc.Entry{entry("other", gc.NetworkNotNamed)}},
			{reason: "a leak is there again, and a conflict, which is less grave", dryRun: true,
				found: []gc.Entry{entry("podnet", gc.TwoPods), entry("podnet", gc.NotTried)},
				want:  []string{"LEAKED podnet 6", "CONFLICT podnet 6"}},
			{reason: "a pass that judged nothing ends no finding", dryRun: true, err: errAway, want: []string{"UNKNOWN  7", "LEAKED podnet 6", "CONFLICT podnet 6"}},
			{reason: "all is well, but a configuration can't be read", found: []gc.Entry{entry("podnet", gc.ContainerLive)}, notes: []string{"none"},
				want: []string{"CONFIG  8"}},
			{reason: "the conflict is a new one", found: []gc.Entry{entry("podnet", gc.TwoPods)}, want: []string{"CONFLICT podnet 9"}},
			{reason: "no pass has ended for long", want: []string{"UNKNOWN  9", "CONFLICT podnet 9"}},
		} {
			a.opts.Passes.DryRun = row.dryRun
			switch {
			case row.err != nil || row.found != nil:
				report := gc.Report{Started: time.Now(), Networks: []string{"podnet"}, Reservations: row.found}
				report.Sources = []gc.SourceReport{{Name: "cri"}}
				if row.err != nil {
					report.Sources[0].Error = row.err.Error()
				}
				a.statuses.note(report, row.err, nil, row.notes)
				a.noteNode(time.Now())
			case a.statuses.get().passes > 0:
				time.Sleep(gc.DefaultInterval + passTime)
			}
			state, _ := nodeOf(t, a)
			var got, words []string
			for line := range strings.Lines(get(a, "/healthz").Body.String()) {
				word, _, _ := strings.Cut(line, ":")
				words = append(words, word)
			}
			for i, f := range state.Findings {
				if i+1 >= len(words) || words[i+1] != f.Word {
					t.Errorf("%s: health has %q, and not %s", row.reason, words, f.Word)
				}
				got = append(got, fmt.Sprintf("%s %s %.0f", f.Word, f.Network, f.Since.Sub(begin).Minutes()))
			}
			word := "OK"
			if len(row.want) > 0 {
				word, _, _ = strings.Cut(row.want[0], " ")
			}
			if diff := cmp.Diff(row.want, got); diff != "" || state.Word != word {
				t.Errorf("%s: %s; findings (-want +got):\n%s", row.reason, state.Word, diff)
			}
			time.Sleep(time.Minute)
		}
	})
}
