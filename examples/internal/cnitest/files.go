// SPDX-License-Identifier: Apache-2.0

// Package cnitest has helpers for tests of CNI programs. [Main] builds programs and runs the tests
// as root in namespaces of their own. [Containers] are network namespaces, and [Runtime] is libcni.
// [Reserve] makes reservations as host-local does. What needs no namespaces is for all systems.
package cnitest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Reserve makes a reservation of the given age as host-local does, and returns its file. Without a
// container ID the file is empty.
func Reserve(t testing.TB, dataDir, network, ip, containerID string, age time.Duration) string {
	t.Helper()
	content := containerID + "\r\neth0"
	if containerID == "" {
		content = ""
	}
	file := filepath.Join(dataDir, network, ip)
	Write(t, file, content, age)
	return file
}

// Write writes a file of the given age, and creates its directory.
func Write(t testing.TB, path, content string, age time.Duration) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
	if age != 0 { // otherwise the file keeps the kernel's timestamp
		DateBack(t, path, age)
	}
}

// DateBack gives a file an age.
func DateBack(t testing.TB, path string, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// Exists reports whether a file exists.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Until polls a condition. After two minutes, which only a hang takes, it fails the test.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	tooLong := time.After(2 * time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-tooLong:
			t.Fatalf("waited two minutes until %s", what)
		}
	}
}

// A Log stores what several goroutines or processes write. The zero value is empty.
type Log struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

// Write adds to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
