// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// On a node with everything that a report can have, each query of the dashboard has a result with the labels of its
// legend, and each metric is shown.
func TestDashboard(t *testing.T) {
	var board struct {
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct {
				Expr, LegendFormat string
				Datasource         struct{ UID string }
			}
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
	everything := scenario{length: end + 1, to: end + 1, passes: func(_ int, now time.Time) []pass {
		return slices.Concat(newPass(now, errAway, time.Hour, gc.Reasons()...), newPass(now, nil, time.Hour, gc.Reasons()...))
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

	shown, ids, cells := "", make(map[int]bool), make(map[[2]int]bool)
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer(variables...).Replace(target.Expr)
			check(p.Title, expr, submatches(`{{\s*(\w+)\s*}}`, target.LegendFormat)...)
			for _, values := range submatches(`=~"(\w[^"]*)"`, expr) {
				for value := range strings.SplitSeq(values, "|") { // each must exist
					check(p.Title, strings.Replace(expr, values, value, 1))
				}
			}
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("%s asks data source %q", p.Title, target.Datasource.UID)
			}
			shown += expr + "\n"
		}
		if p.Type != "row" && len(p.Targets) == 0 || ids[p.ID] {
			t.Errorf("%s shows nothing, or has the ID %d of another", p.Title, p.ID)
		}
		ids[p.ID] = true
		for i := range p.GridPos.W * p.GridPos.H {
			cell := [2]int{p.GridPos.X + i%p.GridPos.W, p.GridPos.Y + i/p.GridPos.W}
			if cells[cell] || cell[0] >= 24 {
				t.Fatalf("%s lies over another panel, or outside of the grid", p.Title)
			}
			cells[cell] = true
		}
	}
	for _, series := range stored.query(t, `group by (__name__) ({__name__=~"hostlocal_gc_.*"})`, end, end) {
		name := strings.NewReplacer("_bucket", "", "_sum", "", "_count", "").Replace(series.Metric.Get("__name__"))
		if !strings.Contains(shown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
