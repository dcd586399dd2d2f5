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

// bin holds what the tests run: hostlocal-gc-ipam, host-local, the main plugins, flannel,
// Multus, and two programs that stand for others.
var bin = cnitest.Bin()

// The first thread is what the process is shown by, and process 1 shows the node's
// network namespace. It stays there: only the main goroutine has it.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // in main it would be too late

func TestMain(m *testing.M) {
	os.Exit(cnitest.Main(m, map[string]string{
		"hostlocal-gc-ipam": ".",
		"bridge":            cnitest.Plugins + "main/bridge",
		"macvlan":           cnitest.Plugins + "main/macvlan",
		"host-local":        cnitest.Plugins + "ipam/host-local",
		"only":              "./testdata/only",
		"multicall":         "./testdata/multicall",
	}, []string{"../internal/tools/multus", "../internal/tools/flannel"}, startContainer))
}

// startContainer starts a process in a PID namespace below, which shows that this is a
// node (netns, Options.Nested). It dies with the first process of the tests.
func startContainer() error {
	container := exec.Command("sleep", "infinity")
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := container.Start(); err != nil {
		return fmt.Errorf("starting what stands for a container: %w", err)
	}
	return nil
}
