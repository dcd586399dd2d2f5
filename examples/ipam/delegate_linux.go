// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// selfFile is this program's file, even after an upgrade has replaced the file at its path.
func selfFile(string) string { return "/proc/self/exe" }

// calledAs returns the name in the delegate's argv[0]. In k3s the delegate is a link to a program
// that contains all plugins, and runs the plugin of that name.
func calledAs(delegate string) string { return filepath.Join(filepath.Dir(delegate), plainName) }

// become replaces this process by the delegate, which inherits stdin, stdout and stderr. It returns
// only on error.
func become(delegate string) int {
	err := syscall.Exec(delegate, []string{calledAs(delegate)}, delegateEnv())
	return printError(fmt.Sprintf("executing %s: %v", delegate, err), "")
}

// A result is the delegate's output and exit code.
type result struct {
	out  []byte
	code int
}

// runDelegate executes the delegate and waits for its end. It returns an error if the delegate did
// not run or was killed. The delegate is killed when this process ends, as a killed host-local
// would be: a later reservation would be a leak. The kernel kills it when the thread that started
// it ends, so the caller must be locked to its thread.
func runDelegate(delegate string, stdin []byte) (result, error) {
	cmd := exec.Command(delegate)
	cmd.Args[0] = calledAs(delegate)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = bytes.NewReader(stdin), &out, os.Stderr, delegateEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return result{out.Bytes(), exit.ExitCode()}, nil
	}
	if err != nil {
		return result{}, fmt.Errorf("executing %s: %w", delegate, err)
	}
	return result{out.Bytes(), 0}, nil
}

// descendsFromItself reports whether an ancestor of this process runs the same program, as behind a
// script in the place of host-local that does not pass the mark on. A runtime that executes CNI
// plugins is a different program.
func descendsFromItself() bool {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	for _, pid := range ancestors()[1:] {
		info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && os.SameFile(info, self) {
			return true
		}
	}
	return false
}
