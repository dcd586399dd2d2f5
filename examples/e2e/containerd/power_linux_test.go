// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// powerOff ends processes, mounts, network namespaces and interfaces, and removes files in /run,
// like a loss of power. Other files stay.
func (n *node) powerOff() error {
	err := n.end(syscall.SIGKILL)
	return errors.Join(err, killAll(), unmountAll(), removeBridges(), removeCgroups(os.Getenv(cgroupEnv)),
		os.RemoveAll("/run/netns"), os.RemoveAll("/run/containerd"))
}

// reboot reboots the node. It removes containerd's state, which is on a tmpfs on any machine, and
// with wipeRoot also its root. It does not start containerd.
func (n *node) reboot(wipeRoot bool) {
	n.t.Helper()
	n.must(errors.Join(n.powerOff(), empty(n.path("state"))))
	if wipeRoot {
		n.must(empty(n.path("root")))
	}
}

// killAll kills every process in the namespaces except the first and this one, and returns when
// they have ended.
func killAll() error {
	if os.Getenv(roleEnv) != "tests" || os.Getppid() != 1 {
		return errors.New("these are not the namespaces of the tests: no process was killed")
	}
	timeout := time.After(maxWait)
	for tick := time.Tick(5 * time.Millisecond); ; {
		left, err := others()
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by now
		}
		select {
		case <-timeout:
			return fmt.Errorf("processes %v can't be killed", left)
		case <-tick:
		}
	}
}

// others returns the processes in the namespaces except the first, this one and zombies. A process
// of which only the first thread has ended is no zombie: it runs on, and another of its threads
// becomes the first if that executes a program (execve(2)).
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
		// proc_pid_stat(5): after the name, which is in parentheses, come the state and, as the 20th
		// of all fields, the number of threads. While a thread becomes the first it may be 0.
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 17 && (fields[0] == "Z" || fields[0] == "X") && fields[17] == "1" {
			continue
		}
		out = append(out, pid)
	}
	return out, nil
}

// leaderless is the role of a process whose first thread has ended. It ends with its stdin.
const leaderless = "leaderless"

func init() { //nolint:gochecknoinits // in main this may be another thread than the first
	if os.Getenv(roleEnv) != leaderless {
		return
	}
	go func() {
		for stat := []byte(nil); !bytes.Contains(stat, []byte(") Z")); {
			var err error
			if stat, err = os.ReadFile("/proc/self/stat"); err != nil {
				say("%v", err)
				os.Exit(1)
			}
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // ends only this thread
}

// killAll also ends a process whose first thread has ended. A process is in this state for a moment
// when another of its threads executes a program.
func TestKillAllLeaderless(t *testing.T) {
	need(t)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+leaderless)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if said := readUntil(bufio.NewReader(stdout), "ready"); !strings.Contains(said, "ready") {
		t.Errorf("it is not ready: %q", said)
	}
	if left, err := others(); err != nil || !slices.Contains(left, cmd.Process.Pid) {
		t.Errorf("%d is not among %v: %v", cmd.Process.Pid, left, err)
	}
	if err := killAll(); err != nil {
		t.Error(err)
	}
	_, err = stdin.Write(make([]byte, 1))
	if err := errors.Join(stdin.Close(), ignoreExit(cmd.Wait())); err != nil {
		t.Error(err)
	}
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the process still reads its input: %v", err)
	}
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

// removeBridges removes the bridges. Ends of veth pairs are removed with the namespaces of their
// peers.
func removeBridges() error {
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // by interfaces that are being removed
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

// empty removes the contents of a directory, which may be missing.
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
