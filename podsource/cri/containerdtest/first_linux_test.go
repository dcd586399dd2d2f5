// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// cover gives the namespaces a /proc, a /run and CNI directories of their own.
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
	// libcni keeps its results in /var/lib/cni, come what may, and ctr finds networks
	// and plugins where go-cni looks for them.
	for _, dir := range []string{"/var/lib/cni", "/etc/cni", "/opt/cni"} {
		if err := coverOne(dir); err != nil {
			return fmt.Errorf("covering %s: %w", dir, err)
		}
	}
	// A search for a runtime would ask the machine's.
	const crictl = "/etc/crictl.yaml"
	if _, err := os.Stat(crictl); err == nil {
		if err := syscall.Mount(os.DevNull, crictl, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("covering %s: %w", crictl, err)
		}
	}
	// nerdctl would load an AppArmor profile into the machine's kernel.
	const security = "/sys/kernel/security"
	if _, err := os.Stat(security); err == nil {
		if err := syscall.Mount("tmpfs", security, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("covering %s: %w", security, err)
		}
	}
	return nil
}

// coverOne covers a directory by an empty one. Where the machine has no such
// directory it must not get one.
func coverOne(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return err
		}
		return syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755")
	}
	parent, layers := filepath.Dir(dir), "/run/layers"+filepath.Dir(dir)
	for _, d := range []string{layers + "/upper", layers + "/work"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", parent, layers+"/upper", layers+"/work")
	if err := syscall.Mount("overlay", parent, "overlay", 0, data); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o755)
}
