// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// What all endpoints say of a pass, by whom they are asked.
func TestEndpoints(t *testing.T) {
	a := withoutPasses(Options{})
	released, other := entry("10.1.0.4", "leaked", gc.ReleasedLeak), entry("10.3.0.2", "leaked", gc.NetworkNotNamed)
	other.Network = "others"
	a.note(gc.Report{Networks: []string{"n"}, Started: at, Reservations: []gc.Entry{released, other}, Looks: 1}, nil, nil)
	a.hookEnded()
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, row := range []struct {
		reason, method, path, accept string
		status                       int
		kind, body                   string
	}{
		{"it lives", "GET", "/healthz", "", 200, "text/plain", "ok"},
		{"the hook has ended", "GET", "/readyz", "", 200, "text/plain", "ok"},
		{"of the collector", "GET", "/metrics", "", 200, "text/plain", "hostlocal_gc_released_total{network=\"n\"} 1\n"},
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
	// A page has no active content, and headers that forbid it.
	page := get(a, debugPath+"?format=html")
	for _, text := range []string{"<script", "<img", "<iframe", "<link", "javascript:", "//", "@import", "url(", "style="} {
		if strings.Contains(page.Body.String(), text) {
			t.Errorf("the page has %q", text)
		}
	}
	_, rest, _ := strings.Cut(page.Body.String(), "<style>")
	css, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(css)) // as a browser computes it
	for name, value := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Vary": "Accept",
		"Content-Security-Policy": "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	} {
		if got := page.Header().Get(name); got != value {
			t.Errorf("the page's %s is %q, want %q", name, got, value)
		}
	}
}

// valid checks that a JSON has the format of the command's report.
func valid(t *testing.T, text string) {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "testdata", "report.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err := errors.Join(err, s.Validate(value)); err != nil {
		t.Error(err)
	}
}
