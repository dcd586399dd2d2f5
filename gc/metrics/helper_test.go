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

// A pass has the arguments of OnReport.
type pass struct {
	report gc.Report
	err    error
}

var (
	errDown    = errors.New("server is down")
	errRefused = fmt.Errorf("%w: %w", gc.ErrRefused, errDown)
	started    = time.Unix(1700000000, 500e6)
)

// entry returns an entry whose reservation was made age before started. Zero is unknown.
func entry(reason gc.Reason, age time.Duration) gc.Entry {
	r := &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr("10.0.0.2"), ContainerID: "abc"}
	if age != 0 {
		r.ReservedAt = started.Add(-age)
	}
	return gc.Entry{Reservation: r, Reason: reason, Verdict: reason.Verdict()}
}

// in returns the entry in another network.
func in(network string, e gc.Entry) gc.Entry {
	e.Network = network
	return e
}

// reportOf returns the report of a pass over podnet that took a second.
func reportOf(entries ...gc.Entry) gc.Report {
	return gc.Report{Networks: []string{"podnet"}, Started: started, Duration: time.Second, Reservations: entries}
}

// shown returns the lines of a scrape of c for the metrics with these names, without comments
// and the common prefix.
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

// compare compares all metrics of c with a file in testdata.
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

// reserve writes a reservation of that age.
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
