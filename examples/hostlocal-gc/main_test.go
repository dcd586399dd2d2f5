// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

var (
	update = flag.Bool("update", false, "rewrite the outputs in README.md")

	// built is the command: a copy of this binary, which TestMain makes.
	built string
)

// isCommand is set in the environment of this binary where it stands for the command.
const isCommand = "IS_HOSTLOCAL_GC"

// nodeUp is a variable with the time for which the node has been up, in place of a year.
const nodeUp = "TEST_NODE_UP"

// TestMain runs the command when a test starts this binary again, on a node that has been up for a
// year, however young the machine is.
func TestMain(m *testing.M) {
	up := 365 * 24 * time.Hour
	if d, err := time.ParseDuration(os.Getenv(nodeUp)); err == nil {
		up = d
	}
	gctest.Uptime(nil, up)
	diagnose.Booted = func() time.Time { return time.Now().Add(-up) }
	defaultMemory = "" // not in the machine's /run
	if os.Getenv(isCommand) != "" {
		main()
	}
	flag.Parse()
	dir, err := os.MkdirTemp("", "hostlocal-gc-test-")
	built = filepath.Join(dir, "hostlocal-gc") // where any user may run it
	self, err2 := os.Executable()
	text, err3 := os.ReadFile(self)
	if err := errors.Join(err, err2, err3, os.WriteFile(built, text, 0o755)); err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// An outcome is the result of a run of the command.
type outcome struct {
	stdout, stderr string
	status         int
}

// command makes the built command, to run in dir. The test's environment does not name the node, and
// does not colour its output.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), built, args...)
	cmd.Dir = dir
	mine := func(v string) bool { return strings.HasPrefix(v, "NODE_NAME=") }
	cmd.Env = append(slices.DeleteFunc(os.Environ(), mine), "NO_COLOR=", "TERM=xterm", isCommand+"=1")
	return cmd
}

// run runs the built command in dir.
func run(t *testing.T, dir string, stdin io.Reader, args ...string) outcome {
	t.Helper()
	cmd := command(t, dir, args...)
	cmd.Stdin = stdin
	return finish(t, cmd, cmd.Run)
}

// finish runs a command, or waits for it, with the outputs that it makes.
func finish(t *testing.T, cmd *exec.Cmd, run func() error) (out outcome) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
	}
	var exit *exec.ExitError
	if err := run(); errors.As(err, &exit) {
		out.status = exit.ExitCode()
	} else if err != nil {
		t.Fatalf("starting the command: %v", err)
	}
	out.stdout, out.stderr = fmt.Sprint(cmd.Stdout), fmt.Sprint(cmd.Stderr)
	return out
}

// A node is a directory with a data directory "networks" and files of pods. Commands run in it, so that flags and outputs
// do not depend on its path.
type node struct {
	t   *testing.T
	dir string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	must(t, os.Mkdir(filepath.Join(n.dir, "networks"), 0o755))
	return n
}

// A podNetwork is a network of a node.
type podNetwork struct {
	*node
	name string
	last []netip.Addr // that was reserved in each range, or its gateway
}

// network makes a network with a range for each subnet, and the files that host-local has beside reservations.
func (n *node) network(name string, subnets ...string) *podNetwork {
	n.t.Helper()
	n.put(filepath.Join("networks", name, "lock"), "")
	n.put(filepath.Join("networks", name, "last_reserved_ip.0"), "")
	nw := &podNetwork{node: n, name: name}
	for _, subnet := range subnets {
		nw.last = append(nw.last, netip.MustParsePrefix(subnet).Addr().Next())
	}
	return nw
}

// add reserves the next address in each range, and dates it back by age. It returns the addresses.
func (nw *podNetwork) add(containerID string, age time.Duration) (ips []string) {
	nw.t.Helper()
	for i, ip := range nw.last {
		nw.last[i] = ip.Next()
		ips = append(ips, ip.Next().String())
		nw.write(ips[i], containerID+"\r\neth0", age)
	}
	return ips
}

// file returns the path of an address's file.
func (nw *podNetwork) file(ip string) string {
	return filepath.Join(nw.dir, "networks", nw.name, ip)
}

// write writes the file of an address.
func (nw *podNetwork) write(ip, content string, age time.Duration) {
	nw.t.Helper()
	cnitest.Write(nw.t, nw.file(ip), content, age)
}

// there reports whether NETWORK/ADDRESS is reserved.
func (n *node) there(file string) bool { return cnitest.Exists(filepath.Join(n.dir, "networks", file)) }

// A pod has the JSON of the source file:PATH.
type pod struct {
	Namespace    string    `json:"namespace"`
	Name         string    `json:"name"`
	UID          string    `json:"uid,omitempty"`
	ContainerIDs []string  `json:"containerIDs,omitempty"`
	IPs          []string  `json:"ips,omitempty"`
	StartedAt    time.Time `json:"startedAt,omitzero"`
}

// pods writes a list of pods into the node's directory.
func (n *node) pods(name string, pods ...pod) {
	n.t.Helper()
	text, err := json.MarshalIndent(pods, "", "  ")
	must(n.t, err)
	n.put(name, string(text))
}

func (n *node) put(name, text string) {
	n.t.Helper()
	cnitest.Write(n.t, filepath.Join(n.dir, name), text, 0)
}

// sandbox makes up a sandbox ID, the same in every run.
func sandbox(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

const day = 24 * time.Hour
