// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// serving serves an agent on a listener until stop, or the test ends.
func serving(t *testing.T, a *Agent) (l *pipeListener, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	l = newPipeListener()
	ended := make(chan error, 1)
	go func() { ended <- (server{l, a.handler()}).serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return l, stop
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

// However many connections others hold, and whether they have sent a part of a request, a health check is
// answered. The number is limited: the one that did nothing for longest is closed.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serving(t, bare(Options{}))
		held := make([]net.Conn, maxConns)
		for i := range held {
			held[i] = l.dial()
			defer func() { _ = held[i].Close() }()
			if i%2 == 1 {
				if _, err := io.WriteString(held[i], "GET /heal"); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		request(t, held[0], "/healthz")
		if got := code(t, held[0]); got != http.StatusOK {
			t.Errorf("one of them gets %d", got)
		}
		synctest.Wait()
		for i := range 3 {
			more := l.dial()
			request(t, more, "/healthz")
			if got := code(t, more); got != http.StatusOK {
				t.Errorf("health check %d beside %d connections gets %d", i, maxConns, got)
			}
		}
		synctest.Wait()
		var closed []int
		for i := range held {
			if err := held[i].SetDeadline(time.Time{}); err != nil {
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
		a := bare(Options{})
		var report gc.Report
		for i := range 200 {
			report.Reservations = append(report.Reservations, entry(fmt.Sprintf("10.0.0.%d", i), "c", gc.Unowned))
		}
		a.statuses.note(report, nil, nil, nil)
		l, _ := serving(t, a)
		get := func(path string) int {
			c := l.dial()
			defer func() { _ = c.Close() }()
			request(t, c, path)
			return code(t, c)
		}
		for path, most := range map[string]int{debugPath: maxReports, debugPath + "?format=html": maxPages} {
			for range most {
				slow := l.dial()
				defer func() { _ = slow.Close() }()
				request(t, slow, path)
			}
			synctest.Wait()
			if got := get(path); got != http.StatusServiceUnavailable {
				t.Errorf("beside %d who do not read, %s gives %d", most, path, got)
			}
			if got := get("/healthz"); got != http.StatusOK {
				t.Errorf("beside them, /healthz gives %d", got)
			}
			time.Sleep(writeTime)
			synctest.Wait()
			if got := get(path); got != http.StatusOK {
				t.Errorf("later, %s gives %d", path, got)
			}
		}
	})
}
