// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
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

// A pipeListener accepts in-memory connections, since synctest's clock does not wait for a network.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

// Clients that keep their connections open delay the agent's end by the grace time at most.
func TestServeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serving(t, bare(Options{}))
		half := l.dial() // sends half a request, and waits
		defer func() { _ = half.Close() }()
		go func() { _, _ = io.WriteString(half, "GET /heal") }()
		for _, say := range []string{
			"GET /healthz HTTP/1.1\r\nHost: [::1]\r\n\r\n", // reads no answer, and a pipe has no buffer
			"POST /metrics HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 100\r\n\r\nslow",
		} {
			c := l.dial()
			defer func() { _ = c.Close() }()
			go func() { _, _ = io.WriteString(c, say) }()
		}
		synctest.Wait()
		begun := time.Now()
		stop()
		_, _ = io.Copy(io.Discard, half) // until the agent closes it
		if took := time.Since(begun); took > graceTime+50*time.Millisecond {
			t.Errorf("it took %v of false time", took)
		}
	})
}

// A pass that hangs, on its disk for example, delays the agent's end by less than a second.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{}
		hangs := make(chan struct{})
		defer close(hangs)
		var working sync.WaitGroup
		working.Go(func() { <-hangs })
		begun := time.Now()
		a.end(&working)
		if took := time.Since(begun); took >= time.Second {
			t.Errorf("it took %v of false time", took)
		}
	})
}

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
		all, metrics := get(a, path), beside(t, a, "127.0.0.1", path)
		code, text, _ := strings.Cut(want, " ")
		if got := metrics.Body.String(); strconv.Itoa(metrics.Code) != code || !strings.Contains(got, text) ||
			strings.Contains(got, errAway.Error()) || !strings.Contains(all.Body.String(), errAway.Error()) {
			t.Errorf("%s gives %d %s\nand beside the metrics %d %s", path, all.Code, all.Body, metrics.Code, got)
		}
	}
}
