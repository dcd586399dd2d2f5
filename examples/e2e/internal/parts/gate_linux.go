// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// gate is a CNI plugin that delegates to bridge, and fails on request.
//
// Its configuration is that of bridge, with one more key: "control", a directory. A file <command>.<pod name> in it
// says what to do:
//
//	fail       an ADD fails after bridge has succeeded, so after IPAM. It undoes nothing, and writes
//	           the file container.<pod name> with the container ID. A DEL fails before it calls bridge
//	hold       at the same point the plugin opens the pipe "arrived", and waits until the pipe "go" has
//	           been opened and closed
//	sleep 20s  at the same point the plugin sleeps
//
// With the key "chained" it is a later plugin of a list: it does nothing, and uses files chained-<command>. Called by
// the name "lease" it is an IPAM plugin: it delegates to host-local, and uses files lease-<command>.
func gate(name string) {
	out, err := runGate(name)
	if err != nil && len(out) == 0 {
		// The format of errors (CNI spec, section 5). Strings and numbers can be encoded.
		out, _ = json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 999, "msg": "gate: " + err.Error()})
	}
	_, _ = os.Stdout.Write(out) // nobody reads it if the caller was killed
	if err != nil {
		os.Exit(1) //nolint:forbidigo // a plugin fails with this status
	}
}

// runGate returns the result of the plugin. With an error of the delegate this is the delegate's.
func runGate(name string) (out []byte, err error) {
	conf, err := io.ReadAll(os.Stdin)
	var own struct {
		Control    string          `json:"control"`
		Chained    bool            `json:"chained"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := errors.Join(err, json.Unmarshal(conf, &own)); err != nil {
		return nil, err
	}
	plugin, prefix := "bridge", ""
	if name == "lease" {
		plugin, prefix = "host-local", "lease-"
	}
	if own.Chained {
		prefix = "chained-"
	}
	command := os.Getenv("CNI_COMMAND")
	if command == "DEL" || own.Chained {
		if err := act(own.Control, prefix+command, command == "ADD"); err != nil {
			return nil, err
		}
	}
	if own.Chained {
		if command == "ADD" {
			out = own.PrevResult
		}
		return out, nil
	}
	if out, err = delegate(plugin, conf); err == nil && command == "ADD" {
		if err := act(own.Control, prefix+command, true); err != nil {
			return nil, err
		}
	}
	return out, err
}

// delegate runs a plugin with this process's environment.
func delegate(name string, conf []byte) ([]byte, error) {
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		cmd := exec.Command(filepath.Join(dir, name))
		if _, err := os.Stat(cmd.Path); err == nil {
			cmd.Stdin, cmd.Stderr = bytes.NewReader(conf), os.Stderr
			return cmd.Output()
		}
	}
	return nil, fmt.Errorf("there is no plugin %s in CNI_PATH", name)
}

// act does what a file in the control directory says.
func act(control, command string, add bool) error {
	var pod string
	for arg := range strings.SplitSeq(os.Getenv("CNI_ARGS"), ";") { // as in "IgnoreUnknown=1;K8S_POD_NAME=web-1"
		if name, ok := strings.CutPrefix(arg, "K8S_POD_NAME="); ok {
			pod = name
		}
	}
	what, err := os.ReadFile(filepath.Join(control, command+"."+pod))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	word, long, _ := strings.Cut(string(what), " ")
	switch {
	case err != nil:
		return err
	case word == "fail":
		if add {
			err = os.WriteFile(filepath.Join(control, "container."+pod), []byte(os.Getenv("CNI_CONTAINERID")), 0o600)
		}
		return errors.Join(fmt.Errorf("told to fail %s", os.Getenv("CNI_COMMAND")), err)
	case word == "hold": // waits for the test at the other ends of both pipes
		arrived, err := os.OpenFile(filepath.Join(control, "arrived"), os.O_WRONLY, 0)
		if err == nil {
			err = arrived.Close()
		}
		if err == nil {
			_, err = os.ReadFile(filepath.Join(control, "go"))
		}
		return err
	case word == "sleep":
		d, err := time.ParseDuration(long)
		<-time.After(d)
		return err
	}
	return fmt.Errorf("told to %q, which is unknown", what)
}
