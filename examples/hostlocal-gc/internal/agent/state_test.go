// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// beside asks for what is served beside the metrics.
func beside(a *Agent, host, path string) *httptest.ResponseRecorder {
	return ask(a.metricsHandler(), http.MethodGet, host, path, "")
}

// nodeOf asks an agent for the state of its node, as the API server's proxy does.
func nodeOf(t *testing.T, a *Agent) (state NodeState, text string) {
	t.Helper()
	w := beside(a, "api.cluster.example:6443", NodePath)
	if err := json.Unmarshal(w.Body.Bytes(), &state); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", w.Code, err, w.Body)
	}
	return state, w.Body.String()
}

// A finding that has ended is no longer counted, and ranges are.
func TestMetricsOfANode(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "n.conf")
	cnitest.Write(t, conf, `{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/29"}}`, 0)
	a := withoutPasses(Options{CNIConf: []string{conf}})
	report := gc.Report{Networks: []string{"n"}, DataDir: t.TempDir(), Started: time.Now(), Looks: 1}
	for _, why := range []gc.Reason{gc.TwoPods, gc.ContainerLive} {
		e := entry("10.0.0.2", "c", why)
		e.Network, report.Reservations = "n", []gc.Entry{e}
		a.note(report, nil, nil)
		got := get(a, "/metrics").Body.String()
		counted, ranges := strings.Contains(got, "hostlocal_gc_findings{"), strings.Contains(got, "hostlocal_gc_range_")
		if counted != (why == gc.TwoPods) || !ranges {
			t.Errorf("%s: it is not %t that a finding is counted, or no range is:\n%s", why, !counted, got)
		}
	}
}

// With all that a report can have, the state and what else is served beside the metrics names no pod, no container and no address.
func TestNodeStateNamesNothing(t *testing.T) {
	a := withoutPasses(Options{Node: "node-1", Version: "v9", Configuration: "c0ffee"})
	names := []string{"secret-pod", "10.9.8.", "fd00:9", strings.Repeat("ab", 6), "tenant"}
	report := gc.Report{Started: time.Now(), DataDir: t.TempDir(), Networks: []string{"podnet", "gone"}, Missing: []string{"gone"}}
	pods := []*gc.Pod{{Namespace: "ns", Name: "secret-pod"}, {Name: "secret-pod-2"}}
	for i := range 40 {
		e := entry(fmt.Sprintf("10.9.8.%d", i), strings.Repeat("ab", 32), gc.Reason(1+i%int(gc.SourceFailed)))
		e.Pod, e.Network = pods[i%2], []string{"podnet", "other"}[i/30]
		report.Reservations = append(report.Reservations, e)
	}
	claim := []gc.Claim{{IP: netip.MustParseAddr("10.9.8.200"), Pods: pods}}
	report.Unreserved, report.Duplicates = claim, claim
	err := fmt.Errorf(`%w: pod ns/secret-pod is not listed by 10.9.8.7:6443, "/tenant"`, gc.ErrRefused)
	a.note(report, nil, nil)
	a.note(report, err, nil)
	last := a.last.Load()
	last.found = append(last.found, diagnose.Finding{Word: diagnose.Full, Network: strings.Repeat("n", 80),
		Text: `13 reserved, 13 in one namespace of process 7, mounted at "/a\"/` + strings.Repeat("tenant", 20) + `", from 10.9.8.7`})
	state, text := nodeOf(t, a)
	for _, path := range []string{NodePath, "/healthz", "/readyz"} {
		text := beside(a, "localhost", path).Body.String()
		for _, name := range names {
			if strings.Contains(text, name) || !strings.Contains(text, "13 in one namespace") {
				t.Errorf("%s has %s, or not all: %s", path, name, text)
			}
		}
	}
	if n := state.Networks; len(state.Findings) < 5 || len(n) != 3 || n["podnet"]["in-use"] == 0 || state.Configuration != "c0ffee" {
		t.Errorf("it is not all there: %s", text)
	}
	const found = `31 of process 7, mounted at "/tenant/\"web", from 10.9.8.7:80, 10.9.8.7, [fd00:9::1]:80 and fd00:9::1: 5 leaked.`
	const want = `31 of process 7, mounted at "...", from an address, an address, an address and an address 5 leaked.`
	if got := nameless(found); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What state, health, metrics and log say in the situations of a node, and since when. The log says findings when they
// change, not in each pass. A refused pass ends none.
func TestNodeState(t *testing.T) {
	dir, conf := t.TempDir(), filepath.Join(t.TempDir(), "podnet.conf")
	cnitest.Write(t, conf, `{"cniVersion":"1.0.0","name":"podnet","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/16"}}`, 0)
	synctest.Test(t, func(t *testing.T) {
		a, log := logging(t, Options{DataDir: dir, Networks: []string{"podnet"}, Source: podsource.Func(nil), SourceNames: []string{"cri"}})
		begin := time.Now()
		in := func(network string, why gc.Reason) []gc.Entry {
			e := entry("10.1.0.2", "", why)
			e.Network = network
			return []gc.Entry{e}
		}
		fine, leak, two := in("podnet", gc.ContainerLive), in("podnet", gc.NotTried), in("podnet", gc.TwoPods)
		for _, row := range []struct {
			reason string
			dryRun bool
			conf   string
			err    error
			found  []gc.Entry
			live   string // a live pod's address that is not reserved
			want   string // word, network, and the minute since which it is so
			logged string // the words
		}{
			{reason: "before the first pass nothing is known", want: "UNKNOWN  0"},
			{reason: "the first pass was refused, and a configuration is yet to come", conf: "none", err: errAway, want: "UNKNOWN  1"},
			{reason: "another one, after the hook has ended", err: errAway, want: "UNKNOWN  1"},
			{reason: "a third one", err: errAway, want: "UNKNOWN  1"},
			{reason: "a leak is released by the next pass", found: leak},
			{reason: "but not in dry run", dryRun: true, found: leak, want: "LEAKED podnet 5", logged: "LEAKED"},
			{reason: "a container that only podman knows", found: in("other", gc.NetworkNotNamed), logged: "LEAKED"},
			{reason: "a leak is there again, and a conflict, which is less grave", dryRun: true, found: slices.Concat(leak, two),
				want: "LEAKED podnet 7, CONFLICT podnet 7", logged: "LEAKED CONFLICT"},
			{reason: "a pass that judged nothing ends no finding", dryRun: true, err: errAway,
				want: "UNKNOWN  8, LEAKED podnet 7, CONFLICT podnet 7"},
			{reason: "and repeats none", dryRun: true, found: slices.Concat(leak, two), want: "LEAKED podnet 7, CONFLICT podnet 7"},
			{reason: "all is well, but a configuration can't be read", conf: "none", found: fine, want: "CONFIG  10", logged: "CONFIG"},
			{reason: "an address is not reserved, and another plugin's", found: fine, live: "192.0.2.9"},
			{reason: "an address is not reserved", found: fine, live: "10.1.0.9", want: "UNRESERVED  12", logged: "UNRESERVED"},
			{reason: "it is not yet", found: fine, live: "10.1.0.9", want: "UNRESERVED  12"},
			{reason: "the conflict is a new one", found: two, want: "CONFLICT podnet 14", logged: "CONFLICT"},
			{reason: "no pass has ended for long", want: "UNKNOWN  14, CONFLICT podnet 14"},
		} {
			a.opts.Passes.DryRun, a.opts.CNIConf = row.dryRun, []string{cmp.Or(row.conf, conf)}
			from, waits := len(log.String()), row.err == nil && row.found == nil
			switch {
			case !waits:
				report := gc.Report{Started: time.Now(), DataDir: dir, Networks: []string{"podnet"}, Reservations: row.found, Looks: 1}
				report.Sources = []gc.SourceReport{{Name: "cri"}}
				if row.err != nil {
					report.Sources[0].Error = row.err.Error()
				}
				if ip, err := netip.ParseAddr(row.live); err == nil {
					report.Unreserved = []gc.Claim{{IP: ip, Pods: []*gc.Pod{{Name: "web"}}}}
				}
				a.note(report, row.err, nil)
				a.log(&report)
				a.hookEnded()
			case a.last.Load().passes > 0:
				time.Sleep(a.opts.Passes.Interval + passTime)
			}
			state, _ := nodeOf(t, a)
			metrics, health := get(a, "/metrics").Body.String(), get(a, "/healthz").Body.String()
			var got []string
			for _, f := range state.Findings {
				got = append(got, fmt.Sprintf("%s %s %.0f", f.Word, f.Network, f.Since.Sub(begin).Minutes()))
				if _, after, found := strings.Cut(health, "\n"+f.Word+": "); !found {
					t.Errorf("%s: health does not say %s, or in another order: %s", row.reason, f.Word, health)
				} else {
					health = "\n" + after
				}
				if of := fmt.Sprintf("hostlocal_gc_findings{network=%q,word=%q} ", f.Network, f.Word); !waits && !strings.Contains(metrics, of) {
					t.Errorf("%s: there is no %s", row.reason, of)
				}
			}
			word, _, _ := strings.Cut(cmp.Or(row.want, diagnose.OK), " ")
			if text := strings.Join(got, ", "); text != row.want || state.Word != word {
				t.Errorf("%s: %s; findings %s, want %s", row.reason, state.Word, text, row.want)
			}
			var words []string
			for _, found := range regexp.MustCompile(`("findings"="|; )([A-Z-]+): `).FindAllStringSubmatch(log.String()[from:], -1) {
				words = append(words, found[2])
			}
			if text := strings.Join(words, " "); text != row.logged {
				t.Errorf("%s: logged is %q, want %q", row.reason, log.String()[from:], row.logged)
			}
			time.Sleep(time.Minute)
		}
	})
}
