// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// powerOff ends processes, mounts, network namespaces and interfaces, and removes files in /run, like a loss of
// power. Other files stay.
func (n *node) powerOff() error {
	err := n.end(syscall.SIGKILL)
	return errors.Join(err, end(), unmountAll(), removeBridges(), os.RemoveAll("/run/netns"), os.RemoveAll("/run/containerd"), os.RemoveAll("/run/hostlocal-gc"))
}

// reboot reboots the node. It removes containerd's state, which is on a tmpfs on any machine, and with wipeRoot also
// its root. It does not start containerd.
func (n *node) reboot(wipeRoot bool) {
	n.t.Helper()
	n.must(errors.Join(n.powerOff(), empty(n.path("state"))))
	if wipeRoot {
		n.must(empty(n.path("root")))
	}
}

// killAll kills every process in the namespaces except the first and this one, and returns when they have ended.
func killAll() error {
	if os.Getpid() != 1 && os.Getppid() != 1 {
		return errors.New("these are not the namespaces of the tests: no process was killed")
	}
	return eventually(func() error {
		left, err := others()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by now
		}
		if len(left) > 0 {
			err = fmt.Errorf("processes %v were not killed", left)
		}
		return err
	})
}

// eventually calls do until it succeeds.
func eventually(do func() error) error {
	timeout := time.After(maxWait)
	for tick := time.Tick(5 * time.Millisecond); ; {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-timeout:
			return err
		case <-tick:
		}
	}
}

// others returns the processes in the namespaces except the first, this one and zombies. A process of which only the
// first thread has ended is no zombie: it runs on, and another of its threads becomes the first if that executes a
// program (execve(2)).
func others() (pids []int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(name + "/stat")
		if err != nil {
			continue // it has just ended
		}
		// proc_pid_stat(5): after the name, which is in parentheses, come the state and, as the 20th of all fields,
		// the number of threads. While a thread becomes the first it may be 0.
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 17 && (fields[0] == "Z" || fields[0] == "X") && fields[17] == "1" {
			continue
		}
		pids = append(pids, pid)
	}
	return pids, err
}

// processesOf returns the processes of a pod: its shim, and those that the shim started. The processes of gVisor are
// not in the control group of the pod, but have its ID in their arguments.
func (n *node) processesOf(p pod) (pids []int) {
	n.t.Helper()
	all, err := others()
	n.must(err)
	for _, pid := range all {
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err == nil && (strings.Contains(arguments(pid), p.id) || strings.Contains(string(group), p.id)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// arguments returns the arguments of a process, or none if it has ended.
func arguments(pid int) string {
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(content)
}

// killAllOf kills the processes of a pod with its shim, so that no DEL is called.
func (n *node) killAllOf(p pod) {
	n.t.Helper()
	pids := n.processesOf(p)
	if len(pids) < 2 {
		n.t.Fatalf("%v has the processes %v, want a shim and a program", p, pids)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) { // it may have ended with another process
			n.must(err)
		}
	}
	n.await("the processes of "+p.name+" to end", func(context.Context) error {
		if left := n.processesOf(p); len(left) > 0 {
			return fmt.Errorf("there are still %v", left)
		}
		return nil
	})
}

// unmountAll removes the mounts below /run, the newest first.
func unmountAll() error {
	f, err := os.ReadFile("/proc/self/mountinfo")
	for _, line := range slices.Backward(strings.Split(string(f), "\n")) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], "/run/") {
			err = errors.Join(err, syscall.Unmount(fields[4], syscall.MNT_DETACH))
		}
	}
	return err
}

// removeBridges removes the bridges. Ends of veth pairs are removed with the namespaces of their peers.
func removeBridges() error {
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // by interfaces that are being removed
		links, err = netlink.LinkList()
	}
	for _, l := range links {
		if l.Type() == "bridge" {
			err = errors.Join(err, netlink.LinkDel(l))
		}
	}
	return err
}

// empty removes the contents of a directory, which may be missing.
func empty(dir string) error {
	entries, err := filepath.Glob(dir + "/*")
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(e))
	}
	return err
}

// removeCgroups removes the control group with that name and those below it, in each hierarchy. Their processes have
// been killed, but may not have ended yet.
func removeCgroups(name string) error {
	return eventually(func() (err error) {
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			groups, _ := filepath.Glob(pattern + name) // the patterns are well-formed
			for _, group := range groups {
				err = errors.Join(err, removeCgroup(group))
			}
		}
		return err
	})
}

func removeCgroup(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return ignoreGone(err)
	})
	for _, d := range slices.Backward(dirs) {
		if rmErr := ignoreGone(syscall.Rmdir(d)); rmErr != nil { // os.Remove tries unlink first, with a less useful error
			err = errors.Join(err, fmt.Errorf("removing %s: %w", d, rmErr))
		}
	}
	return err
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
