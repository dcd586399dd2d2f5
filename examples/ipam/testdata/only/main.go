// SPDX-License-Identifier: Apache-2.0

// Command only executes the host-local beside it and passes its bytes on, the least that any plugin
// around host-local costs. BenchmarkADD compares with it.
package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		os.Exit(1)
	}
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), "host-local"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, os.Stderr
	err = cmd.Run()
	if _, writeErr := os.Stdout.Write(out.Bytes()); err != nil || writeErr != nil {
		os.Exit(1)
	}
}
