// SPDX-License-Identifier: Apache-2.0

//go:build unix

package agent

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// The agent is ready when the hook has ended, and not before. The source is a pipe, so the first
// pass lasts until the test has written.
func TestReadyAfterTheHook(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	leaked := add(t, n, "leaked", time.Hour)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+pipe, "--startup-timeout", "1h")
	w := openPipe(t, pipe) // the agent is reading the source
	got := p.get("/readyz")
	if got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "waiting for the first pass") {
		t.Errorf("while the source works: %d, %q", got.status, got.body)
	}
	if got := p.get("/healthz"); got.status != http.StatusOK {
		t.Errorf("while the source works: /healthz gives %d, %q", got.status, got.body)
	}
	if _, err := io.WriteString(w, `[{"containerIDs":["other"]}]`); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p.untilReady()
	if there(n, leaked) {
		t.Error("it was ready before it had released what leaked")
	}
	p.terminate()
}

// A hook that ends without a successful pass ends, too.
func TestReadyWithoutAnAnswer(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	leaked := add(t, n, "leaked", time.Hour)
	p := start(t, nil, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+filepath.Join(t.TempDir(), "none"), "--startup-timeout", "300ms")
	p.untilReady()
	if !there(n, leaked) {
		t.Error("something was released without an answer (R2)")
	}
	const never = "UNKNOWN: no answer since the start: file"
	// The hook's time may be up while a pass reads the disk. The next pass is refused then.
	p.eventually("a pass is refused", func() bool { return strings.Contains(p.get("/healthz").body, "was refused") })
	for path, want := range map[string]string{
		debugPath + "?format=html": "was refused", "/healthz": never + "\nUNKNOWN: the last pass was refused, and released nothing\n", "/readyz": never,
		"/metrics": "\nhostlocal_gc_source_answers_total{source=\"file\"} 0\n",
	} {
		if got := p.get(path); got.status != http.StatusOK || !strings.Contains(got.body, want) {
			t.Errorf("%s gives %d without %q:\n%s", path, got.status, want, got.body)
		}
	}
	p.eventually("the log reports it", func() bool { return strings.Contains(p.log.String(), never) })
	p.terminate()
}

// SIGTERM ends the agent within a second, also in the middle of a pass that waits for a source, and
// with clients that keep their connections open. The time is printed but not checked: the machine
// may be busy.
func TestTerminateInTheMiddle(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	leaked := add(t, n, "leaked", time.Hour)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+pipe)
	w := openPipe(t, pipe)
	for _, say := range []string{
		"", "GET /metr", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nslow",
	} {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.get("/healthz"); got.status != http.StatusOK { // all connections are accepted by now
		t.Errorf("/healthz gives %d", got.status)
	}
	took := p.terminate()
	_ = w.Close()
	fmt.Printf("In the middle of a pass, with 4 clients hanging, the agent ended %v after SIGTERM\n", took.Round(time.Millisecond))
	if !there(n, leaked) {
		t.Error("something was released without an answer (R2)")
	}
}

// SIGHUP triggers a pass long before the interval ends.
func TestHangup(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	other := add(t, n, "other", time.Hour)
	pods := filepath.Join(t.TempDir(), "pods.json")
	writePods(t, pods, pod{ContainerIDs: []string{"other"}}, pod{ContainerIDs: []string{"more"}})
	p := start(t, nil, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+pods, "--interval", "1h")
	p.untilReady()
	writePods(t, pods, pod{ContainerIDs: []string{"more"}})
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.eventually("what leaked since is released", func() bool { return !there(n, other) })
	p.terminate()
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
