// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxWait limits every wait. It is long enough for a slow machine: it only detects that
// something never happens.
const maxWait = time.Minute

// A flavour is a version of containerd.
type flavour struct {
	name   string
	bin    string // directory with containerd, its shim and ctr
	config func(*node) string
}

// current returns the version of go.mod.
func current() flavour {
	return flavour{name: "current", bin: os.Getenv(binEnv), config: configVersion3}
}

// debian returns Debian's version: 1.6 in Debian 12.
func debian() flavour {
	dir := os.Getenv(debianEnv)
	if dir != "" {
		dir = filepath.Join(dir, "usr/bin")
	}
	return flavour{name: "debian", bin: dir, config: configVersion2}
}

// onEach runs a case on a new node of each flavour.
func onEach(t *testing.T, run func(*testing.T, *node)) {
	t.Helper()
	for _, f := range []flavour{current(), debian()} {
		t.Run(f.name, func(t *testing.T) { run(t, newNode(t, f)) })
	}
}

// A node is a containerd with its directories. There is one at a time: its cleanup ends every
// process in the namespaces except the tests.
type node struct {
	t *testing.T
	flavour
	network string // name of the pods' CNI network
	pool    int    // number of its addresses in each family; 0: a /24 and a /64
	chained bool   // the list has a second plugin, which does nothing, and gate also delegates to host-local
	multus  bool   // Multus delegates to that network
	gvisor  bool   // the runtime has a handler for pods in gVisor
	image   string // the image of sandboxes
	pinned  bool   // the image was imported, and stays

	// The runtime sets up lo itself. Otherwise the loopback plugin does, and there is
	// an entry in libcni's cache for the container while its ADD runs. containerd 1.6
	// always uses the plugin.
	ownLoopback bool

	cmd *exec.Cmd // containerd, or nil while it does not run
	cri runtimeapi.RuntimeServiceClient
}

// An option changes a node before its start.
type option func(*node)

func newNode(t *testing.T, f flavour, options ...option) *node {
	t.Helper()
	need(t)
	if f.name == debian().name {
		needDebian(t)
	}
	n := &node{t: t, flavour: f, network: "podnet", image: pauseImage, pinned: true}
	for _, o := range options {
		o(n)
	}
	for _, dir := range []string{"root", "state", "opt", "cni/conf", "cni/bin", "control", "certs"} {
		n.must(os.MkdirAll(n.path(dir), 0o755))
	}
	n.must(os.MkdirAll("/var/lib/cni/networks", 0o755))
	t.Cleanup(func() {
		if t.Failed() {
			n.showLog()
		}
		n.must(errors.Join(n.powerOff(), empty(nodeDir), empty("/var/lib/cni")))
	})
	n.must(n.installPlugins())
	n.must(os.Symlink(runc(), n.path("runsclite")))
	n.configure(n.network)
	n.start()
	if n.pinned {
		n.importImage()
	}
	return n
}

// need skips a test that can't run here, or fails it in CI.
func need(t *testing.T) {
	t.Helper()
	if whyNot != nil {
		skip(t, whyNot.Error())
	}
}

// needDebian is need for Debian's containerd.
func needDebian(t *testing.T) {
	t.Helper()
	need(t)
	if debian().bin == "" {
		skip(t, "there is no containerd of Debian on this machine")
	}
}

func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this may not be skipped in CI: %s", reason)
	}
	t.Skip(reason)
}

// must ends the test on an error of the node itself.
func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("the node: %v", err)
	}
}

func (n *node) path(name string) string { return filepath.Join(nodeDir, name) }
func (n *node) socket() string          { return n.path("containerd.sock") }
func (n *node) endpoint() string        { return "unix://" + n.socket() }

// start starts containerd, and waits until it can run pods.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	n.awaitReady()
}

// launch starts containerd without waiting for it.
func (n *node) launch() {
	n.t.Helper()
	config := n.path("config.toml")
	n.must(os.WriteFile(config, []byte(n.config(n)), 0o600))
	log, err := os.OpenFile(n.path("containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	n.must(err)
	defer log.Close()
	n.cmd = exec.Command(filepath.Join(n.bin, "containerd"), "--config", config, "--log-level", "info")
	n.cmd.Env = append(os.Environ(), "PATH="+n.bin+":"+os.Getenv("PATH"), "TMPDIR="+nodeDir,
		"CONTAINERDTEST_CONTROL="+n.path("control")) // for runclite
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.must(n.cmd.Start())
	if n.cri == nil {
		conn, err := grpc.NewClient(n.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		n.must(err)
		n.t.Cleanup(func() { _ = conn.Close() }) // nothing uses it any more
		n.cri = runtimeapi.NewRuntimeServiceClient(conn)
	}
}

// awaitAnswer waits until the runtime answers, also if it can't run pods.
func (n *node) awaitAnswer() {
	n.t.Helper()
	n.await("containerd to answer", func(ctx context.Context) error {
		_, err := n.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
		return err
	})
}

func (n *node) awaitReady() {
	n.t.Helper()
	n.await("containerd to be ready", func(ctx context.Context) error {
		// With WaitForReady the client connects again soon after a restart. Otherwise
		// it waits longer after each failure.
		answer, err := n.cri.Status(ctx, &runtimeapi.StatusRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		for _, c := range answer.GetStatus().GetConditions() {
			if !c.GetStatus() && strings.HasSuffix(c.GetType(), "Ready") {
				return fmt.Errorf("%s: %s: %s", c.GetType(), c.GetReason(), c.GetMessage())
			}
		}
		return nil
	})
}

// await calls check until it returns no error.
func (n *node) await(what string, check func(context.Context) error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), maxWait)
	defer cancel()
	for tick := time.Tick(20 * time.Millisecond); ; {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			n.t.Fatalf("waiting for %s: %v", what, err)
		case <-tick:
		}
	}
}

// stop ends containerd with SIGTERM, like a service manager. Pods run on.
func (n *node) stop() {
	n.t.Helper()
	n.must(n.end(syscall.SIGTERM))
}

// kill kills containerd, like a crash. Pods and plugins run on.
func (n *node) kill() {
	n.t.Helper()
	n.must(n.end(syscall.SIGKILL))
}

func (n *node) end(signal syscall.Signal) error {
	if n.cmd == nil {
		return nil
	}
	if err := n.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = n.cmd.Wait() // it was ended by the signal
	n.cmd = nil
	return nil
}

// showLog logs the last warnings and errors of containerd.
func (n *node) showLog() {
	log, err := os.ReadFile(n.path("containerd.log"))
	if err != nil {
		n.t.Log(err)
		return
	}
	lines := slices.DeleteFunc(strings.Split(string(log), "\n"), func(line string) bool {
		return line == "" || strings.Contains(line, "level=info")
	})
	n.t.Logf("warnings and errors of containerd:\n%s", strings.Join(lines[max(0, len(lines)-15):], "\n"))
}
