// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary runs as four processes, each the parent of the next:
//
//	outside   what `go test` started: builds, and waits
//	guardian  waits, removes the control groups, and looks for leftovers, also
//	          when outside was killed; in a session of its own, where ^C does
//	          not come
//	first     process 1 of the namespaces: mounts, and reaps orphans. With it
//	          everything in the namespaces ends
//	tests     runs the tests
//
// Killing any of them ends all below it, by PR_SET_PDEATHSIG, by the pipe
// between outside and guardian, or by the end of the namespaces.
const (
	roleEnv   = "CONTAINERDTEST_ROLE"
	binEnv    = "CONTAINERDTEST_BIN"    // directory of the binaries that were built
	debianEnv = "CONTAINERDTEST_DEBIAN" // directory of what Debian's packages hold; empty: there is none
	cgroupEnv = "CONTAINERDTEST_CGROUP" // name of the control group that all pods are below
	callerEnv = "CONTAINERDTEST_CALLER" // process that has all this end with it; empty: none

	endpointEnv = "CONTAINER_RUNTIME_ENDPOINT" // of crictl
)

// whyNot says why the tests can't run here. It is set before they begin.
var whyNot error

func TestMain(m *testing.M) {
	var status int
	var err error
	switch role := os.Getenv(roleEnv); role {
	case "":
		if whyNot = possible(); whyNot != nil {
			say("NOTHING IS TESTED HERE: %v", whyNot)
			status = m.Run() // which skips, or fails, each test
			break
		}
		status, err = outside()
	case "guardian":
		status, err = guardian()
	case "first":
		status, err = first()
	case "tests":
		if err = os.Unsetenv(endpointEnv); err == nil { // the tester's crictl has another
			status = m.Run()
		}
	default:
		err = fmt.Errorf("%s=%s: there is no such role", roleEnv, role)
	}
	if err != nil {
		say("%v", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// again is this program once more, in another role.
func again(role string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(env, roleEnv+"="+role)
	for _, old := range os.Environ() {
		name, _, _ := strings.Cut(old, "=")
		if !slices.ContainsFunc(cmd.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			cmd.Env = append(cmd.Env, old)
		}
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

func outside() (status int, err error) {
	if err := errors.Join(endWith(os.Getenv(callerEnv)), os.Unsetenv(callerEnv)); err != nil {
		return 1, err
	}
	env, err := binaries()
	if err != nil {
		return 1, err
	}
	// Below the name of the suite whose test started this one, if one did.
	group := cmp.Or(os.Getenv(cgroupEnv), "hostlocal-gc-containerdtest") + "-" + rand.Text()
	alive, keep, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	cmd := again("guardian", append(env, cgroupEnv+"="+group)...)
	cmd.ExtraFiles = []*os.File{alive}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	status, err = wait(cmd)
	runtime.KeepAlive(keep) // closed, it says that we are gone
	// Where the guardian was killed nobody else does this.
	return status, errors.Join(err, removeCgroups(group))
}

// endWith ends this process when another one ends. Who started the command go is not the parent of what
// that runs.
func endWith(caller string) error {
	if caller == "" {
		return nil
	}
	pid, err := strconv.Atoi(caller)
	if err != nil {
		return fmt.Errorf("%s: %w", callerEnv, err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("watching process %d, which started this: %w", pid, err)
	}
	go func() {
		var err error = unix.EINTR
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		}
		os.Exit(1)
	}()
	return nil
}

// possible says why namespaces can't be had, or nil.
func possible() error {
	if os.Geteuid() != 0 {
		return errors.New("it takes root to run containerd")
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("it takes namespaces of its own to run containerd: %w", err)
	}
	return nil
}

// wait runs cmd and returns its exit status. Death by a signal is an error.
func wait(cmd *exec.Cmd) (int, error) {
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("the guardian of the tests: %w", err)
	}
	return 0, nil
}

func guardian() (status int, err error) {
	signal.Ignore(syscall.SIGPIPE) // who reads what we say may be gone
	runtime.LockOSThread()         // the death signal is sent when the thread ends that made the child
	before, err := mounts()
	if err != nil {
		return 1, err
	}
	cmd := again("first")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("starting the first process of the namespaces: %w", err)
	}
	inside, held, err := namespacesOf(cmd.Process.Pid)
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(3, "outside")) // ends when outside does
		_ = cmd.Process.Kill()                               // it may be gone, too
	}()
	var exit *exec.ExitError
	switch waited := cmd.Wait(); {
	case waited == nil:
	case errors.As(waited, &exit) && exit.Exited():
		status = exit.ExitCode()
	default:
		status, err = 1, errors.Join(err, fmt.Errorf("the first process of the namespaces: %w", waited))
	}
	group := os.Getenv(cgroupEnv)
	err = errors.Join(err, removeCgroups(group), leftovers(inside, before, group))
	runtime.KeepAlive(held)
	return status, err
}

// leftovers is an error that names what the namespaces left in the world outside.
func leftovers(inside map[string]bool, before map[string]bool, group string) error {
	var errs []error
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, p := range processes {
		for _, kind := range kinds {
			// A process that ends meanwhile has no link any more.
			if ns, err := os.Readlink(filepath.Join(p, "ns", kind)); err == nil && inside[ns] {
				errs = append(errs, fmt.Errorf("process %s was left behind in %s", filepath.Base(p), ns))
			}
		}
	}
	after, err := mounts()
	errs = append(errs, err)
	for m := range after {
		// Others may be at work on the machine, but not with these.
		if !before[m] && (strings.Contains(m, nodeDir) || strings.Contains(m, "/netns/cni-")) {
			errs = append(errs, fmt.Errorf("mount %s was left behind", m))
		}
	}
	for _, dir := range cgroups(group + "*") {
		errs = append(errs, fmt.Errorf("control group %s was left behind", dir))
	}
	return errors.Join(errs...)
}

// kinds are the namespaces by their names in /proc/PID/ns.
var kinds = []string{"mnt", "net", "pid"}

// namespacesOf returns the names of a process's namespaces. While their files are held the kernel
// gives these names to no others.
func namespacesOf(pid int) (names map[string]bool, held []*os.File, err error) {
	names = make(map[string]bool)
	for _, kind := range kinds {
		path := fmt.Sprintf("/proc/%d/ns/%s", pid, kind)
		ns, err := os.Readlink(path)
		if err != nil {
			return nil, nil, err
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}
		names[ns], held = true, append(held, f)
	}
	return names, held, nil
}

// mounts are the mount points that this process sees.
func mounts() (map[string]bool, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := make(map[string]bool)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			out[fields[4]] = true // proc(5): the fifth is the mount point
		}
	}
	return out, nil
}
