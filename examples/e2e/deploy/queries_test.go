// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/rulefmt"
	"sigs.k8s.io/yaml"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// alerts returns the rules by name. Prometheus's parser of rule files checks expressions and templates.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	spec, err := yaml.Marshal(build(t, monitored)["PrometheusRule"].(map[string]any)["spec"])
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(spec, false)
	if len(errs) > 0 || len(groups.Groups) != 1 {
		t.Fatalf("%v\n%s", errs, spec)
	}
	all := make(map[string]rulefmt.Rule)
	for _, r := range groups.Groups[0].Rules {
		all[strings.TrimPrefix(r.Alert, "HostlocalGC")] = r
	}
	return all
}

// Prometheus's own engine evaluates the alerts on the metrics of the library. In each scenario the alerts fire in the
// minutes that are listed, and no others do.
func TestAlerts(t *testing.T) {
	type passes = func(m int, now time.Time) []pass
	turns := func(all ...passes) passes {
		return func(m int, now time.Time) []pass { return all[(m+6)/11%len(all)](m, now) }
	}
	refused, failing := finding(errors.Join(gc.ErrRefused, errAway)), finding(errAway, gc.ReleaseFailed)
	timedOut, noPods := finding(errors.Join(gc.ErrRefused, gc.ErrSourceTimeout)), finding(errors.Join(gc.ErrRefused, gc.ErrNoPods))
	conflict := turns(finding(nil, gc.TwoPods), finding(nil, gc.OtherContainer))
	hanging := func(int, time.Time) []pass { return nil }
	filled := func(m int, now time.Time) []pass {
		return finding(nil, slices.Repeat([]gc.Reason{gc.ContainerLive}, map[bool]int{true: 10, false: 9}[m < 66])...)(m, now)
	}
	grows := func(every int) passes {
		return func(m int, now time.Time) []pass {
			return finding(nil, slices.Repeat([]gc.Reason{gc.ContainerLive}, min(2+m/every, 10))...)(m, now)
		}
	}
	rolling := func(m int, now time.Time) []pass {
		pods := 16
		if m < 11 { // the node starts
			pods = 0
		} else if m%60 >= 40 && m%60 < 51 {
			pods = 20
		}
		return finding(nil, slices.Repeat([]gc.Reason{gc.ContainerLive}, pods)...)(m, now)
	}
	fills := func(m int, now time.Time) []pass {
		return finding(nil, slices.Repeat([]gc.Reason{gc.ContainerLive}, min(70, m*70/15))...)(m, now)
	}
	with := func(of passes, change func(m int, r *gc.Report)) passes {
		return func(m int, now time.Time) []pass {
			p := of(m, now)
			change(m, &p[0].report)
			return p
		}
	}
	missing := func(_ int, r *gc.Report) { r.Missing = r.Networks }
	atRisk := func(m int, r *gc.Report) {
		r.Unreserved = []gc.Claim{{IP: netip.MustParseAddr("10.1.0.9")}}
		r.Duplicates = make([]gc.Claim, map[bool]int{true: 1}[m < 99])
	}
	everything := func(m int, now time.Time) []pass {
		return slices.Concat(refused(m, now), failing(m, now), with(with(conflict, missing), atRisk)(m, now))
	}
	trial, crashed := state{up: 1, dryRun: 1, desired: 1, ready: 1}, state{desired: 1}

	all := alerts(t)
	never := maps.Clone(all) // alerts that did not fire and end in any scenario
	for _, row := range []struct {
		reason string
		scenario
		want string // the minutes in which alerts fire, by name
	}{
		{"a healthy node, with passes as far apart as they get", scenario{}, ""},
		{"the source comes up a few minutes after the agent", scenario{to: 5, passes: refused}, ""},
		{"the path of the source's socket is wrong, and is corrected after an hour", scenario{to: 60, passes: refused},
			"NoGoodPass:31-66 PassesRefused:31-63 SourceNeverAnswered:15-66"},
		{"results that are refusals, by turns", scenario{to: 240, passes: turns(refused, timedOut, noPods)},
			"NoGoodPass:31- PassesRefused:31- SourceNeverAnswered:15-"},
		{"after an hour the source goes away, and comes back after two more", scenario{from: 60, to: 180, passes: refused},
			"NoGoodPass:114-187 PassesRefused:90-189"},
		{"the agent hangs: its metrics stay, and no pass comes", scenario{from: 60, to: 240, passes: hanging}, "NoGoodPass:114-"},
		{"each second pass finds what the next one does not", scenario{to: 240, passes: turns(good, everything)}, ""},
		{"a file can't be removed for two hours", scenario{from: 55, to: 175, passes: failing},
			"LeakHeldBack:156-176 NoGoodPass:103-176 ReleaseFailures:85-184"},
		{"the data directory is mounted read-only for two hours",
			scenario{to: 121, passes: good, state: state{up: 1, desired: 1, ready: 1, finding: "READ-ONLY"}}, "ReadOnly:15-121"},
		{"pods run, and the only network that is named has no directory",
			scenario{to: 121, passes: with(good, missing), state: state{up: 1, desired: 1, ready: 1, finding: "MISSING"}},
			"DirectoryMissing:60-121 NetworkMissing:15-121"},
		{"the network was renamed under its pods",
			scenario{to: 121, passes: good, state: state{up: 1, desired: 1, ready: 1, finding: "CONFIG"}}, "NetworkMissing:15-121"},
		{"another network has leaks", scenario{to: 121, passes: finding(nil, gc.NetworkNotNamed)}, "NetworkNotNamed:60-121"},
		{"each twenty minutes an address is lost, until the range is full and then larger", scenario{to: 220, passes: grows(20)},
			"RangeFullSoon:148-165 RangeNearlyFull:195-220"},
		{"the same, each two hours", scenario{to: 950, length: 950, passes: grows(120)}, ""},
		{"a healthy node: sixteen pods start at once, and all are replaced every hour", scenario{to: 1000, length: 1000, size: 30, passes: rolling}, ""},
		{"a node joins, and fills to seven tenths in a quarter of an hour", scenario{to: 300, length: 300, size: 100, passes: fills}, ""},
		{"a conflict stays, and its reason changes: a pod is listed now and then", scenario{to: 121, passes: conflict}, "Conflict:15-121"},
		{"the node is full, and later nine of ten addresses are reserved", scenario{to: 240, passes: filled}, "RangeNearlyFull:30-66"},
		{"also in dry run: the directory was removed under live pods, and two get one address",
			scenario{to: 110, passes: with(good, atRisk), state: trial}, "Duplicate:15-99 Unreserved:15-110"},
		{"the network's name is mistyped, for two hours", scenario{to: 121, passes: with(good, missing)}, "DirectoryMissing:60-121"},
		{"a pod does not come up until it is deleted", scenario{to: 209, passes: finding(nil, gc.PodStarting)}, "LeakHeldBack:151-209"},
		{"in dry run leaks stay, for a day and more",
			scenario{to: 1500, passes: finding(nil, gc.NotTried), state: trial, length: 26 * 60}, "DryRun:1440-1500"},
		{"the agent starts again, and is away for five minutes", scenario{from: 60, to: 65, passes: hanging, state: crashed}, ""},
		{"the only agent crashes: its metrics are stale after five minutes",
			scenario{from: 60, to: 150, passes: good, state: crashed}, "AgentDown:75-150 AgentsMissing:90-150 NoAgents:79-150"},
		{"another node joins, and can't pull the image for an hour",
			scenario{from: 60, to: 120, passes: good, state: state{up: 1, desired: 2, ready: 1}}, "AgentsMissing:90-120"},
		{"the monitor is not selected",
			scenario{from: 60, to: 150, passes: good, state: state{up: -1, desired: 1, ready: 1}}, "NoAgents:79-150"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			row.length = max(row.length, 4*60)
			stored, got := row.run(t), []string{}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				if minutes := fires(t, stored, row.length, all[name]); minutes != "" {
					got = append(got, name+":"+minutes)
					if !strings.HasSuffix(minutes, "-") {
						delete(never, name)
					}
				}
			}
			if diff := cmp.Diff(strings.Fields(row.want), got); diff != "" {
				t.Errorf("minutes in which alerts fire (-want +got):\n%s", diff)
			}
		})
	}
	if len(never) > 0 {
		t.Errorf("these fire and end in no scenario: %q", slices.Sorted(maps.Keys(never)))
	}
}

// fires returns the minutes in which an alert fires, as "15-60". The end is missing if it still fires when the
// scenario ends. The result must have the labels that texts of the alert use.
func fires(t *testing.T, stored stored, length int, r rulefmt.Rule) (minutes string) {
	t.Helper()
	firing := make([]bool, length+1)
	for _, series := range stored.query(t, r.Expr, 0, length-1, submatches(`\$labels\.(\w+)`, fmt.Sprint(r.Annotations))...) {
		since := 0
		for i, point := range series.Floats {
			if i > 0 && point.T-series.Floats[i-1].T > time.Minute.Milliseconds() {
				since = i
			}
			if point.T-series.Floats[since].T >= time.Duration(r.For).Milliseconds() {
				firing[int(time.UnixMilli(point.T).Sub(begin).Minutes())] = true
			}
		}
	}
	for m := range length {
		if firing[m] && (m == 0 || !firing[m-1]) {
			minutes += fmt.Sprintf("%d-", m)
		} else if m > 0 && firing[m-1] && !firing[m] {
			minutes += fmt.Sprint(m)
		}
	}
	return minutes
}

// Each alert has its texts, and links to its chapter of README.md. There is no other chapter.
func TestRunbook(t *testing.T) {
	readme := read(t, "README.md")
	var names []string
	for _, r := range alerts(t) {
		want := "https://github.com/hostlocal-gc/hostlocal-gc/blob/HEAD/examples/hostlocal-gc/deploy/README.md#" + strings.ToLower(r.Alert)
		a := r.Annotations
		if a["runbook_url"] != want || a["summary"] == "" || a["description"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s lacks the severity, a text or its link %s: %v %v", r.Alert, want, r.Labels, a)
		}
		names = append(names, r.Alert)
	}
	slices.Sort(names)
	for what, found := range map[string][]string{
		"chapters that say what to do": submatches(`(?m)^### (.*)\n\n[^#]+?\n1\. `, readme),
		"chapters":                     submatches(`(?m)^### (.*)`, readme),
	} {
		if diff := cmp.Diff(names, slices.Sorted(slices.Values(found))); diff != "" {
			t.Errorf("%s (-alerts +found):\n%s", what, diff)
		}
	}
}

// On a node with everything that a report can have, each query of the dashboard has a result with the labels of its
// legend, and each metric is shown.
func TestDashboard(t *testing.T) {
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	data := build(t, monitored)["Dashboard"].(map[string]any)["data"].(map[string]any)
	if err := json.Unmarshal([]byte(data["hostlocal-gc.json"].(string)), &board); err != nil {
		t.Fatal(err)
	}
	const end = 60
	var reasons []gc.Reason
	for r := gc.Reason(1); r.String() != ""; r++ {
		reasons = append(reasons, r)
	}
	everything := scenario{length: end + 1, to: end + 1, passes: func(m int, now time.Time) []pass {
		return slices.Concat(finding(errAway, reasons...)(m, now), finding(nil, reasons...)(m, now))
	}}
	stored := everything.run(t)
	check := func(title, expr string, labels ...string) {
		t.Helper()
		if len(stored.query(t, expr, end, end, labels...)) == 0 {
			t.Errorf("%s: %s has no result", title, expr)
		}
	}
	var variables []string
	for _, v := range board.Templating.List {
		variables = append(variables, "$"+v.Name, map[bool]string{true: "1h", false: ".*"}[v.Name == "window"])
		if v.Definition != "" {
			metric, label, _ := strings.Cut(strings.TrimPrefix(v.Definition, "label_values("), ", ")
			check("variable "+v.Name, metric, strings.TrimSuffix(label, ")"))
		}
	}
	shown := ""
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer(variables...).Replace(target.Expr)
			check(p.Title, expr, submatches(`{{\s*(\w+)\s*}}`, target.LegendFormat)...)
			for _, values := range submatches(`=~"(\w[^"]*)"`, expr) {
				for value := range strings.SplitSeq(values, "|") { // each must exist
					check(p.Title, strings.Replace(expr, values, value, 1))
				}
			}
			shown += expr + "\n"
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
	}
	for _, series := range stored.query(t, `group by (__name__) ({__name__=~"hostlocal_gc_.*"})`, end, end) {
		name := strings.NewReplacer("_bucket", "", "_sum", "", "_count", "").Replace(series.Metric.Get("__name__"))
		if !strings.Contains(shown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
