// SPDX-License-Identifier: Apache-2.0

package containerd

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
//	outside     the process of `go test`: builds, and waits
//	supervisor  waits, removes the control groups, and checks for leftovers, also
//	            when outside was killed; in its own session, so that ^C does not
//	            end it
//	first       process 1 of the namespaces: mounts, and reaps orphans. Everything
//	            in the namespaces ends with it
//	tests       runs the tests
//
// Killing any of them ends all below it, by PR_SET_PDEATHSIG, by the pipe between outside and
// supervisor, or by the end of the namespaces.
const (
	roleEnv   = "CONTAINERDTEST_ROLE"
	binEnv    = "CONTAINERDTEST_BIN"    // directory of the binaries
	debianEnv = "CONTAINERDTEST_DEBIAN" // directory of Debian's packages; empty: none
	cgroupEnv = "CONTAINERDTEST_CGROUP" // name of the control group of all pods
	callerEnv = "CONTAINERDTEST_CALLER" // process with which the suite ends; empty: none

	endpointEnv = "CONTAINER_RUNTIME_ENDPOINT" // of crictl
)

// whyNot is the reason why the tests can't run. It is set before they begin.
var whyNot error

func TestMain(m *testing.M) {
	var status int
	var err error
	switch role := os.Getenv(roleEnv); role {
	case "":
		if whyNot = possible(); whyNot != nil {
			say("NOTHING IS TESTED HERE: %v", whyNot)
			status = m.Run() // which skips each test, or fails it in CI
			break
		}
		status, err = outside()
	case "supervisor":
		status, err = supervisor()
	case "first":
		status, err = first()
	case "tests":
		if err = os.Unsetenv(endpointEnv); err == nil { // it may be set for the machine's crictl
			status = m.Run()
		}
	default:
		err = fmt.Errorf("%s=%s: unknown role", roleEnv, role)
	}
	if err != nil {
		say("%v", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// reexec returns a command that runs this program in another role.
func reexec(role string, env ...string) *exec.Cmd {
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
	// With the name of the suite that started this one as a prefix, if one did.
	group := cmp.Or(os.Getenv(cgroupEnv), "hostlocal-gc-containerdtest") + "-" + rand.Text()
	alive, keep, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	cmd := reexec("supervisor", append(env, cgroupEnv+"="+group)...)
	cmd.ExtraFiles = []*os.File{alive}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	status, err = wait(cmd)
	runtime.KeepAlive(keep) // it closes with this process
	// The supervisor does this, too, unless it was killed.
	return status, errors.Join(err, removeCgroups(group))
}

// endWith ends this process when another one ends. PR_SET_PDEATHSIG does not do that for the
// caller of the go command, which is not the parent of this process.
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

// possible returns an error if the tests can't run here.
func possible() error {
	if os.Geteuid() != 0 {
		return errors.New("containerd needs root")
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("containerd needs its own namespaces here: %w", err)
	}
	return nil
}

// wait runs cmd, and returns its exit status. If a signal ended cmd, that is an error.
func wait(cmd *exec.Cmd) (int, error) {
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("the supervisor of the tests: %w", err)
	}
	return 0, nil
}

func supervisor() (status int, err error) {
	signal.Ignore(syscall.SIGPIPE) // the reader of the output may have ended
	runtime.LockOSThread()         // the death signal is sent when the thread that started the child ends
	before, err := mounts()
	if err != nil {
		return 1, err
	}
	cmd := reexec("first")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("starting the first process of the namespaces: %w", err)
	}
	inside, held, err := namespacesOf(cmd.Process.Pid)
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(3, "outside")) // ends when outside does
		_ = cmd.Process.Kill()                               // it may have ended, too
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

// leftovers returns an error with everything that the suite left outside its namespaces.
func leftovers(inside map[string]bool, before map[string]bool, group string) error {
	var errs []error
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, p := range processes {
		for _, kind := range kinds {
			// A process that has just ended has no link.
			if ns, err := os.Readlink(filepath.Join(p, "ns", kind)); err == nil && inside[ns] {
				errs = append(errs, fmt.Errorf("process %s was left behind in %s", filepath.Base(p), ns))
			}
		}
	}
	after, err := mounts()
	errs = append(errs, err)
	for m := range after {
		// Other programs may mount something on the machine, but not these.
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

// namespacesOf returns the names of a process's namespaces. While their files are open the
// kernel does not reuse the names.
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

// mounts returns the mount points of this process's mount namespace.
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
