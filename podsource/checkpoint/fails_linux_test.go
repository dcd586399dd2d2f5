// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestReplaceFails: what keeps a file from being replaced is an error, and the file
// stands as it was.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	full := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(path, "holds", "something"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	full("blocked.tmp")
	for _, row := range []struct{ reason, path string }{
		{"its directory is missing", filepath.Join(dir, "none", "attachments")},
		{"what a crash left can't be removed", filepath.Join(dir, "blocked")},
		{"no file can be made in its directory", "/proc/self/attachments"},
		{"it can't be renamed to a directory", full("directory")},
	} {
		if renamed, err := replace(row.path, []byte("new")); err == nil || renamed {
			t.Errorf("%s: renamed %t, error %v", row.reason, renamed, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "directory.tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was not renamed is left: %v", err)
	}
	if _, err := lock(filepath.Join(dir, "none", "lock")); err == nil {
		t.Error("took a lock in a directory that is missing")
	}
}

// TestSameNamespace: another device, inode or ID is another namespace; where one of the IDs is
// not known it may be the same.
func TestSameNamespace(t *testing.T) {
	n := NetNS{Path: "/run/netns/a", Dev: 4, Inode: 5, ID: 6}
	for _, row := range []struct {
		reason string
		now    NetNS
		want   bool
	}{
		{"the same", NetNS{Dev: 4, Inode: 5, ID: 6}, true},
		{"of another file system", NetNS{Dev: 3, Inode: 5, ID: 6}, false},
		{"another inode", NetNS{Dev: 4, Inode: 4, ID: 6}, false},
		{"an inode that was used again", NetNS{Dev: 4, Inode: 5, ID: 7}, false},
		{"its ID is not known", NetNS{Dev: 4, Inode: 5}, true},
	} {
		if got := n.is(row.now); got != row.want {
			t.Errorf("%s: %t, want %t", row.reason, got, row.want)
		}
		if got := row.now.is(n); got != row.want {
			t.Errorf("%s, the other way around: %t, want %t", row.reason, got, row.want)
		}
	}
	if (NetNS{Path: t.TempDir()}).Present() {
		t.Error("a namespace of which no identity was recorded is present")
	}
	if look := (NetNS{Path: filepath.Join(t.TempDir(), "none"), Inode: 5}); look.Present() {
		t.Error("a namespace at a path where nothing is is present")
	}
	if unseen := (NetNS{Path: filepath.Join(t.TempDir(), "none")}); unseen.seen() != unseen {
		t.Errorf("of a path where nothing is became %+v", unseen.seen())
	}
}
