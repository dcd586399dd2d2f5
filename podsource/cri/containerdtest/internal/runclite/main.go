// SPDX-License-Identifier: Apache-2.0

// Runclite is the runc in PATH, for containers without limits. Called by the name
// "runsclite" it is gVisor's runsc in the same way.
//
// containerd gives each sandbox a share of the processor. With version 2 of
// control groups that takes a controller which the root group must pass on, and
// in a container on such a machine it can't. A pod is as good without.
//
// A file START.<pod name> in the directory that CONTAINERDTEST_CONTROL names says
// for how long the sandbox of that pod takes to start.
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
		os.Exit(1) //nolint:forbidigo // so runc tells that it failed
	}
}

// gvisor are runsc's flags. Systrap takes no KVM.
var gvisor = []string{"--platform=systrap", "--network=sandbox", "--ignore-cgroups"}

// run becomes runc, or returns when that has ended or can't be run.
func run() error {
	for i, arg := range os.Args[:len(os.Args)-1] {
		if arg == "--bundle" {
			if err := lift(filepath.Join(os.Args[i+1], "config.json")); err != nil {
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

// kill has runsc kill a container. That one has ended it says in other words than
// runc, of which the shim knows what they mean.
func kill(runsc string, args []string) error {
	out, err := exec.Command(runsc, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.ReplaceAll(out, []byte("sandbox is not running"), []byte("container not running")))
	}
	return nil
}

// lift takes the limits out of a container's configuration (OCI runtime spec,
// linux.resources).
func lift(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config map[string]any
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber() // some do not fit into a float64
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
	return linger(name)
}

// linger takes as long as a sandbox is told to take.
func linger(name string) error {
	long, err := os.ReadFile(filepath.Join(os.Getenv("CONTAINERDTEST_CONTROL"), "START."+name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(string(long))
	if err != nil {
		return err
	}
	<-time.After(d)
	return nil
}
