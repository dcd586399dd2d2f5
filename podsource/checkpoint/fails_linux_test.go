// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestReplaceFails: if a file can't be replaced, that is an error, and the file does not
// change.
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
	for _, row := range []struct {
		reason, path string
		is           error
	}{
		{"its directory is missing", filepath.Join(dir, "none", "attachments"), syscall.ENOENT},
		{"the temporary file of a crash can't be removed", filepath.Join(dir, "blocked"), syscall.EEXIST},
		{"no file can be made in its directory", "/proc/self/attachments", syscall.ENOENT},
		{"it can't be renamed to a directory", full("directory"), syscall.EEXIST},
	} {
		if renamed, err := replace(row.path, []byte("new")); !errors.Is(err, row.is) || renamed {
			t.Errorf("%s: renamed %t, error %v, want %v", row.reason, renamed, err, row.is)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "directory.tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file is left: %v", err)
	}
	if _, err := lock(filepath.Join(dir, "none", "lock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a lock in a missing directory: %v", err)
	}
}

// TestLoadFails: an error of the disk is not ErrCorrupt, after which a person would move
// the file away.
func TestLoadFails(t *testing.T) {
	if _, _, err := load("/proc/self/mem", ""); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want %v", err, syscall.EIO)
	}
}

// TestNoWorkingDirectory: a relative path is an error without a working directory.
func TestNoWorkingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := New("attachments", served); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
}

// TestFSID: the number of an anonymous device is not an ID, since another file system
// may get it later.
func TestFSID(t *testing.T) {
	for _, row := range []struct {
		reason string
		dev    uint64
		id     [2]int32
		want   uint64
	}{
		{"both halves", 25, [2]int32{-1, 2}, 2<<32 | 1<<32 - 1},
		{"the number of an anonymous device", 25, [2]int32{25, 0}, 0},
		{"the number of a disk", 0x801, [2]int32{0x801, 0}, 0x801},
	} {
		if got := fsID(row.dev, syscall.Fsid{X__val: row.id}); got != row.want {
			t.Errorf("%s: got %#x, want %#x", row.reason, got, row.want)
		}
	}
}

// TestDirectoryThatDoesNotOpen: a directory that can't be opened has no descriptor to close.
func TestDirectoryThatDoesNotOpen(t *testing.T) {
	for reason, path := range map[string]string{"missing": filepath.Join(t.TempDir(), "none", "ns"), "no path": "/run\x00/ns"} {
		if d := openDirectory(path); d.err == nil || d.fd != -1 {
			t.Errorf("%s: descriptor %d, error %v", reason, d.fd, d.err)
		}
	}
}

// TestUnknownNamespaceCounts: an entry without the identity of its namespace or of its
// directory counts as live, whatever is at its path.
func TestUnknownNamespaceCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	d := openDirectory(path)
	d.close()
	all := []NetNS{{Path: path, Dir: d.Directory}, {Path: path, Inode: 5}}
	if gone, err := goneOf(t.Context(), all); err != nil || slices.Contains(gone, true) {
		t.Errorf("gone: %v, %v", gone, err)
	}
	missing := NetNS{Path: filepath.Join(path, "ns"), Inode: 5, Dir: d.Directory}
	if _, err := goneOf(t.Context(), []NetNS{missing}); !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("the directory is missing: %v", err)
	}
}

// TestSameNamespace: another device, inode or ID is another namespace. If an ID is
// unknown, it may be the same.
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
		{"a reused inode number", NetNS{Dev: 4, Inode: 5, ID: 7}, false},
		{"an unknown ID", NetNS{Dev: 4, Inode: 5}, true},
	} {
		if got := n.is(row.now); got != row.want {
			t.Errorf("%s: %t, want %t", row.reason, got, row.want)
		}
		if got := row.now.is(n); got != row.want {
			t.Errorf("%s, the other way around: %t, want %t", row.reason, got, row.want)
		}
	}
	if (NetNS{Path: t.TempDir()}).Present() {
		t.Error("a namespace without identity is present")
	}
	if missing := (NetNS{Path: filepath.Join(t.TempDir(), "none"), Inode: 5}); missing.Present() {
		t.Error("a namespace is present at a missing path")
	}
	if missing := (NetNS{Path: filepath.Join(t.TempDir(), "none")}); missing.identified() != missing {
		t.Errorf("a missing path: got %+v", missing.identified())
	}
}
