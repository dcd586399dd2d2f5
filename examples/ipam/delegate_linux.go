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

// selfFile is where this program can be read, also after an upgrade has put another
// one at its path.
func selfFile(string) string { return "/proc/self/exe" }

// calledAs is the name by which the delegate is called, whatever its file is called: in
// k3s it is a link to a program that is all plugins, and that name says which one.
func calledAs(delegate string) string { return filepath.Join(filepath.Dir(delegate), plainName) }

// become replaces this process by the delegate, which inherits stdin, stdout and
// stderr. It returns only if that is not possible.
func become(delegate string) int {
	err := syscall.Exec(delegate, []string{calledAs(delegate)}, delegateEnv())
	return printError(fmt.Sprintf("executing %s: %v", delegate, err), "")
}

// A result is what the delegate printed, and its exit code.
type result struct {
	out  []byte
	code int
}

// runDelegate executes the delegate and waits for its end. An error is that it did
// not run, or was killed. It ends with this process, as host-local alone would that was
// killed: what it reserved later would be a leak. The kernel sees to that when the thread
// ends that started it, so the caller must be locked to its thread.
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

// descendsFromItself reports whether this process descends from one of the same program,
// as it does where a script in the place of host-local executes it and does not pass the
// mark on. A runtime that executes CNI plugins is none.
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
