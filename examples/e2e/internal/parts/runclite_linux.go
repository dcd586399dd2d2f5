// SPDX-License-Identifier: Apache-2.0

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

// gvisor are the flags of runsc. The platform systrap does not need KVM.
var gvisor = []string{"--platform=systrap", "--network=sandbox", "--ignore-cgroups"}

// runLite executes the runc in PATH, or gVisor's runsc, without the limits of containers. It returns on errors, and
// after runsc kill.
//
// containerd sets CPU shares for each sandbox. With version 2 of control groups this needs a controller that the root
// group must enable for its children, which is not possible in a container. The tests do not need the limits.
//
// A file START.<pod name> in the directory $E2E_CONTROL has the duration by which the start of the pod's sandbox is
// delayed, unless the file is removed before.
func runLite(name string) error {
	for i, arg := range os.Args[:len(os.Args)-1] {
		if arg == "--bundle" {
			if err := removeLimits(filepath.Join(os.Args[i+1], "config.json")); err != nil {
				return err
			}
		}
	}
	program, args := "runc", os.Args
	if name == "runsclite" {
		program, args = "runsc", slices.Concat(args[:1], gvisor, args[1:])
		if slices.Contains(args, "kill") {
			// If the container has ended, the shim expects the message of runc.
			out, err := exec.Command(program, args[1:]...).CombinedOutput()
			if err == nil {
				os.Exit(0) //nolint:forbidigo // as runsc would
			}
			return fmt.Errorf("%w: %s", err, bytes.ReplaceAll(out, []byte("sandbox is not running"), []byte("container not running")))
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	return fmt.Errorf("running %s: %w", path, syscall.Exec(path, args, os.Environ()))
}

// removeLimits removes the limits from a container's configuration (OCI runtime spec, linux.resources), and then
// delays the start of its pod.
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
	if err := errors.Join(err, os.WriteFile(file, content, 0o600)); err != nil {
		return err
	}
	annotations, _ := config["annotations"].(map[string]any)
	order := filepath.Join(os.Getenv("E2E_CONTROL"), fmt.Sprint("START.", annotations["io.kubernetes.cri.sandbox-name"])) // as containerd sets it
	text, err := os.ReadFile(order)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	length, parseErr := time.ParseDuration(string(text))
	end := time.Now().Add(length)
	for tick := time.Tick(10 * time.Millisecond); err == nil && time.Now().Before(end); <-tick {
		_, err = os.Stat(order)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, parseErr)
}
