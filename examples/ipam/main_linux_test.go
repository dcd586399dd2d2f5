// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// bin contains hostlocal-gc-ipam, host-local, the main plugins, flannel, Multus, and two programs
// of testdata.
var bin = cnitest.Bin()

// The first thread represents the process in /proc, and process 1 shows the node's network
// namespace. The main goroutine must stay on that thread.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // in main it would be too late

func TestMain(m *testing.M) {
	os.Exit(cnitest.Main(m, map[string]string{
		"hostlocal-gc-ipam": ".",
		"bridge":            cnitest.Plugins + "main/bridge",
		"macvlan":           cnitest.Plugins + "main/macvlan",
		"host-local":        cnitest.Plugins + "ipam/host-local",
	}, []cnitest.Tool{cnitest.Multus, cnitest.Flannel}, startContainer))
}

// startContainer starts a process in a child PID namespace, which shows that this is a node (netns,
// Options.Nested). It ends with the first process of the tests.
func startContainer() error {
	container := exec.Command("sleep", "infinity")
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := container.Start(); err != nil {
		return fmt.Errorf("starting the process of a container: %w", err)
	}
	return nil
}
