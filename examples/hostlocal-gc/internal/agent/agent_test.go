// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What a pass does, and what all endpoints say of it.
func TestAgent(t *testing.T) {
	dir, conf := t.TempDir(), filepath.Join(t.TempDir(), "podnet.conf")
	verdicts := make(map[string]string)
	files := make(map[string]string)
	for _, row := range []struct {
		network, ip, container string
		age                    time.Duration
		verdict                string
	}{
		{"podnet", "10.1.0.2", "live", time.Hour, "in-use"},
		{"podnet", "10.1.0.3", "by-address", time.Hour, "in-use"},
		{"podnet", "10.1.0.4", "leaked", time.Hour, "released"},
		{"podnet", "10.1.0.5", "young", 0, "young"},
		{"storage", "10.2.0.2", "by-address", time.Hour, "in-use"}, // R3
		{"storage", "10.2.0.3", "leaked", time.Hour, "released"},
		{"others", "10.3.0.2", "leaked", time.Hour, "leaked"}, // R14
	} {
		files[row.ip] = cnitest.Reserve(t, dir, row.network, row.ip, sandbox(row.container), row.age)
		verdicts[row.ip] = row.verdict
	}
	cnitest.Write(t, conf, `{"cniVersion":"1.0.0","name":"podnet","type":"bridge",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.2","rangeEnd":"10.1.0.19"}]]}}`, 0)
	pods := append(livePod(), podsource.Pod{IPs: []netip.Addr{netip.MustParseAddr("10.1.0.3")}})
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return podsource.Answer{Source: "file", Networks: []string{podsource.EveryNetwork}, Pods: pods}, nil
	})
	a, _ := logging(t, Options{DataDir: dir, Networks: []string{"podnet", "storage"}, Source: source, CNIConf: []string{conf}, Node: "node-1",
		SourceNames: []string{"cnicache:" + dir}})
	if _, err := a.reconciler.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	page := get(a, debugPath+"?format=html")
	if diff := cmp.Diff(verdicts, verdictsOf(t, get(a, debugPath).Body.String())); diff != "" {
		t.Errorf("JSON, verdicts (-want +got):\n%s", diff)
	}
	for ip, verdict := range verdicts {
		if cnitest.Exists(files[ip]) != (verdict != "released") || !strings.Contains(page.Body.String(), ">"+ip+"<") {
			t.Errorf("%s is %s; its file is there: %t, or the page lacks it", ip, verdict, cnitest.Exists(files[ip]))
		}
	}
	checkPage(t, page)
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, row := range []struct {
		reason, method, path, accept string
		status                       int
		kind, body                   string
	}{
		{"it lives", "GET", "/healthz", "", 200, "text/plain", "ok"},
		{"the hook has ended", "GET", "/readyz", "", 200, "text/plain", "ok"},
		{"of the collector", "GET", "/metrics", "", 200, "text/plain", "hostlocal_gc_released_total{network=\"podnet\"} 1\n"},
		{"of the collector, of another network", "GET", "/metrics", "", 200, "text/plain",
			"hostlocal_gc_reservations{network=\"others\",reason=\"network-not-named\",verdict=\"leaked\"} 1\n"},
		{"of the process", "GET", "/metrics", "", 200, "text/plain", "go_goroutines"},
		{"a program takes anything", "GET", debugPath, "*/*", 200, "application/json", `"verdict"`},
		{"a browser", "GET", debugPath, browser, 200, "text/html", "<!DOCTYPE html>"},
		{"the format wins", "GET", debugPath + "?format=json", browser, 200, "application/json", `"verdict"`},
		{"the root redirects to the page", "GET", "/", "", 302, "text/html", debugPath},
		{"a head", "HEAD", debugPath, "", 200, "application/json", ""},
		{"read only", "POST", debugPath, "", 405, "text/plain", "Method Not Allowed"},
		{"no such thing", "GET", "/debug/pprof/", "", 404, "text/plain", "not found"},
	} {
		got := ask(a.handler(), row.method, "localhost", row.path, row.accept)
		kind := got.Header().Get("Content-Type")
		if got.Code != row.status || !strings.HasPrefix(kind, row.kind) || !strings.Contains(got.Body.String(), row.body) {
			t.Errorf("%s %s for %q gives %d, %s, without %q: %s\n%.300s", row.method, row.path, row.accept,
				got.Code, kind, row.body, row.reason, got.Body)
		}
	}
}

// checkPage checks what a page says, that it has no active content, and the headers that forbid it.
func checkPage(t *testing.T, page *httptest.ResponseRecorder) {
	t.Helper()
	body := page.Body.String()
	for _, text := range []string{"<script", "<img", "<iframe", "<link", "javascript:", "//", "@import", "url(", "style="} {
		if strings.Contains(body, text) {
			t.Errorf("the page has %q", text)
		}
	}
	for _, text := range []string{"<small>on node-1</small>", "younger than the minimum age", "10.1.0.2 to 10.1.0.19",
		"<h2>others <small>only read", "<p>Sources: file (2 entries).</p>", "<p>4 reservations: 2 in-use, 1 young, 1 released.</p>"} {
		if !strings.Contains(body, text) {
			t.Errorf("the page lacks %q", text)
		}
	}
	_, rest, _ := strings.Cut(body, "<style>")
	css, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(css)) // as a browser computes it
	for name, value := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Vary": "Accept",
		"Content-Security-Policy": "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	} {
		if got := page.Header().Get(name); got != value {
			t.Errorf("the page's %s is %q, want %q", name, got, value)
		}
	}
}

// verdictsOf parses the JSON, which must have the format of the command's report.
func verdictsOf(t *testing.T, text string) map[string]string {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "testdata", "report.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(value); err != nil {
		t.Error(err)
	}
	var report struct {
		Reservations []struct{ IP, Verdict string }
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, e := range report.Reservations {
		out[e.IP] = e.Verdict
	}
	return out
}
