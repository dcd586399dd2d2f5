// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
)

const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC

// nodeDir is where a node has its files: all of them, but for those of the CNI
// plugins in /var/lib/cni and the network namespaces in /run/netns.
const nodeDir = "/run/containerdtest"

// first is process 1. It covers what the tests may write to, starts them, and
// reaps whoever loses its parent: shims do, and containerd waits for those that
// it finds dead.
func first() (status int, err error) {
	if err := cover(); err != nil {
		return 1, err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return 1, fmt.Errorf("bringing up lo: %w", err)
	}
	cmd := again("tests")
	// Not cmd.Start: its Wait and the one below would take each other's children.
	tests, err := os.StartProcess(cmd.Path, cmd.Args, &os.ProcAttr{
		Env: cmd.Env, Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, fmt.Errorf("starting the tests: %w", err)
	}
	for {
		var ended syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ended, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("waiting for the tests: %w", err)
		case pid != tests.Pid:
		case ended.Exited():
			return ended.ExitStatus(), nil
		default:
			return 1, fmt.Errorf("the tests were ended by %v", ended.Signal())
		}
	}
}

// cover gives the namespaces a /proc, /run and /var/lib/cni of their own.
func cover() error {
	type mount struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}
	all := []mount{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE, ""},
		{"proc", "/proc", "proc", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, ""},
		{"tmpfs", "/run", "tmpfs", 0, "mode=0755"},
	}
	for _, m := range all {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", m.kind, m.target, err)
		}
	}
	// libcni keeps its results in /var/lib/cni, come what may. Where the machine
	// has no such directory it must not get one.
	if _, err := os.Stat("/var/lib/cni"); errors.Is(err, fs.ErrNotExist) {
		for _, dir := range []string{"/run/lib", "/run/lib/upper", "/run/lib/work"} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
		}
		const layers = "lowerdir=/var/lib,upperdir=/run/lib/upper,workdir=/run/lib/work"
		if err := syscall.Mount("overlay", "/var/lib", "overlay", 0, layers); err != nil {
			return fmt.Errorf("covering /var/lib: %w", err)
		}
		return os.Mkdir("/var/lib/cni", 0o755)
	}
	if err := syscall.Mount("tmpfs", "/var/lib/cni", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("covering /var/lib/cni: %w", err)
	}
	return nil
}
