// SPDX-License-Identifier: Apache-2.0

package containerd

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

// nodeDir has all files of a node except those of the CNI plugins in /var/lib/cni and the
// network namespaces in /run/netns.
const nodeDir = "/run/containerdtest"

// first is process 1. It mounts over the directories to which the tests may write, starts the
// tests, and reaps orphans, such as shims. containerd waits until dead shims are reaped.
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
	cmd := reexec("tests")
	// Not cmd.Start: its Wait and Wait4 below would reap each other's children.
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
			return 1, fmt.Errorf("the tests were killed by %v", ended.Signal())
		}
	}
}

// cover mounts an own /proc and /run, and own CNI directories.
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
	// libcni always keeps its results in /var/lib/cni, and ctr reads networks and plugins from
	// the default directories of go-cni.
	for _, dir := range []string{"/var/lib/cni", "/etc/cni", "/opt/cni"} {
		if err := coverOne(dir); err != nil {
			return fmt.Errorf("covering %s: %w", dir, err)
		}
	}
	// Otherwise a search would find the machine's runtime.
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

// coverOne mounts an empty directory over dir. If the machine does not have dir, it creates dir
// in an overlay of its parent, and not on the machine.
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
