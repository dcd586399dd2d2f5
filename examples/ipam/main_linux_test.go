// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// inside says that this process has namespaces of its own.
const inside = "HOSTLOCAL_GC_IPAM_TEST_BIN"

// bin holds what the tests run: hostlocal-gc-ipam, host-local, the main plugins, flannel,
// Multus, and the program only.
var bin string //nolint:gochecknoglobals // set once, in TestMain

// The first thread is what the process is shown by, and process 1 shows the node's
// network namespace. It stays there: only the main goroutine has it.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // in main it would be too late

// TestMain runs the tests in a network, mount and PID namespace of their own:
// whatever they leave, processes and mounts included, ends with it.
func TestMain(m *testing.M) {
	flag.Parse()
	if bin = os.Getenv(inside); bin != "" {
		os.Exit(runInside(m))
	}
	code, err := runOutside()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ipam:", err)
		code = 1
	}
	os.Exit(code)
}

func runOutside() (code int, err error) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			return 1, errors.New("the tests need root, and CI skips nothing")
		}
		fmt.Fprintln(os.Stderr, "--- SKIP: ALL TESTS of ipam: they make network namespaces, which needs root")
		return 0, nil
	}
	dir, err := os.MkdirTemp("", "ipam-test-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := buildAll(dir); err != nil {
		return 1, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// buildAll builds the plugin and those that it works with, at the versions of go.mod.
func buildAll(dir string) error {
	const plugins, tools = "github.com/containernetworking/plugins/plugins/", "../internal/tools/"
	for _, b := range []struct {
		in, work, to string
		what         []string
	}{
		{".", "", "/", []string{plugins + "main/bridge", plugins + "main/macvlan", plugins + "ipam/host-local", "./testdata/only", "./testdata/multicall"}},
		{".", "", "/hostlocal-gc-ipam", []string{"."}},
		{tools + "multus", "off", "/", []string{"tool"}},
		{tools + "flannel", "off", "/", []string{"tool"}},
	} {
		cmd := exec.Command("go", append([]string{"build", "-o", dir + b.to}, b.what...)...)
		cmd.Dir, cmd.Env = b.in, append(os.Environ(), "CGO_ENABLED=0")
		if b.work != "" {
			cmd.Env = append(cmd.Env, "GOWORK="+b.work)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd, err, out)
		}
	}
	return nil
}

func runInside(m *testing.M) int {
	for _, mount := range []struct {
		source, target, fs string
		flags              uintptr
	}{
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{"tmpfs", "/var/lib", "tmpfs", 0}, // where libcni's caches are that are always read
	} {
		if err := syscall.Mount(mount.source, mount.target, mount.fs, mount.flags, ""); err != nil {
			fmt.Fprintf(os.Stderr, "mounting %s: %v\n", mount.target, err)
			return 1
		}
	}
	// A process in a PID namespace below shows that this is a node (netns, Options.Nested).
	container := exec.Command("sleep", "infinity") // it dies with this process, the first of its namespace
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := container.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "starting what stands for a container:", err)
		return 1
	}
	return m.Run()
}
