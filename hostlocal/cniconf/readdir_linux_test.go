// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadDirLinks: a link to a file is read, since Kubernetes mounts files as links. A pipe
// does not block.
func TestReadDirLinks(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(outside, []byte(`{"name": "n", "type": "ptp", "ipam": {`+subnet+`}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "a.conf")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "b.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadDir(dir)
	if len(got) != 1 || got[0].Name != "n" {
		t.Errorf("ReadDir: %v", got)
	}
	if err == nil || !strings.Contains(err.Error(), "b.conf") || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("ReadDir: %v, want an error that names the pipe", err)
	}
}
