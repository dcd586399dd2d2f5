// SPDX-License-Identifier: Apache-2.0

// Gate is a CNI plugin that has bridge do the work, and goes wrong on request.
//
// Its configuration is bridge's, with one more key: "control", a directory. A file
// <command>.<pod name> in it, or <command> for every pod, says what to do:
//
//	fail   an ADD fails after bridge has done it all, so after IPAM, and nothing
//	       is undone, and leaves a file failed.<container ID> there; a DEL fails
//	       before bridge is asked
//	hold   the plugin says in the pipe "arrived" that it has come to the same
//	       point, and goes on when the pipe "go" has been opened and closed
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

// told is an error in bridge's own words, which are passed on.
type told []byte

func (t told) Error() string { return string(t) }

func run() error {
	var conf bytes.Buffer
	if _, err := conf.ReadFrom(os.Stdin); err != nil {
		return err
	}
	var own struct {
		Control string `json:"control"`
	}
	if err := json.Unmarshal(conf.Bytes(), &own); err != nil {
		return fmt.Errorf("gate: reading its configuration: %w", err)
	}
	command := os.Getenv("CNI_COMMAND")
	if command == "DEL" {
		if err := obey(own.Control, command); err != nil {
			return err
		}
	}
	out, err := bridge(conf.Bytes())
	if err != nil {
		return err
	}
	if command == "ADD" {
		if err := obey(own.Control, command); err != nil {
			return err
		}
	}
	_, err = os.Stdout.Write(out)
	return err
}

// bridge runs the plugin of that name with our environment.
func bridge(conf []byte) ([]byte, error) {
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		path := filepath.Join(dir, "bridge")
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
	return nil, errors.New("gate: there is no bridge plugin in CNI_PATH")
}

// obey does what the control directory asks for.
func obey(control, command string) error {
	what, err := os.ReadFile(filepath.Join(control, command+"."+podName()))
	if errors.Is(err, fs.ErrNotExist) {
		what, err = os.ReadFile(filepath.Join(control, command))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("gate: %w", err)
	}
	switch w := strings.TrimSpace(string(what)); w {
	case "fail":
		if command == "ADD" {
			if err := os.WriteFile(filepath.Join(control, "failed."+os.Getenv("CNI_CONTAINERID")), nil, 0o600); err != nil {
				return fmt.Errorf("gate: %w", err)
			}
		}
		return fmt.Errorf("gate: told to fail %s", command)
	case "hold":
		return hold(control)
	default:
		return fmt.Errorf("gate: told to %q, which is nothing it knows", w)
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
