// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Files change between the listing and the release (R12). The source is a pipe: the command opens
// it after the listing, and waits until the test has made the changes.
func TestOthersAtWork(t *testing.T) {
	n := newNode(t)
	nw := n.network("podnet", "10.244.1.0/24")
	for _, name := range []string{"leaked", "gone", "replaced"} {
		nw.add(sandbox(name), time.Hour)
	}
	pipe := filepath.Join(n.dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, n.dir, "release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pipe", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for the reader
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(nw.file("10.244.1.3")); err != nil { // a late DEL
		t.Fatal(err)
	}
	// A DEL and an ADD put another file under the name. Renaming a second file keeps it from
	// getting the inode of the first.
	fresh := nw.file("fresh")
	if err := os.WriteFile(fresh, []byte(sandbox("new")+"\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, nw.file("10.244.1.4")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, `[{"name":"other","ips":["10.244.1.99"]}]`); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	got := finish(t, cmd.Wait(), &stdout, &stderr)
	want := map[string]string{"10.244.1.2": "released", "10.244.1.3": "gone", "10.244.1.4": "changed"}
	if diff := cmp.Diff(want, verdicts(t, got.stdout)); diff != "" || got.status != statusDone {
		t.Errorf("exit status %d, %s, verdicts (-want +got):\n%s", got.status, got.stderr, diff)
	}
	if !nw.there("10.244.1.4") {
		t.Error("the new owner lost its address")
	}
}

// A source that never answers ends with --timeout, and nothing is released.
func TestTimeout(t *testing.T) {
	n := fullNode(t)
	if err := syscall.Mkfifo(filepath.Join(n.dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t, n.dir, nil, "release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pipe", "--timeout", "2s", "-o", "json")
	if got.status != statusError || !bytes.Contains([]byte(got.stderr), []byte("deadline exceeded")) {
		t.Errorf("exit status %d, stderr %q", got.status, got.stderr)
	}
	if diff := cmp.Diff(map[string]int{"failed": 13}, readReport(t, got.stdout).Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// A signal ends a waiting command, with an error and a report.
func TestSignal(t *testing.T) {
	t.Run("SIGTERM", func(t *testing.T) { signalled(t, syscall.SIGTERM, "terminated", statusError) })
	t.Run("Ctrl-C", func(t *testing.T) { signalled(t, syscall.SIGINT, "interrupt", statusInterrupted) })
}

func signalled(t *testing.T, signal syscall.Signal, said string, status int) {
	n := fullNode(t)
	pipe := filepath.Join(n.dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, n.dir, "release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pipe", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // the command is reading the source
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	got := finish(t, cmd.Wait(), &stdout, &stderr)
	_ = w.Close()
	if got.status != status || !bytes.Contains(stderr.Bytes(), []byte(said)) {
		t.Errorf("exit status %d, stderr %q", got.status, got.stderr)
	}
	if diff := cmp.Diff(map[string]int{"failed": 13}, readReport(t, got.stdout).Counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}
