// SPDX-License-Identifier: Apache-2.0

package cnitest

import (
	"debug/buildinfo"
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

// Plugins is the import path of the CNI plugins: bridge is main/bridge of it.
const Plugins = "github.com/containernetworking/plugins/plugins/"

// inside marks a process in namespaces of its own, and names the directory of the programs.
const inside = "HOSTLOCAL_GC_CNITEST_BIN"

// programsIn names a permanent directory for the programs, for repeated tests of one package:
// existing programs are not built again.
const programsIn = "HOSTLOCAL_GC_CNITEST_PROGRAMS"

// A Tool is a package of a module that is no dependency of this repository: `go install` refuses some
// of them, and others have conflicting requirements.
type Tool struct{ Package, Module, Version string }

// Multus is a tool that several packages need.
var Multus = Tool{"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4", "v4.2.4"}

// Install builds a tool into a directory, from a go.mod that it writes to a temporary directory. A tool
// of that version which is there already stays.
func Install(dir string, tool Tool) (err error) {
	binary := filepath.Join(dir, path.Base(tool.Package))
	if info, err := buildinfo.ReadFile(binary); err == nil && info.Main.Path == tool.Module && info.Main.Version == tool.Version {
		return nil
	}
	module, err := os.MkdirTemp("", "cnitest-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(module)) }()
	text := fmt.Sprintf("module scratch\n\ngo 1.26.0\n\ntool %s\n\nrequire %s %s\n", tool.Package, tool.Module, tool.Version)
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(text), 0o600); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-mod=mod", "-race=false", "-buildvcs=false", "-ldflags=-w", "-o", binary, "tool")
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", tool.Package, err, out)
	}
	return nil
}

// Bin returns the directory of the programs that Main built.
func Bin() string { return os.Getenv(inside) }

// Main runs the tests of a package in network, mount and PID namespaces of their own, with empty
// /run and /var/lib. All processes and mounts of the tests end with these namespaces. Before that
// it builds programs into the directory Bin: each under its name, from a package at the version of
// go.mod, and the tools.
//
// The result is for os.Exit in TestMain. Without root no test runs, and in CI that is a failure.
func Main(m *testing.M, programs map[string]string, tools []Tool) (code int) {
	if !flag.Parsed() {
		flag.Parse()
	}
	var err error
	if Bin() == "" {
		code, err = outside(programs, tools)
	} else if err = errors.Join(mounts(), sysctls(), startContainer()); err == nil {
		code = m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cnitest:", err)
		return 1
	}
	return code
}

// startContainer starts a process in a child PID namespace, which shows that this is a node (netns,
// Options.Nested): without one it can't be told which network namespaces have ended. It ends with the tests.
func startContainer() error {
	container := exec.Command("sleep", "infinity")
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return container.Start()
}

// outside builds the programs, and runs this program again in namespaces of its own.
func outside(programs map[string]string, tools []Tool) (code int, err error) {
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

// build builds the programs and the tools. Without debug information linking is faster.
func build(dir string, programs map[string]string, tools []Tool) error {
	overlay, err := OldNode(dir)
	if err != nil {
		return err
	}
	for name, pkg := range programs {
		cmd := exec.Command("go", "build", overlay, "-ldflags=-w", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd, err, out)
		}
	}
	for _, tool := range tools {
		if err := Install(dir, tool); err != nil {
			return err
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
