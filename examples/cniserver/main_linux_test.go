// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

// TestMain runs the tests in namespaces of their own. The server is the program of the
// tests, so it has the race detector if they have it. The plugin is built separately. The node
// has been up for a day, however young the machine is.
func TestMain(m *testing.M) {
	gctest.Uptime(nil, 24*time.Hour)
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		main()
		return
	}
	os.Exit(cnitest.Main(m, map[string]string{
		"cniserver": ".", "bridge": cnitest.Plugins + "main/bridge", "ptp": cnitest.Plugins + "main/ptp",
		"host-local": cnitest.Plugins + "ipam/host-local", "cnitool": cnitest.CNI + "cnitool",
	}, nil, func() error {
		// The first thread is in another network namespace, as it may be whenever a
		// server works in that of a container. The tests run in other threads.
		runtime.LockOSThread()
		return syscall.Unshare(syscall.CLONE_NEWNET)
	}))
}
