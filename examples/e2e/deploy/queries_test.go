// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// A panel is the part of a dashboard's panel that tests check.
type panel struct {
	ID      int
	Type    string
	Title   string
	GridPos struct{ X, Y, W, H int }
	Targets []struct {
		RefID        string
		Expr         string
		LegendFormat string
		Datasource   struct{ UID string }
	}
}

// dashboard reads the dashboard from its generated ConfigMap.
func dashboard(t *testing.T) (panels []panel, variables map[string]string) {
	t.Helper()
	config := build(t, monitored).dashboard
	if config.Labels["grafana_dashboard"] != "1" || len(config.Data) != 1 {
		t.Fatalf("ConfigMap %s has labels %v and %d files", config.Name, config.Labels, len(config.Data))
	}
	var board struct {
		Panels     []panel
		Templating struct {
			List []struct {
				Name       string
				Definition string
			}
		}
	}
	if err := json.Unmarshal([]byte(config.Data["hostlocal-gc.json"]), &board); err != nil {
		t.Fatal(err)
	}
	variables = make(map[string]string)
	for _, v := range board.Templating.List {
		variables[v.Name] = v.Definition
	}
	return board.Panels, variables
}

// plainQuery replaces the dashboard's variables.
var plainQuery = strings.NewReplacer("$network", ".*", "$instance", ".*", "$window", "1h")

// Every query of the dashboard is valid PromQL and uses metrics, labels and values of labels that
// the library has. Legends use labels of the result.
func TestDashboardQueries(t *testing.T) {
	have := exposed(t)
	panels, variables := dashboard(t)
	shown := make(map[string]bool)
	for _, p := range panels {
		for _, target := range p.Targets {
			expr, err := parser.ParseExpr(plainQuery.Replace(target.Expr))
			if err != nil {
				t.Errorf("%s: %s: %v", p.Title, target.Expr, err)
				continue
			}
			result, problems := check(expr, have)
			for _, m := range regexp.MustCompile(`{{\s*(\w+)\s*}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !result[m[1]] {
					problems = append(problems, fmt.Sprintf("the legend %q names a label that the result has not", target.LegendFormat))
				}
			}
			for _, problem := range problems {
				t.Errorf("%s: %s: %s", p.Title, target.Expr, problem)
			}
			names(expr, shown)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
	}
	// Every metric is on the dashboard. Of a histogram the buckets suffice.
	for name := range have {
		if base, ok := strings.CutSuffix(name, "_sum"); ok && shown[base+"_bucket"] {
			continue
		}
		if base, ok := strings.CutSuffix(name, "_count"); ok && shown[base+"_bucket"] {
			continue
		}
		if !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
	for name, definition := range variables {
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(definition)
		if definition == "" {
			continue // the data source and the window have no query
		}
		if m == nil {
			t.Errorf("variable %s: %q is no query for values of a label", name, definition)
			continue
		}
		expr, err := parser.ParseExpr(plainQuery.Replace(m[1]))
		if err != nil {
			t.Errorf("variable %s: %v", name, err)
			continue
		}
		if result, problems := check(expr, have); len(problems) > 0 || !result[m[2]] {
			t.Errorf("variable %s: %s: %v, labels %v", name, definition, problems, slices.Sorted(maps.Keys(result)))
		}
	}
}

// Grafana draws overlapping panels over each other, and confuses panels with the same ID.
func TestDashboardPanelsHaveTheirPlaces(t *testing.T) {
	panels, variables := dashboard(t)
	if diff := cmp.Diff([]string{"datasource", "instance", "network", "window"}, slices.Sorted(maps.Keys(variables))); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	for i, p := range panels {
		a := p.GridPos
		if a.X < 0 || a.W <= 0 || a.H <= 0 || a.X+a.W > 24 {
			t.Errorf("%s is at %+v of a grid 24 wide", p.Title, a)
		}
		for _, q := range panels[:i] {
			b := q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies over %s", p.Title, q.Title)
			}
			if p.ID == q.ID {
				t.Errorf("%s and %s have ID %d", p.Title, q.Title, p.ID)
			}
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("%s asks data source %q", p.Title, target.Datasource.UID)
			}
		}
	}
}

// rules returns the alerts, parsed by Prometheus's parser of rule files, which checks expressions
// and templates.
func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	spec, err := yaml.Marshal(build(t, monitored).rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(spec, false)
	if len(errs) > 0 {
		t.Fatalf("%v\n%s", errs, spec)
	}
	if len(groups.Groups) != 1 {
		t.Fatalf("%d groups", len(groups.Groups))
	}
	return groups.Groups[0].Rules
}

// Every alert uses metrics, labels and values that the library has. Its texts say what is wrong and
// what to do, and use labels of the result.
func TestAlertQueries(t *testing.T) {
	have := exposed(t)
	maps.Copy(have, elsewhere(t))
	all := rules(t)
	for _, r := range all {
		expr, err := parser.ParseExpr(r.Expr)
		if err != nil {
			t.Errorf("%s: %v", r.Alert, err)
			continue
		}
		result, problems := check(expr, have)
		for _, key := range []string{"summary", "description"} {
			if r.Annotations[key] == "" {
				t.Errorf("%s has no %s", r.Alert, key)
			}
			for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(r.Annotations[key], -1) {
				if !result[m[1]] {
					problems = append(problems, fmt.Sprintf("its %s names the label %s, which it has not", key, m[1]))
				}
			}
		}
		for _, problem := range problems {
			t.Errorf("%s: %s: %s", r.Alert, r.Expr, problem)
		}
		for _, other := range all {
			if other.Alert == r.Alert && other.Expr != r.Expr || other.Alert != r.Alert && other.Expr == r.Expr {
				t.Errorf("%s and %s are alike", r.Alert, other.Alert)
			}
		}
		if r.For == 0 || r.Labels["severity"] == "" {
			t.Errorf("%s waits for %v and has severity %q", r.Alert, r.For, r.Labels["severity"])
		}
	}
}

// Each alert links to its chapter of the runbook, and there is no other chapter. README.md lists
// each alert.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile(manifestsDir + "/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(manifestsDir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var alerts, chapters, listed []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)\n\n([^#]+)`).FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(m[2], "\n1. ") {
			t.Errorf("%s does not say what to do", m[1])
		}
		chapters = append(chapters, m[1])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(Hostlocal\\w+)` \\|").FindAllStringSubmatch(string(readme), -1) {
		listed = append(listed, m[1])
	}
	for _, r := range rules(t) {
		alerts = append(alerts, r.Alert)
		want := "https://github.com/hostlocal-gc/hostlocal-gc/blob/HEAD/examples/hostlocal-gc/deploy/runbook.md#" + strings.ToLower(r.Alert)
		if r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q", r.Alert, r.Annotations["runbook_url"])
		}
	}
	slices.Sort(alerts)
	slices.Sort(chapters)
	slices.Sort(listed)
	if diff := cmp.Diff(alerts, chapters); diff != "" {
		t.Errorf("chapters of the runbook (-alerts +chapters):\n%s", diff)
	}
	if diff := cmp.Diff(alerts, listed); diff != "" {
		t.Errorf("alerts in README.md (-alerts +listed):\n%s", diff)
	}
	for _, m := range regexp.MustCompile(`\]\(#(\w+)\)`).FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(chapters, func(c string) bool { return strings.ToLower(c) == m[1] }) {
			t.Errorf("the runbook leads to a chapter %s that it does not have", m[1])
		}
	}
}

// names adds all metrics that an expression selects.
func names(expr parser.Expr, into map[string]bool) {
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			into[v.Name] = true
		}
		return nil
	})
}

// check returns the labels of an expression's result, and an error for each part that uses unknown
// metrics, labels or values.
func check(expr parser.Expr, have map[string]map[string]map[string]bool) (result map[string]bool, problems []string) {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return selects(e, have)
	case *parser.MatrixSelector:
		return check(e.VectorSelector, have)
	case *parser.ParenExpr:
		return check(e.Expr, have)
	case *parser.Call:
		if e.Func.Name == "absent" { // its result has no labels but those that the selector matches
			_, problems = check(e.Args[0], have)
			return nil, problems
		}
		result = make(map[string]bool)
		for _, arg := range e.Args {
			of, more := check(arg, have)
			problems = append(problems, more...)
			maps.Copy(result, of)
		}
		if e.Func.Name == "histogram_quantile" {
			if !result["le"] {
				problems = append(problems, "no le is left for the quantile")
			}
			delete(result, "le")
		}
		return result, problems
	case *parser.AggregateExpr:
		result, problems = check(e.Expr, have)
		for _, l := range e.Grouping {
			if !result[l] {
				problems = append(problems, "there is no label "+l+" to group by")
			}
		}
		switch {
		case e.Op == parser.TOPK:
			return result, problems // it selects series and keeps their labels
		case e.Without:
			maps.DeleteFunc(result, func(l string, _ bool) bool { return slices.Contains(e.Grouping, l) })
		default:
			maps.DeleteFunc(result, func(l string, _ bool) bool { return !slices.Contains(e.Grouping, l) })
		}
		return result, problems
	case *parser.BinaryExpr:
		left, problems := check(e.LHS, have)
		right, more := check(e.RHS, have)
		problems = append(problems, more...)
		if e.VectorMatching != nil && e.VectorMatching.On {
			for _, l := range e.VectorMatching.MatchingLabels {
				if !left[l] || !right[l] {
					problems = append(problems, "its sides do not both have the label "+l)
				}
			}
			if e.Op != parser.LUNLESS {
				problems = append(problems, "this test does not know what "+e.Op.String()+" on some labels has")
			}
			return left, problems
		}
		if e.LHS.Type() == parser.ValueTypeVector && e.RHS.Type() == parser.ValueTypeVector && !maps.Equal(left, right) {
			problems = append(problems, "its sides have different labels and never meet")
		}
		if e.LHS.Type() != parser.ValueTypeVector {
			return right, problems
		}
		return left, problems
	case *parser.NumberLiteral:
		return nil, nil
	}
	return nil, []string{fmt.Sprintf("this test does not know a %T", expr)}
}

// selects does the same for a selector.
func selects(e *parser.VectorSelector, have map[string]map[string]map[string]bool) (result map[string]bool, problems []string) {
	metric, ok := have[e.Name]
	if !ok {
		return nil, []string{"there is no metric " + e.Name}
	}
	for _, m := range e.LabelMatchers {
		if m.Name == labels.MetricName {
			continue
		}
		values, ok := metric[m.Name]
		if !ok {
			problems = append(problems, e.Name+" has no label "+m.Name)
			continue
		}
		wanted := []string{m.Value}
		switch {
		case m.Type == labels.MatchEqual:
		case m.Type == labels.MatchRegexp && m.Value == ".*": // one of the dashboard's variables
			continue
		case m.Type == labels.MatchRegexp && regexp.MustCompile(`^[\w|-]+$`).MatchString(m.Value):
			wanted = strings.Split(m.Value, "|")
		default:
			problems = append(problems, "this test does not know what "+m.String()+" means")
		}
		for _, v := range wanted {
			if !values[v] {
				problems = append(problems, fmt.Sprintf("%s has no %s %q", e.Name, m.Name, v))
			}
		}
	}
	result = make(map[string]bool)
	for l := range metric {
		result[l] = true
	}
	return result, problems
}
