// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience limits how long tests wait for an event. It detects hangs, not slowness.
const patience = 2 * time.Minute

// A process is a built agent that is running.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   *logbook
	ended chan struct{} // closed at the end of the process
}

// A logbook stores what a process writes.
type logbook struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// environment returns the test's environment without variables that set the agent's flags.
func environment(more ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HOSTLOCAL_GC_") && !strings.HasPrefix(v, "NODE_NAME=") {
			env = append(env, v)
		}
	}
	// By default the race detector sleeps for a second at the end of a process, to print pending
	// reports.
	return append(append(env, "GORACE=atexit_sleep_ms=0", "IS_HOSTLOCAL_GC=1"), more...)
}

// start starts the agent on a port of its own. It ends with the test.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(built(t), append([]string{"agent", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = environment(env...)
	return startCommand(t, cmd)
}

func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, log: &logbook{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // ProcessState has the same result
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // may have ended already
		<-p.ended
	})
	return p
}

var servingAt = regexp.MustCompile(`msg="Serving HTTP" address=(\S+)`)

// address waits until the agent serves, and returns its address.
func (p *process) address() string {
	p.t.Helper()
	var at []string
	p.eventually("it serves", func() bool {
		at = servingAt.FindStringSubmatch(p.log.String())
		return at != nil
	})
	return at[1]
}

// An answer is an HTTP response.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends a request to an endpoint. It does not follow redirects.
func (p *process) ask(method, path, accept string) answer {
	p.t.Helper()
	a, err := ask(p.t.Context(), method, "http://"+p.address()+path, accept)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.log)
	}
	return a
}

func (p *process) get(path string) answer {
	p.t.Helper()
	return p.ask(http.MethodGet, path, "")
}

func ask(ctx context.Context, method, url, accept string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return answer{}, err
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// eventually polls until ok returns true. It fails if the process ends.
func (p *process) eventually(what string, ok func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if ok() {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-p.ended:
			p.t.Fatalf("the agent ended (%v) before: %s\n%s", p.cmd.ProcessState, what, p.log)
		case <-ctx.Done():
			p.t.Fatalf("waited in vain until: %s\n%s", what, p.log)
		}
	}
}

// untilReady waits until the agent is ready.
func (p *process) untilReady() {
	p.t.Helper()
	p.eventually("it is ready", func() bool { return p.get("/readyz").status == http.StatusOK })
}

// end sends a signal, and returns the final state of the process and the time that it took.
func (p *process) end(s os.Signal) (*os.ProcessState, time.Duration) {
	p.t.Helper()
	begun := time.Now()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.t.Fatalf("it did not end after %v\n%s", s, p.log)
	}
	return p.cmd.ProcessState, time.Since(begun)
}

// terminate ends the agent as a kubelet does, which must succeed. It waits for the agent's start
// first: a signal before main runs ends any process.
func (p *process) terminate() time.Duration {
	p.t.Helper()
	p.address()
	state, took := p.end(syscall.SIGTERM)
	if !state.Success() || !strings.Contains(p.log.String(), "Ended") {
		p.t.Errorf("after SIGTERM: %v, and its last line must say that it ended\n%s", state, p.log)
	}
	return took
}
