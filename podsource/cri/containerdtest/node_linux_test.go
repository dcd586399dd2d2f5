// SPDX-License-Identifier: Apache-2.0

package containerdtest

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

// patience is how long a test waits for what must come. It is no bound on how
// fast anything is: only what never comes is found by it.
const patience = time.Minute

// A flavour is one containerd that the cases run against.
type flavour struct {
	name   string
	bin    string // directory with containerd, its shim and ctr
	config func(*node) string
}

// current is the version of go.mod.
func current() flavour {
	return flavour{name: "current", bin: os.Getenv(binEnv), config: configVersion3}
}

// debian is what Debian ships: 1.6 in Debian 12.
func debian() flavour {
	dir := os.Getenv(debianEnv)
	if dir != "" {
		dir = filepath.Join(dir, "usr/bin")
	}
	return flavour{name: "debian", bin: dir, config: configVersion2}
}

// onEach runs a case on a node of each flavour.
func onEach(t *testing.T, run func(*testing.T, *node)) {
	t.Helper()
	for _, f := range []flavour{current(), debian()} {
		t.Run(f.name, func(t *testing.T) { run(t, newNode(t, f)) })
	}
}

// A node is a containerd with its directories. One lives at a time: with it ends
// every process in the namespaces but the tests.
type node struct {
	t *testing.T
	flavour
	network string // name of the CNI network that pods get
	pool    int    // how many addresses it has of each family; 0: a /24 and a /64
	chained bool   // there is a second plugin in the list, which does nothing, and gate is before host-local, too
	multus  bool   // Multus delegates to that network
	gvisor  bool   // there is a handler for pods in gVisor
	image   string // of the sandboxes
	pinned  bool   // the image was imported, and stays

	// The runtime sets up lo by itself. Else the loopback plugin does, and leaves
	// an entry in libcni's cache that names the container while its ADD runs.
	// containerd 1.6 can't.
	ownLoopback bool

	cmd *exec.Cmd // containerd, or nil while it does not run
	cri runtimeapi.RuntimeServiceClient
}

// An option says in what a node differs.
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
			n.tellLog()
		}
		n.must(errors.Join(n.powerOff(), empty(nodeDir), empty("/var/lib/cni")))
	})
	n.must(n.layPlugins())
	n.must(os.Symlink(runc(), n.path("runsclite")))
	n.configure(n.network)
	n.start()
	if n.pinned {
		n.importImage()
	}
	return n
}

// need skips a test that can't run here, or fails it where it must.
func need(t *testing.T) {
	t.Helper()
	if whyNot != nil {
		skip(t, whyNot.Error())
	}
}

// needDebian does so where there is no containerd of Debian.
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

// must ends the test when the node itself can't be had.
func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("the node: %v", err)
	}
}

func (n *node) path(name string) string { return filepath.Join(nodeDir, name) }
func (n *node) socket() string          { return n.path("containerd.sock") }
func (n *node) endpoint() string        { return "unix://" + n.socket() }

// start starts containerd and waits until pods can be run.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	n.awaitReady()
}

// launch starts containerd and does not wait for it.
func (n *node) launch() {
	n.t.Helper()
	config := n.path("config.toml")
	n.must(os.WriteFile(config, []byte(n.config(n)), 0o600))
	log, err := os.OpenFile(n.path("containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	n.must(err)
	defer log.Close()
	n.cmd = exec.Command(filepath.Join(n.bin, "containerd"), "--config", config, "--log-level", "info")
	n.cmd.Env = append(os.Environ(), "PATH="+n.bin+":"+os.Getenv("PATH"), "TMPDIR="+nodeDir,
		"CONTAINERDTEST_CONTROL="+n.path("control")) // of runclite
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.must(n.cmd.Start())
	if n.cri == nil {
		conn, err := grpc.NewClient(n.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		n.must(err)
		n.t.Cleanup(func() { _ = conn.Close() }) // the last thing that is done with it
		n.cri = runtimeapi.NewRuntimeServiceClient(conn)
	}
}

// awaitAnswer waits until the runtime answers, whether it can run pods or not.
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
		// A restart is seen late by the client, which waits ever longer between
		// its tries, unless the call waits for it.
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

// await asks until ask has no complaint any more.
func (n *node) await(what string, ask func(context.Context) error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	for tick := time.Tick(20 * time.Millisecond); ; {
		err := ask(ctx)
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

// stop ends containerd as its service manager does. Pods run on.
func (n *node) stop() {
	n.t.Helper()
	n.must(n.end(syscall.SIGTERM))
}

// kill ends containerd as a crash does. Pods, and plugins, run on.
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
	_ = n.cmd.Wait() // how it ended was our doing
	n.cmd = nil
	return nil
}

// tellLog shows what containerd had to complain about last.
func (n *node) tellLog() {
	log, err := os.ReadFile(n.path("containerd.log"))
	if err != nil {
		n.t.Log(err)
		return
	}
	lines := slices.DeleteFunc(strings.Split(string(log), "\n"), func(line string) bool {
		return line == "" || strings.Contains(line, "level=info")
	})
	n.t.Logf("containerd complained:\n%s", strings.Join(lines[max(0, len(lines)-15):], "\n"))
}
