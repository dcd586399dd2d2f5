// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

// TestMain runs the tests on a node that has been up for a year.
func TestMain(m *testing.M) {
	const up = 365 * 24 * time.Hour
	gctest.Uptime(nil, up)
	diagnose.Booted = func() time.Time { return time.Now().Add(-up) }
	os.Exit(m.Run())
}

// sandbox makes up a sandbox's ID.
func sandbox(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

// running runs an agent without listeners until end is called, or the test ends. Values on hangup are
// SIGHUPs.
func running(t *testing.T, o Options) (a *Agent, log *cnitest.Log, hangup chan os.Signal, end func()) {
	t.Helper()
	log, hangup = new(cnitest.Log), make(chan os.Signal)
	o.Passes.Logger = funcr.New(func(_, line string) { fmt.Fprintln(log, line) }, funcr.Options{})
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, hangup); close(ended) }()
	end = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return a, log, hangup, end
}

// bare returns an agent that makes no passes.
func bare(o Options) *Agent {
	a := &Agent{opts: o, registry: prometheus.NewRegistry()}
	a.statuses = newStatusStore(&a.opts)
	return a
}

// ask sends a request to all endpoints.
func ask(a *Agent, method, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = "127.0.0.1"
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	a.handler().ServeHTTP(w, r)
	return w
}

func get(a *Agent, path string) *httptest.ResponseRecorder { return ask(a, http.MethodGet, path, "") }
