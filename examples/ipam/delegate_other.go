// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func selfFile(path string) string { return path }

// add runs the delegate, as for every command.
func add(delegate string) int { return become(delegate) }

// become runs the delegate as a child, since not every system can replace a process.
func become(delegate string) int {
	cmd := exec.Command(delegate)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, delegateEnv()
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode()
	}
	if err != nil {
		return printError(fmt.Sprintf("executing %s: %v", delegate, err), "")
	}
	return 0
}
