// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An agent shows what its passes do.
func Example() {
	// Two pods had addresses since an hour ago. One of them is no more, and
	// nobody called DEL.
	dataDir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dataDir) }()
	for ip, owner := range map[string]string{"10.0.0.2": "sandbox1\r\neth0", "10.0.0.3": "sandbox2\r\neth0"} {
		if err := reserve(filepath.Join(dataDir, "podnet"), ip, owner); err != nil {
			fmt.Println(err)
			return
		}
	}

	collector := metrics.New("podnet")
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)

	store, err := hostlocal.New(dataDir, "podnet")
	if err != nil {
		fmt.Println(err)
		return
	}
	source := podsource.Static{{ContainerIDs: []string{"sandbox1"}}}
	r := gc.New(store, source, gc.Options{OnReport: collector.OnReport})
	if _, err := r.Reconcile(context.Background()); err != nil {
		fmt.Println(err)
	}

	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{}) // of the agent's /metrics
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "hostlocal_gc_re") || strings.HasPrefix(line, "hostlocal_gc_passes") {
			fmt.Print(line)
		}
	}
	// Output:
	// hostlocal_gc_passes_total{network="podnet",result="failed"} 0
	// hostlocal_gc_passes_total{network="podnet",result="ok"} 1
	// hostlocal_gc_passes_total{network="podnet",result="refused"} 0
	// hostlocal_gc_release_failures_total{network="podnet"} 0
	// hostlocal_gc_released_total{network="podnet"} 1
	// hostlocal_gc_reservations{network="podnet",verdict="changed"} 0
	// hostlocal_gc_reservations{network="podnet",verdict="conflict"} 0
	// hostlocal_gc_reservations{network="podnet",verdict="failed"} 0
	// hostlocal_gc_reservations{network="podnet",verdict="gone"} 0
	// hostlocal_gc_reservations{network="podnet",verdict="in-use"} 1
	// hostlocal_gc_reservations{network="podnet",verdict="leaked"} 0
	// hostlocal_gc_reservations{network="podnet",verdict="malformed"} 0
	// hostlocal_gc_reservations{network="podnet",verdict="released"} 1
	// hostlocal_gc_reservations{network="podnet",verdict="starting"} 0
	// hostlocal_gc_reservations{network="podnet",verdict="young"} 0
}

func reserve(folder, ip, owner string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file := filepath.Join(folder, ip)
	if err := os.WriteFile(file, []byte(owner), 0o600); err != nil {
		return err
	}
	made := time.Now().Add(-time.Hour)
	return os.Chtimes(file, made, made)
}
