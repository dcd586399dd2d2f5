// SPDX-License-Identifier: Apache-2.0

// Runclite executes the runc in PATH, without the limits of containers. Called by the name
// "runsclite" it does so with gVisor's runsc.
//
// containerd sets CPU shares for each sandbox. With version 2 of control groups this needs a
// controller that the root group must enable for its children, which is not possible in a
// container. The tests do not need the limits.
//
// A file START.<pod name> in the directory $CONTAINERDTEST_CONTROL has the duration by which the
// start of the pod's sandbox is delayed, unless the file is removed before.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "runclite: %v\n", err)
		os.Exit(1) //nolint:forbidigo // runc fails with this status
	}
}

// gvisor are the flags of runsc. The platform systrap does not need KVM.
var gvisor = []string{"--platform=systrap", "--network=sandbox", "--ignore-cgroups"}

// run executes runc. It returns on errors, and after runsc kill.
func run() error {
	for i, arg := range os.Args[:len(os.Args)-1] {
		if arg == "--bundle" {
			if err := removeLimits(filepath.Join(os.Args[i+1], "config.json")); err != nil {
				return err
			}
		}
	}
	args := os.Args
	runc, err := exec.LookPath("runc")
	if filepath.Base(args[0]) == "runsclite" {
		runc, err = exec.LookPath("runsc")
		args = slices.Concat(args[:1], gvisor, args[1:])
		if err == nil && slices.Contains(args, "kill") {
			return kill(runc, args[1:])
		}
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", runc, syscall.Exec(runc, args, os.Environ()))
}

// kill runs runsc kill. If the container has ended, it replaces the message of runsc with that
// of runc, which the shim expects.
func kill(runsc string, args []string) error {
	out, err := exec.Command(runsc, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.ReplaceAll(out, []byte("sandbox is not running"), []byte("container not running")))
	}
	return nil
}

// removeLimits removes the limits from a container's configuration (OCI runtime spec,
// linux.resources).
func removeLimits(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config map[string]any
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber() // some numbers do not fit into a float64
	if err := d.Decode(&config); err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	if linux, ok := config["linux"].(map[string]any); ok {
		delete(linux, "resources")
	}
	content, err = json.Marshal(config)
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return err
	}
	annotations, _ := config["annotations"].(map[string]any)
	name, _ := annotations["io.kubernetes.cri.sandbox-name"].(string) // as containerd sets it
	return delayStart(name)
}

// delayStart waits for the duration in the file of the pod, if there is one, or for its removal.
func delayStart(name string) error {
	file := filepath.Join(os.Getenv("CONTAINERDTEST_CONTROL"), "START."+name)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return err
	}
	end := time.After(d)
	for tick := time.Tick(10 * time.Millisecond); ; {
		select {
		case <-end:
			return nil
		case <-tick:
			if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
		}
	}
}
