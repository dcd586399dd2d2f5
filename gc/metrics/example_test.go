// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An agent that serves the ADDs exposes the metrics of its passes.
func Example() {
	// Two pods got addresses an hour ago. One of them is gone, without a DEL.
	live, gone := strings.Repeat("ee3b0f0c", 8), strings.Repeat("5c7b9a1e", 8)
	dataDir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dataDir) }()
	for ip, owner := range map[string]string{"10.0.0.2": live + "\r\neth0", "10.0.0.3": gone + "\r\neth0"} {
		if err := reserve(filepath.Join(dataDir, "podnet"), ip, owner); err != nil {
			fmt.Println(err)
			return
		}
	}

	collector := metrics.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	collector.SetRanges(map[string][]iprange.Set{ // as package cniconf reads them
		"podnet": {{{First: netip.MustParseAddr("10.0.0.2"), Last: netip.MustParseAddr("10.0.0.254")}}},
	})

	source := podsource.Attachments([]string{"podnet"}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) {
		return []podsource.Attachment{{Network: "podnet", ContainerID: live, IfName: "eth0"}}, nil
	})
	r, err := gc.New(hostlocal.New(dataDir), []string{"podnet"}, source, gc.Options{OnReport: collector.OnReport})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := r.AtStartup(context.Background(), gc.NoADDInFlight); err != nil {
		fmt.Println(err)
	}

	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{}) // of the agent's /metrics
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "hostlocal_gc_r") || strings.HasPrefix(line, "hostlocal_gc_passes") {
			fmt.Print(line)
		}
	}
	// Output:
	// hostlocal_gc_passes_total{result="failed"} 0
	// hostlocal_gc_passes_total{result="locked"} 0
	// hostlocal_gc_passes_total{result="no-pods"} 0
	// hostlocal_gc_passes_total{result="ok"} 1
	// hostlocal_gc_passes_total{result="refused"} 0
	// hostlocal_gc_passes_total{result="source-timeout"} 0
	// hostlocal_gc_range_addresses{network="podnet",set="0"} 253
	// hostlocal_gc_range_reserved_addresses{network="podnet",set="0"} 1
	// hostlocal_gc_release_failures_total{network="podnet"} 0
	// hostlocal_gc_released_total{network="podnet"} 1
	// hostlocal_gc_reservations{network="podnet",reason="container-live",verdict="in-use"} 1
	// hostlocal_gc_reservations{network="podnet",reason="released-leak",verdict="released"} 1
}

func reserve(dir, ip, owner string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(dir, ip)
	if err := os.WriteFile(file, []byte(owner), 0o600); err != nil {
		return err
	}
	made := time.Now().Add(-time.Hour)
	return os.Chtimes(file, made, made)
}
