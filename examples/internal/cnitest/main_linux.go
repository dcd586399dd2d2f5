// SPDX-License-Identifier: Apache-2.0

package cnitest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"syscall"
	"testing"
)

// Import paths of programs that tests build.
const (
	Plugins = "github.com/containernetworking/plugins/plugins/" // bridge is main/bridge of it
	CNI     = "github.com/containernetworking/cni/"
)

// inside marks a process in namespaces of its own, and names the directory of the programs.
const inside = "HOSTLOCAL_GC_CNITEST_BIN"

// programsIn names a permanent directory for the programs, for repeated tests of one package:
// existing programs are not built again.
const programsIn = "HOSTLOCAL_GC_CNITEST_PROGRAMS"

// Bin returns the directory of the programs that Main built.
func Bin() string { return os.Getenv(inside) }

// Main runs the tests of a package in network, mount and PID namespaces of their own, with empty
// /run and /var/lib. All processes and mounts of the tests end with these namespaces. Before that
// it builds programs into the directory Bin: each under its name, from a package at the version of
// go.mod, and the tools of the modules in the directories tools. Then prepare, if not nil, runs in
// the namespaces.
//
// The result is for os.Exit in TestMain. Without root no test runs, and in CI that is a failure.
func Main(m *testing.M, programs map[string]string, tools []string, prepare func() error) int {
	if !flag.Parsed() {
		flag.Parse()
	}
	run := outside
	if Bin() != "" {
		run = func(map[string]string, []string) (int, error) {
			if err := errors.Join(mounts(), sysctls()); err != nil {
				return 1, err
			}
			if prepare != nil {
				if err := prepare(); err != nil {
					return 1, err
				}
			}
			return m.Run(), nil
		}
	}
	code, err := run(programs, tools)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cnitest:", err)
		return 1
	}
	return code
}

// outside builds the programs, and runs this program again in namespaces of its own.
func outside(programs map[string]string, tools []string) (code int, err error) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			return 1, errors.New("the tests need root, and CI skips nothing")
		}
		fmt.Fprintln(os.Stderr, "--- SKIP: ALL TESTS of this package: they make network namespaces, which needs root")
		return 0, nil
	}
	dir := os.Getenv(programsIn)
	if dir == "" {
		if dir, err = os.MkdirTemp("", "cnitest-"); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if there, err := os.ReadDir(dir); err != nil {
		return 1, err
	} else if len(there) == 0 {
		if err := build(dir, programs, tools); err != nil {
			return 1, err
		}
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

// build builds all programs with one command, and the tools of each module with another. Without
// debug information linking is faster.
func build(dir string, programs map[string]string, tools []string) error {
	args := []string{"build", "-ldflags=-w", "-o", dir + "/"}
	for _, pkg := range programs {
		args = append(args, pkg)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	for name, pkg := range programs {
		built := path.Base(path.Join(filepath.ToSlash(wd), pkg)) // "." is named after its directory
		if err := os.Rename(filepath.Join(dir, built), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, module := range tools {
		cmd := exec.Command("go", "build", "-ldflags=-w", "-o", dir+"/", "tool")
		cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v in %s: %w\n%s", cmd, module, err, out)
		}
	}
	return nil
}

func mounts() error {
	for _, mount := range []struct {
		source, target, fs string
		flags              uintptr
	}{
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{"tmpfs", "/var/lib", "tmpfs", 0}, // with the attachments of cnitool and libcni
	} {
		if err := syscall.Mount(mount.source, mount.target, mount.fs, mount.flags, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", mount.target, err)
		}
	}
	return nil
}

// sysctls disables the detection of duplicate IPv6 addresses in this network namespace, for which
// plugins would wait for seconds.
func sysctls() error {
	const file = "/proc/sys/net/ipv6/conf/default/accept_dad"
	err := os.WriteFile(file, []byte("0"), 0)
	if os.IsNotExist(err) { // without IPv6
		return nil
	}
	return err
}
