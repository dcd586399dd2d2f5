// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// serving serves an agent until the test ends, also with open connections. dial sends a text on a connection of its own.
func serving(t *testing.T, a *Agent) (dial func(text string) net.Conn) {
	ctx, cancel := context.WithCancel(t.Context())
	l := bufconn.Listen(1) // synctest's clock does not wait for a network
	ended := make(chan error, 1)
	go func() { ended <- (server{l, a.handler()}).serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(text string) net.Conn {
		client, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(client, text) }() // fails once the agent closes it
		synctest.Wait()
		return client
	}
}

// request is that for a path.
func request(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n" }

// code reads an answer and returns its status.
func code(t *testing.T, c net.Conn) int {
	t.Helper()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode
}

// However many connections others hold, and whether they have sent a part of a request, a health check is
// answered. The number is limited: the one that did nothing for longest is closed.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := serving(t, withoutPasses(Options{}))
		held := make([]net.Conn, maxConns)
		for i := range held {
			held[i] = dial([]string{"", "GET /heal"}[i%2])
		}
		if _, err := io.WriteString(held[0], request("/healthz")); err != nil || code(t, held[0]) != http.StatusOK {
			t.Errorf("one of them gets no answer: %v", err)
		}
		synctest.Wait()
		for i := range 3 {
			if got := code(t, dial(request("/healthz"))); got != http.StatusOK {
				t.Errorf("health check %d beside %d connections gets %d", i, maxConns, got)
			}
		}
		synctest.Wait()
		var closed []int
		for i := range held {
			_ = held[i].SetReadDeadline(time.Now())
			if _, err := held[i].Read(make([]byte, 1)); errors.Is(err, io.EOF) {
				closed = append(closed, i)
			}
		}
		if !slices.Equal(closed, []int{1, 2, 3}) {
			t.Errorf("closed are %v", closed)
		}
	})
}

// Clients that ask for the report and do not read it hold a limited number of reports in memory,
// for a limited time. /healthz answers meanwhile.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withoutPasses(Options{})
		var report gc.Report
		for i := range 200 {
			report.Reservations = append(report.Reservations, entry(fmt.Sprintf("10.0.0.%d", i), "c", gc.Unowned))
		}
		a.note(report, nil, nil)
		dial := serving(t, a)
		for _, path := range []string{debugPath, debugPath + "?format=html"} {
			for range maxReports {
				dial(request(path))
			}
			if got := code(t, dial(request(path))); got != http.StatusServiceUnavailable {
				t.Errorf("beside those who do not read, %s gives %d", path, got)
			}
			if got := code(t, dial(request("/healthz"))); got != http.StatusOK {
				t.Errorf("beside them, /healthz gives %d", got)
			}
			time.Sleep(writeTime)
			synctest.Wait()
			if got := code(t, dial(request(path))); got != http.StatusOK {
				t.Errorf("later, %s gives %d", path, got)
			}
		}
	})
}

// A browser on the node, or with a forwarded port, must not let a page of another site read the
// agent's answers, even if that site's name resolves to loopback.
func TestHostHeader(t *testing.T) {
	a := withoutPasses(Options{Node: "node-1"})
	for _, row := range []struct {
		reason, host string
		ok           bool
	}{
		{"loopback", "127.0.0.1:9776", true},
		{"loopback, IPv6", "[::1]:9776", true},
		{"IPv6 without a port", "[::1]", true},
		{"the node's address, as probes and Prometheus have it", "192.0.2.7:9777", true},
		{"a port that was forwarded", "localhost:8080", true},
		{"the node's name", "node-1", true},
		{"another site", "attacker.example:9776", false},
		{"another site, whose name begins as an address", "127.0.0.1.attacker.example", false},
		{"none", "", false},
	} {
		for kind, handler := range map[string]http.Handler{"all": a.handler(), "metrics": a.metricsHandler()} {
			w := ask(handler, http.MethodGet, row.host, "/healthz", "")
			if got := w.Code == http.StatusOK; got != row.ok || !row.ok && w.Code != http.StatusMisdirectedRequest {
				t.Errorf("%s, endpoints: %s: Host %q gives %d", row.reason, kind, row.host, w.Code)
			}
		}
	}
	if got := beside(a, "127.0.0.1", debugPath); got.Code != http.StatusNotFound {
		t.Errorf("the address for metrics serves the report: %d", got.Code)
	}
}

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
