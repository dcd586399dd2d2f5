// SPDX-License-Identifier: Apache-2.0

// Gate is a CNI plugin that delegates to bridge, and fails on request.
//
// Its configuration is that of bridge, with one more key: "control", a directory. A file
// <command>.<pod name> in it, or <command> for every pod, says what to do:
//
//	fail       an ADD fails after bridge has succeeded, so after IPAM. It undoes
//	           nothing, and writes the files failed.<container ID> and
//	           container.<pod name> to the directory, the latter with the container
//	           ID. A DEL fails before it calls bridge
//	hold       at the same point the plugin opens the pipe "arrived", and waits until
//	           the pipe "go" has been opened and closed
//	sleep 20s  at the same point the plugin sleeps
//
// With the key "chained" it is a later plugin of a list: it does nothing, and uses files
// chained-<command>. Called by the name "lease" it is an IPAM plugin: it delegates to
// host-local, and uses files lease-<command>.
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
	"strings"
	"time"
)

func main() {
	err := run()
	if err == nil {
		return
	}
	var result pluginError
	if !errors.As(err, &result) {
		// The format of errors (CNI spec, section 5).
		result, _ = json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 999, "msg": err.Error()}) // strings and numbers can be encoded
	}
	fmt.Fprintf(os.Stdout, "%s\n", result)
	os.Exit(1) //nolint:forbidigo // a plugin fails with this status
}

// A pluginError is the error result of the delegate, which is passed on.
type pluginError []byte

func (e pluginError) Error() string { return string(e) }

func run() error {
	var conf bytes.Buffer
	if _, err := conf.ReadFrom(os.Stdin); err != nil {
		return err
	}
	var own struct {
		Control    string          `json:"control"`
		Chained    bool            `json:"chained"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(conf.Bytes(), &own); err != nil {
		return fmt.Errorf("gate: reading its configuration: %w", err)
	}
	command := os.Getenv("CNI_COMMAND")
	if own.Chained {
		if err := act(own.Control, command, "chained-"); err != nil {
			return err
		}
		if command != "ADD" {
			return nil
		}
		_, err := os.Stdout.Write(own.PrevResult)
		return err
	}
	plugin, prefix := "bridge", ""
	if filepath.Base(os.Args[0]) == "lease" {
		plugin, prefix = "host-local", "lease-"
	}
	if command == "DEL" {
		if err := act(own.Control, command, prefix); err != nil {
			return err
		}
	}
	out, err := delegate(plugin, conf.Bytes())
	if err != nil {
		return err
	}
	if command == "ADD" {
		if err := act(own.Control, command, prefix); err != nil {
			return err
		}
	}
	_, err = os.Stdout.Write(out)
	return err
}

// delegate runs a plugin with this process's environment.
func delegate(name string, conf []byte) ([]byte, error) {
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		cmd := exec.Command(path)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(conf), os.Stderr
		out, err := cmd.Output()
		if err != nil && len(out) > 0 {
			return nil, pluginError(out)
		}
		return out, err
	}
	return nil, fmt.Errorf("gate: there is no plugin %s in CNI_PATH", name)
}

// act does what a file in the control directory says.
func act(control, command, prefix string) error {
	what, err := os.ReadFile(filepath.Join(control, prefix+command+"."+podName()))
	if errors.Is(err, fs.ErrNotExist) {
		what, err = os.ReadFile(filepath.Join(control, prefix+command))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	word, long, _ := strings.Cut(strings.TrimSpace(string(what)), " ")
	switch word {
	case "fail":
		if command == "ADD" {
			id := os.Getenv("CNI_CONTAINERID")
			if err := errors.Join(
				os.WriteFile(filepath.Join(control, "failed."+id), nil, 0o600),
				os.WriteFile(filepath.Join(control, "container."+podName()), []byte(id), 0o600),
			); err != nil {
				return fmt.Errorf("gate: %w", err)
			}
		}
		return fmt.Errorf("gate: told to fail %s", command)
	case "hold":
		return hold(control)
	case "sleep":
		d, err := time.ParseDuration(long)
		if err != nil {
			return fmt.Errorf("gate: %w", err)
		}
		<-time.After(d)
		return nil
	default:
		return fmt.Errorf("gate: told to %q, which is unknown", what)
	}
}

// hold waits for the test at the other ends of both pipes.
func hold(control string) error {
	arrived, err := os.OpenFile(filepath.Join(control, "arrived"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	if err := arrived.Close(); err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	if _, err := os.ReadFile(filepath.Join(control, "go")); err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	return nil
}

// podName returns the name of the pod in CNI_ARGS, as in
// "IgnoreUnknown=1;K8S_POD_NAME=web-1".
func podName() string {
	for arg := range strings.SplitSeq(os.Getenv("CNI_ARGS"), ";") {
		if name, ok := strings.CutPrefix(arg, "K8S_POD_NAME="); ok {
			return name
		}
	}
	return ""
}
