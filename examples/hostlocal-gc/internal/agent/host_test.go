// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A browser on the node, or with a forwarded port, must not let a page of another site read the
// agent's answers, even if that site's name resolves to loopback.
func TestHostHeader(t *testing.T) {
	a := bare(Options{Listen: "agent.example:9776", MetricsListen: "metrics.example:9777", Node: "node-1"})
	for _, row := range []struct {
		reason, host string
		ok           bool
	}{
		{"loopback", "127.0.0.1:9776", true},
		{"loopback, IPv6", "[::1]:9776", true},
		{"IPv6 without a port", "[::1]", true},
		{"the node's address, as probes and Prometheus have it", "192.0.2.7:9777", true},
		{"a port that was forwarded", "localhost:8080", true},
		{"the name to listen on", "agent.example:9776", true},
		{"the name to serve metrics on", "metrics.example:9777", true},
		{"the node's name", "node-1", true},
		{"another site", "attacker.example:9776", false},
		{"another site, whose name begins as an address", "127.0.0.1.attacker.example", false},
		{"none", "", false},
	} {
		for kind, handler := range map[string]http.Handler{"all": a.handler(), "metrics": a.metricsHandler()} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil)
			r.Host = row.host
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if got := w.Code == http.StatusOK; got != row.ok || !row.ok && w.Code != http.StatusMisdirectedRequest {
				t.Errorf("%s, endpoints: %s: Host %q gives %d", row.reason, kind, row.host, w.Code)
			}
		}
	}
	// The address for metrics does not serve pods' names, which an error may have.
	a.statuses.note(gc.Report{}, nil, nil, nil) // nothing is reserved, so it asked no source, and is not ready
	a.statuses.note(gc.Report{}, errAway, nil, nil)
	for path, want := range map[string]string{"/readyz": "503 was refused", debugPath: "404 not found"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Host = "127.0.0.1"
		all, metrics := httptest.NewRecorder(), httptest.NewRecorder()
		a.handler().ServeHTTP(all, r)
		a.metricsHandler().ServeHTTP(metrics, r)
		code, text, _ := strings.Cut(want, " ")
		if got := metrics.Body.String(); strconv.Itoa(metrics.Code) != code || !strings.Contains(got, text) ||
			strings.Contains(got, errAway.Error()) || !strings.Contains(all.Body.String(), errAway.Error()) {
			t.Errorf("%s gives %d %s\nand beside the metrics %d %s", path, all.Code, all.Body, metrics.Code, got)
		}
	}
}
