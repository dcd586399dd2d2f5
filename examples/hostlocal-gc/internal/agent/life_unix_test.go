// SPDX-License-Identifier: Apache-2.0

//go:build unix

package agent

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// The agent is not ready until each source has answered, also after the hook, and stays ready when
// one fails later. It lives meanwhile: the API server may be down when a node boots. SIGHUP triggers
// a pass long before the interval ends.
func TestReadyOnceEachSourceAnswered(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	live, leaked := add(t, n, "live", time.Hour), add(t, n, "leaked", time.Hour)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.json"), filepath.Join(dir, "second.json")
	writePods(t, first, pod{ContainerIDs: []string{"live"}})
	p := start(t, nil, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+first, "--source", "file:"+second,
		"--startup-timeout", "300ms", "--interval", "1h")
	p.eventually("the hook has ended", func() bool { return strings.Contains(p.log.String(), "trying again later") })
	// The hook's time may be up while a pass reads the disk. The next pass is refused then.
	const refused = "UNKNOWN: the last pass was refused, and released nothing"
	p.eventually("a pass is refused", func() bool { return strings.Contains(p.get("/healthz").body, refused) })
	for _, row := range []struct {
		reason, path string
		status       int
		want         string
	}{
		{"it lives", "/healthz", 200, "ok\n"},
		{"it waits for a source", "/readyz", 503, "waiting for the first answer of each source\nno answer of the pod sources counts, so nothing was released: pod source file: file:" + second},
		{"a person sees why", debugPath + "?format=html", 200, "was refused"},
		{"a person sees why", "/readyz", 503, refused},
	} {
		if got := p.get(row.path); got.status != row.status || !strings.Contains(got.body, row.want) {
			t.Errorf("%s: %s gives %d without %q:\n%s", row.reason, row.path, got.status, row.want, got.body)
		}
	}
	if !there(n, leaked) {
		t.Error("something was released without an answer (R2)")
	}
	writePods(t, second, pod{ContainerIDs: []string{"other"}})
	p.untilReady()
	if !there(n, live) || there(n, leaked) {
		t.Error("it was ready before it had released what leaked, and only that")
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	p.hangUp()
	p.eventually("a pass is refused again", func() bool { return strings.Contains(p.get("/healthz").body, refused) })
	if got := p.get("/readyz"); got.status != http.StatusOK {
		t.Errorf("after a failure it is not ready any more: %d, %q", got.status, got.body)
	}
	p.terminate()
}

// SIGTERM ends the agent in the middle of a pass that waits for a source. The time is printed but not
// checked: the machine may be busy. SIGHUP does no harm, neither in the first pass nor at the end.
// TestServeEnds has clients that keep their connections open.
func TestTerminateInTheMiddle(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	leaked := add(t, n, "leaked", time.Hour)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+pipe)
	w := openPipe(t, pipe)
	p.hangUp()
	if got := p.get("/readyz"); got.status != http.StatusServiceUnavailable || got.body != "waiting for the first answer of each source\n" {
		t.Errorf("/readyz gives %d %q", got.status, got.body)
	}
	go func() {
		for p.cmd.Process.Signal(syscall.SIGHUP) == nil {
			runtime.Gosched()
		}
	}()
	took := p.terminate()
	_ = w.Close()
	fmt.Printf("In the middle of a pass the agent ended %v after SIGTERM\n", took.Round(time.Millisecond))
	if !there(n, leaked) {
		t.Error("something was released without an answer (R2)")
	}
}

func (p *process) hangUp() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
}

// The trial run in the README works as printed.
func TestReadmeTrial(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "deploy", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```sh\n")
	script, _, _ := strings.Cut(rest, "```")
	const gorun = "go run ./examples/hostlocal-gc agent "
	if strings.Count(script, gorun) != 1 {
		t.Fatalf("the first block of deploy/README.md runs the agent not once:\n%s", script)
	}
	dir := t.TempDir()
	cmd := exec.Command("sh", "-ec", strings.Replace(script, gorun, "exec "+built(t)+" agent --listen 127.0.0.1:0 ", 1))
	cmd.Env = environment("TMPDIR=" + dir)
	p := startCommand(t, cmd)
	p.untilReady()
	left, err := filepath.Glob(filepath.Join(dir, "*", "networks", "podnet", "10.*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "10.244.1.2" {
		t.Errorf("left are %v, error %v", left, err)
	}
	p.terminate()
}

// openPipe opens a pipe for writing, once a reader has opened it.
func openPipe(t *testing.T, path string) *os.File {
	t.Helper()
	opened := make(chan *os.File, 1)
	go func() {
		w, _ := os.OpenFile(path, os.O_WRONLY, 0) // nil after an error
		opened <- w
	}()
	select {
	case w := <-opened:
		if w == nil {
			t.Fatalf("opening %s", path)
		}
		t.Cleanup(func() { _ = w.Close() })
		return w
	case <-time.After(patience):
		t.Fatal("nobody reads from the pipe")
		return nil
	}
}
