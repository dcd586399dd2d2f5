// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A pass is what OnReport is called with.
type pass struct {
	report gc.Report
	err    error
}

var (
	errAway    = errors.New("server is away")
	errRefused = fmt.Errorf("%w: %w", gc.ErrRefused, errAway)
	started    = time.Unix(1700000000, 500e6)
)

// entry is a reservation that was made so long before started. Zero is unknown.
func entry(reason gc.Reason, age time.Duration) gc.Entry {
	r := &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr("10.0.0.2"), ContainerID: "abc"}
	if age != 0 {
		r.ReservedAt = started.Add(-age)
	}
	return gc.Entry{Reservation: r, Reason: reason, Verdict: reason.Verdict()}
}

// in is an entry of another network, of which there is one: the first by name.
func in(network string, e gc.Entry) gc.Entry {
	e.Network = network
	return e
}

// reportOf is the report of a pass that was to release in podnet and took a
// second.
func reportOf(entries ...gc.Entry) gc.Report {
	return gc.Report{Networks: []gc.Network{{Name: "podnet"}}, Started: started, Duration: time.Second, Reservations: entries}
}

// shown returns what a scrape of c shows of the metrics with these names, without
// comments and the common prefix.
func shown(t *testing.T, c *Collector, names ...string) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("scrape: %s", answer.Body)
	}
	var lines strings.Builder
	for line := range strings.Lines(answer.Body.String()) {
		line = strings.TrimPrefix(line, "hostlocal_gc_")
		if name := line[:strings.IndexAny(line, "{ ")]; slices.Contains(names, name) {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// compare holds all that c shows against a file in testdata.
func compare(t *testing.T, c *Collector, file string) {
	t.Helper()
	want, err := os.Open(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = want.Close() }()
	if err := testutil.CollectAndCompare(c, want); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}

// reserve writes a reservation that is so old.
func reserve(t *testing.T, dataDir, ip, content string, age time.Duration) {
	t.Helper()
	file := filepath.Join(dataDir, "podnet", ip)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
}
