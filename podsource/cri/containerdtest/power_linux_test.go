// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// powerOff ends everything that a power switch would end: processes, mounts,
// network namespaces and interfaces, with what it has in /run. Other files stay.
func (n *node) powerOff() error {
	err := n.end(syscall.SIGKILL)
	return errors.Join(err, killAll(), unmountAll(), removeBridges(), removeCgroups(os.Getenv(cgroupEnv)),
		os.RemoveAll("/run/netns"), os.RemoveAll("/run/containerd"))
}

// reboot switches the node off and on again. containerd's state is gone then, as
// it is on a tmpfs on any machine. Its root stays, unless it is wiped. containerd
// does not run yet afterwards.
func (n *node) reboot(wipeRoot bool) {
	n.t.Helper()
	n.must(errors.Join(n.powerOff(), empty(n.path("state"))))
	if wipeRoot {
		n.must(empty(n.path("root")))
	}
}

// killAll kills every process in the namespaces but the first and this one, and
// returns when they are gone.
func killAll() error {
	if os.Getenv(roleEnv) != "tests" || os.Getppid() != 1 {
		return errors.New("these are not the namespaces of the tests: nothing is killed here")
	}
	patience := time.After(patience)
	for tick := time.Tick(5 * time.Millisecond); ; {
		left, err := others()
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone by now
		}
		select {
		case <-patience:
			return fmt.Errorf("processes %v can't be killed", left)
		case <-tick:
		}
	}
}

// others are the processes in the namespaces besides the first and this one,
// without those that have ended and wait for their parent to notice.
func others() ([]int, error) {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(name + "/stat")
		if err != nil {
			continue // it has just ended
		}
		// proc(5): the state follows the name, which is in parentheses.
		_, rest, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X") {
			continue
		}
		out = append(out, pid)
	}
	return out, nil
}

// unmountAll removes the mounts below /run, the newest first.
func unmountAll() error {
	f, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for _, line := range slices.Backward(strings.Split(strings.TrimSpace(string(f)), "\n")) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasPrefix(fields[4], "/run/") {
			continue
		}
		if err := syscall.Unmount(fields[4], syscall.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", fields[4], err))
		}
	}
	return errors.Join(errs...)
}

// removeBridges removes every interface but lo: bridges, and ends of veth pairs
// whose other end is about to go with its namespace.
func removeBridges() error {
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // by those that go meanwhile, of which there is an end
		links, err = netlink.LinkList()
	}
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if l.Type() != "bridge" {
			continue
		}
		if err := netlink.LinkDel(l); err != nil {
			errs = append(errs, fmt.Errorf("removing interface %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// empty removes what a directory holds, which may be missing.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}
