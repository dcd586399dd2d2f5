// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
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

// nodeDir has all files of a node except those of the CNI plugins in /var/lib/cni and the network namespaces in
// /run/netns.
const nodeDir = "/run/hostlocal-gc-e2e"

// maxWait limits every wait. It is long enough for a slow machine: it only detects that something never happens.
const maxWait = 2 * time.Minute

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
	return flavour{name: "debian", bin: filepath.Join(os.Getenv(debianEnv), "usr/bin"), config: configVersion2}
}

// onEach runs a case on a new node of each flavour.
func onEach(t *testing.T, run func(*testing.T, *node), options ...option) {
	t.Helper()
	for _, f := range []flavour{current(), debian()} {
		t.Run(f.name, func(t *testing.T) { run(t, newNode(t, f, options...)) })
	}
}

// A node is a containerd with its directories. There is one at a time: its cleanup ends every process in the
// namespaces except the tests.
type node struct {
	t *testing.T
	flavour
	network string         // name of the pods' CNI network
	pool    int            // number of its addresses in each family; 0: a /24 and a /64
	chained bool           // the list has a second plugin, which does nothing, and gate also delegates to host-local
	multus  bool           // Multus delegates to that network
	gvisor  bool           // the runtime has a handler for pods in gVisor
	main    map[string]any // the main plugin of the network; nil: gate

	// The runtime sets up lo itself. Otherwise the loopback plugin does, and there is an entry in libcni's cache for
	// the container while its ADD runs. containerd 1.6 always uses the plugin.
	ownLoopback bool

	cmd  *exec.Cmd // containerd, or nil while it does not run
	conn *grpc.ClientConn
	cri  runtimeapi.RuntimeServiceClient
}

// An option changes a node before its start.
type option func(*node)

// withPool limits the addresses of the network in each family.
func withPool(size int) option { return func(n *node) { n.pool = size } }

func newNode(t *testing.T, f flavour, options ...option) *node {
	t.Helper()
	if f.name == debian().name && os.Getenv(debianEnv) == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no containerd of Debian on this machine, and CI skips nothing")
		}
		t.Skip("there is no containerd of Debian on this machine")
	}
	n := &node{t: t, flavour: f, network: "podnet"}
	for _, o := range options {
		o(n)
	}
	for _, dir := range []string{n.path("root"), n.path("state"), n.path("opt"), n.path("cni/conf"), n.path("cni/bin"), n.path("control"), networks} {
		n.must(os.MkdirAll(dir, 0o755))
	}
	t.Cleanup(func() {
		if t.Failed() {
			n.showLog()
		}
		n.must(errors.Join(n.powerOff(), empty(nodeDir), empty("/var/lib/cni")))
	})
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		n.link(name, "cni/bin/"+name)
	}
	for _, name := range []string{"cni/bin/gate", "cni/bin/lease", "runclite", "runsclite", "pause"} {
		n.link("parts", name)
	}
	n.configure(n.network)
	var err error
	n.conn, err = grpc.NewClient(n.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.must(err)
	t.Cleanup(func() { _ = n.conn.Close() }) // nothing uses it any more
	n.cri = runtimeapi.NewRuntimeServiceClient(n.conn)
	n.start()
	n.importImage()
	return n
}

// link makes a program known by a path of the node.
func (n *node) link(program, name string) {
	n.t.Helper()
	n.must(os.Symlink(bin(program), n.path(name)))
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

// restart restarts containerd, usually the first thing that people try.
func (n *node) restart() {
	n.t.Helper()
	n.stop()
	n.start()
}

// launch starts containerd without waiting for it.
func (n *node) launch() {
	n.t.Helper()
	config := n.path("config.toml")
	n.must(os.WriteFile(config, []byte(n.config(n)), 0o600))
	log, err := os.OpenFile(n.path("containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	n.must(err)
	defer log.Close()
	n.cmd = n.program("containerd", "--config", config, "--log-level", "info")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.must(n.cmd.Start())
}

// program returns a command with a program of containerd's version, or the one at a path.
func (n *node) program(name string, args ...string) *exec.Cmd {
	if !filepath.IsAbs(name) {
		name = filepath.Join(n.bin, name)
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PATH="+n.bin+":"+os.Getenv("PATH"), "TMPDIR="+nodeDir,
		"NERDCTL_TOML="+n.path("none.toml"), "E2E_CONTROL="+n.path("control")) // for runclite
	return cmd
}

func (n *node) awaitReady() {
	n.t.Helper()
	n.await("containerd to be ready", func(ctx context.Context) error {
		// With WaitForReady the client connects again soon after a restart. Otherwise it waits longer after each
		// failure.
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

// The agent of the documentation, with the sources of a usual node. This node has no Kubernetes, and its processes are in a PID
// namespace that the agent was not told to trust: what is left is the runtime.
//
// Guard: [node.New] leaves out what does not exist, and says why.
func TestUsualNode(t *testing.T) {
	n := newNode(t, current())
	live, leaked := n.run("live"), n.run("leaked")
	n.leak(leaked)
	n.age()
	var log bytes.Buffer
	agent := n.program(bin("node"), n.network)
	agent.Env = append(agent.Env, endpointEnv+"="+n.endpoint())
	agent.Stderr = &log
	n.must(agent.Start())
	n.await("the leaked addresses to be released", func(context.Context) error {
		if left := n.heldBy(leaked.id); len(left) > 0 {
			return fmt.Errorf("%v are still reserved", left)
		}
		return nil
	})
	n.must(agent.Process.Signal(syscall.SIGTERM))
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	n.wantLeft("after the pass", live)
	for _, want := range []string{"source=netns reason=", "source=cnicache reason=", "source=kubelet reason=", "Found a container runtime"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if t.Failed() {
		t.Logf("the agent's log:\n%s", &log)
	}
}
