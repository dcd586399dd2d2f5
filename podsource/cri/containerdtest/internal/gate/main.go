// SPDX-License-Identifier: Apache-2.0

// Gate is a CNI plugin that has bridge do the work, and goes wrong on request.
//
// Its configuration is bridge's, with one more key: "control", a directory. A file
// <command>.<pod name> in it, or <command> for every pod, says what to do:
//
//	fail       an ADD fails after bridge has done it all, so after IPAM, and
//	           nothing is undone, and leaves files failed.<container ID> and
//	           container.<pod name> there, the latter with the container ID; a DEL
//	           fails before bridge is asked
//	hold       the plugin says in the pipe "arrived" that it has come to the same
//	           point, and goes on when the pipe "go" has been opened and closed
//	sleep 20s  the plugin takes so long at the same point
//
// With the key "chained" it is a plugin further down in a list: it does nothing,
// and obeys files chained-<command>. Called by the name "lease" it is an IPAM
// plugin: it has host-local do the work, and obeys files lease-<command>.
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
	var told told
	if !errors.As(err, &told) {
		// The form in which a plugin tells an error (CNI spec, section 5).
		told, _ = json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 999, "msg": err.Error()}) // of strings and numbers
	}
	fmt.Fprintf(os.Stdout, "%s\n", told)
	os.Exit(1) //nolint:forbidigo // so a plugin tells that it failed
}

// told is an error in the other plugin's own words, which are passed on.
type told []byte

func (t told) Error() string { return string(t) }

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
		if err := obey(own.Control, command, "chained-"); err != nil {
			return err
		}
		if command != "ADD" {
			return nil
		}
		_, err := os.Stdout.Write(own.PrevResult)
		return err
	}
	behind, prefix := "bridge", ""
	if filepath.Base(os.Args[0]) == "lease" {
		behind, prefix = "host-local", "lease-"
	}
	if command == "DEL" {
		if err := obey(own.Control, command, prefix); err != nil {
			return err
		}
	}
	out, err := delegate(behind, conf.Bytes())
	if err != nil {
		return err
	}
	if command == "ADD" {
		if err := obey(own.Control, command, prefix); err != nil {
			return err
		}
	}
	_, err = os.Stdout.Write(out)
	return err
}

// delegate runs the plugin of that name with our environment.
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
			return nil, told(out)
		}
		return out, err
	}
	return nil, fmt.Errorf("gate: there is no plugin %s in CNI_PATH", name)
}

// obey does what the control directory asks for.
func obey(control, command, prefix string) error {
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
		return fmt.Errorf("gate: told to %q, which is nothing it knows", what)
	}
}

// hold waits in both pipes for the test at their other ends.
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

// podName is what the runtime says in CNI_ARGS, as in
// "IgnoreUnknown=1;K8S_POD_NAME=web-1".
func podName() string {
	for arg := range strings.SplitSeq(os.Getenv("CNI_ARGS"), ";") {
		if name, ok := strings.CutPrefix(arg, "K8S_POD_NAME="); ok {
			return name
		}
	}
	return ""
}
