// SPDX-License-Identifier: Apache-2.0

// Runclite is the runc in PATH, for containers without limits.
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
	"syscall"
	"time"
)

func main() {
	fmt.Fprintf(os.Stderr, "runclite: %v\n", run())
	os.Exit(1) //nolint:forbidigo // so runc tells that it failed
}

// run becomes runc. It returns only when it can't.
func run() error {
	for i, arg := range os.Args[:len(os.Args)-1] {
		if arg == "--bundle" {
			if err := lift(filepath.Join(os.Args[i+1], "config.json")); err != nil {
				return err
			}
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", runc, syscall.Exec(runc, os.Args, os.Environ()))
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
