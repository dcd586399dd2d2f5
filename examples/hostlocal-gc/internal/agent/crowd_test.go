// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// serving serves an agent on a listener until the test ends.
func serving(t *testing.T, a *Agent) *pipeListener {
	ctx, cancel := context.WithCancel(t.Context())
	l := newPipeListener()
	ended := make(chan error, 1)
	go func() { ended <- (server{l, a.handler()}).serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

// request sends a request, and does not read the answer.
func request(t *testing.T, c net.Conn, path string) {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
}

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

// The number of connections is limited, and a closed connection makes room for another.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serving(t, &Agent{statuses: newStatusStore(nil), registry: prometheus.NewRegistry()})
		idle := make([]net.Conn, maxConns)
		for i := range idle {
			idle[i] = l.dial()
			defer func() { _ = idle[i].Close() }()
		}
		for range 2 {
			more := l.dial()
			if _, err := more.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Fatalf("a connection too many: %v", err)
			}
		}
		request(t, idle[0], "/healthz")
		if got := code(t, idle[0]); got != http.StatusOK {
			t.Errorf("one that was let in gets %d", got)
		}
		_ = idle[0].Close()
		synctest.Wait()
		next := l.dial()
		defer func() { _ = next.Close() }()
		request(t, next, "/healthz")
		if got := code(t, next); got != http.StatusOK {
			t.Errorf("when one has left, the next gets %d", got)
		}
	})
}

// Clients that ask for the report and do not read it hold a limited number of reports in memory,
// for a limited time. /healthz answers meanwhile.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{statuses: newStatusStore(nil), registry: prometheus.NewRegistry()}
		var report gc.Report
		for i := range 200 {
			report.Reservations = append(report.Reservations, entry(fmt.Sprintf("10.0.0.%d", i), "c", gc.Unowned))
		}
		a.statuses.note(report, nil)
		l := serving(t, a)
		get := func(path string) int {
			c := l.dial()
			defer func() { _ = c.Close() }()
			request(t, c, path)
			return code(t, c)
		}
		for range maxReports {
			slow := l.dial()
			defer func() { _ = slow.Close() }()
			request(t, slow, debugPath)
		}
		synctest.Wait()
		if got := get(debugPath); got != http.StatusServiceUnavailable {
			t.Errorf("beside %d who do not read, the report gives %d", maxReports, got)
		}
		if got := get("/healthz"); got != http.StatusOK {
			t.Errorf("beside them, /healthz gives %d", got)
		}
		time.Sleep(writeTime)
		synctest.Wait()
		if got := get(debugPath); got != http.StatusOK {
			t.Errorf("later, the report gives %d", got)
		}
	})
}
