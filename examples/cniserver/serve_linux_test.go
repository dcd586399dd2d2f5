// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// The plugin runs as the command "plugin", and without a command if a runtime has set
// CNI_COMMAND.
func TestCommandLine(t *testing.T) {
	const help, pluginAnswer = "Usage:", "supportedVersions"
	for _, row := range []struct {
		reason, cniCommand string
		args               []string
		stdout             string
	}{
		{"as a runtime calls it", "VERSION", nil, pluginAnswer},
		{"as a person calls it", "", nil, help},
		{"the command plugin", "VERSION", []string{"plugin"}, pluginAnswer},
		{"another command, from a plugin's environment", "VERSION", []string{"serve", "--help"}, help},
	} {
		cmd := exec.Command(filepath.Join(cnitest.Bin(), "cniserver"), row.args...)
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+row.cniCommand)
		cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0"}`)
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), row.stdout) {
			t.Errorf("%s: %v; stdout is %q, want %q in it", row.reason, err, out, row.stdout)
		}
	}
	var exit *exec.ExitError
	out, err := exec.Command(filepath.Join(cnitest.Bin(), "cniserver"), "serve").CombinedOutput()
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), `"network" not set`) {
		t.Errorf("serve without a network: %v, %q", err, out)
	}
}

// The plugin's exit code is 0 only if the runtime has got the result.
func TestPluginFails(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.Make("a")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, row := range []struct {
		reason, config string
		stdout         *os.File // nil: it is read
		want           string
	}{
		{"a configuration of the wrong type", strings.Replace(n.plugin("one"), `"socket":`, `"socket":7,"other":`, 1), nil, "reading the network configuration"},
		{"a result that can't be written", n.plugin("one"), full, ""},
	} {
		cmd := exec.Command(filepath.Join(n.bin, "cniserver"))
		cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=a", "CNI_IFNAME=eth0", "CNI_NETNS="+cnitest.NetNS("a"), "CNI_PATH="+n.bin)
		cmd.Stdin = strings.NewReader(row.config)
		var out bytes.Buffer
		cmd.Stdout = &out
		if row.stdout != nil {
			cmd.Stdout = row.stdout
		}
		if err := cmd.Run(); err == nil || !strings.Contains(out.String(), row.want) {
			t.Errorf("%s: %v, %q", row.reason, err, out.String())
		}
	}
	n.mustDel(n.list("one", dual), "a")
	n.agree(2)
}

// The delegate gets its own part of the configuration, and what the runtime adds.
func TestDelegateConfiguration(t *testing.T) {
	for _, row := range []struct{ reason, text, want string }{
		{
			"nothing is added",
			`{"name":"one","type":"cniserver","socket":"s","delegate":{"type":"ptp","ipam":{"type":"host-local","dataDir":"/d/"}}}`,
			`{"ipam":{"type":"host-local","dataDir":"/d/"},"name":"one","type":"ptp"}`,
		},
		{
			"everything is added",
			`{"cniVersion":"1.1.0","name":"one","runtimeConfig":{},"prevResult":{},"cni.dev/valid-attachments":[],"cni.dev/attachments":[],` +
				`"delegate":{"type":"ptp","ipam":{"type":"host-local","dataDir":"/d"}}}`,
			`{"cni.dev/attachments":[],"cni.dev/valid-attachments":[],"cniVersion":"1.1.0","ipam":{"type":"host-local","dataDir":"/d"},` +
				`"name":"one","prevResult":{},"runtimeConfig":{},"type":"ptp"}`,
		},
	} {
		d, err := delegationOf([]byte(row.text), "/d")
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
			continue
		}
		if diff := cmp.Diff(row.want, string(d.config)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// A server that can't start says why, and leaves nothing locked.
func TestServerThatCannotStart(t *testing.T) {
	n := newNode(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	file := filepath.Join(n.dir, "file")
	cnitest.Write(t, file, "", 0)
	locked := filepath.Join(n.dir, "locked")
	if err := os.MkdirAll(filepath.Join(locked, "intents"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := acquireLock(t.Context(), filepath.Join(locked, "serving.lock"), funcr.New(func(string, string) {}, funcr.Options{})); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		reason string
		ctx    context.Context
		change func(o *serveOptions)
		want   string
	}{
		{"its state can't be written", t.Context(), func(o *serveOptions) { o.stateDir = file }, "making the directory of the intents"},
		{"it can't be locked", t.Context(), func(o *serveOptions) {
			if err := os.MkdirAll(filepath.Join(o.stateDir, "serving.lock"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "opening"},
		{"a signal ends the wait for the lock", ended, func(o *serveOptions) { o.stateDir = locked }, context.Canceled.Error()},
		{"a network's name is invalid", t.Context(), func(o *serveOptions) { o.networks = []string{"one", "../two"} }, "../two"},
		{"a network is given twice", t.Context(), func(o *serveOptions) { o.networks = []string{"one", "one"} }, "named twice"},
		{"the time limit of its start is over", t.Context(), func(o *serveOptions) { o.timeout = 1 }, context.DeadlineExceeded.Error()},
		{"the directory of its socket can't be made", t.Context(), func(*serveOptions) {}, "making the socket's directory"},
		{"a directory is in the place of its socket", t.Context(), func(o *serveOptions) { o.socket = n.dir }, "removing the old socket"},
		{"the path of its socket is too long", t.Context(), func(o *serveOptions) {
			o.socket = filepath.Join(n.dir, strings.Repeat("x", 120))
		}, "listen unix"},
	} {
		o := n.serveOptions()
		o.stateDir = filepath.Join(t.TempDir(), "state")
		o.socket = "/dev/null/s"
		row.change(o)
		if err := o.run(row.ctx); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want %q", row.reason, err, row.want)
		}
		if o.stateDir == file {
			continue
		}
		o.networks = []string{"one"}
		s, err := o.newServer()
		if err != nil {
			t.Errorf("%s: the record is still open: %v", row.reason, err)
			continue
		}
		if err := s.record.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The wait for the lock is logged once, and ends with the context.
func TestWaitForTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	if err := acquireLock(t.Context(), path, log); err != nil || len(lines) > 0 {
		t.Fatalf("%v; logged: %q", err, lines)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := acquireLock(ctx, path, log)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.EWOULDBLOCK) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
	})
	if len(lines) != 1 || !strings.Contains(lines[0], path) {
		t.Errorf("logged: %q", lines)
	}
}

// If a request does not end within the time limit, the server ends without it.
func TestShutdownHasATimeLimit(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	s.timeout = 1
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, answered := make(chan error), make(chan error)
	s.gcLock.Lock()
	go func() { ended <- s.listen(ctx, n.socket()) }()
	cnitest.Until(t, "the server listens", func() bool { return cnitest.Exists(n.socket()) })
	go func() { _, err := send(n.socket(), n.request("CHECK", "a")); answered <- err }()
	cnitest.Until(t, "the request waits", func() bool { return waiting("sync.RWMutex.RLock") })
	cancel()
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
	s.gcLock.Unlock()
	if err := <-answered; err == nil {
		t.Error("CHECK of no attachment succeeds")
	}
}

// A failed request is logged, and one whose plugin has ended is dropped.
func TestFailedRequestIsLogged(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	var lines []string
	logged(s, &lines, func(string) {})
	body, err := json.Marshal(n.request("CHECK", "a"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, row := range []struct {
		reason string
		ctx    context.Context
		want   string
	}{
		{"the attachment is unknown", t.Context(), "is not recorded"},
		{"the plugin has ended", ctx, "the plugin ended"},
	} {
		lines = nil
		answer := httptest.NewRecorder()
		s.routes().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, requestPath, bytes.NewReader(body)).WithContext(row.ctx))
		if answer.Code != http.StatusInternalServerError || !strings.Contains(answer.Body.String(), row.want) {
			t.Errorf("%s: %d, %s; want %q", row.reason, answer.Code, answer.Body, row.want)
		}
		if len(lines) != 1 || !strings.Contains(lines[0], row.want) || !strings.Contains(lines[0], `"command"="CHECK"`) {
			t.Errorf("%s: logged: %q", row.reason, lines)
		}
	}
}

// The plugin fails if the answer is neither a result nor a CNI error.
func TestAnswerThatIsNoCNIError(t *testing.T) {
	for _, row := range []struct{ reason, answer, want string }{
		{"no JSON", "no", "400 Bad Request: no"},
		{"no code", "{}", "400 Bad Request: {}"},
		{"a CNI error", `{"code":11,"msg":"later"}`, "later"},
	} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, row.answer)
		})}
		go func() { _ = web.Serve(l) }() // until Close
		if _, err := send(socket, &request{}); err == nil || !strings.HasSuffix(err.Error(), row.want) {
			t.Errorf("%s: %v; want %q", row.reason, err, row.want)
		}
		if err := web.Close(); err != nil {
			t.Error(err)
		}
	}
	var e *types.Error
	if _, err := send("/dev/null", &request{Config: []byte("{")}); err == nil || errors.As(err, &e) {
		t.Errorf("a request that can't be encoded: %v", err)
	}
}
