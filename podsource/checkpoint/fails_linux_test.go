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
	for _, row := range []struct {
		reason, path string
		is           error
	}{
		{"its directory is missing", filepath.Join(dir, "none", "attachments"), syscall.ENOENT},
		{"what a crash left can't be removed", filepath.Join(dir, "blocked"), syscall.EEXIST},
		{"no file can be made in its directory", "/proc/self/attachments", syscall.ENOENT},
		{"it can't be renamed to a directory", full("directory"), syscall.EEXIST},
	} {
		if renamed, err := replace(row.path, []byte("new")); !errors.Is(err, row.is) || renamed {
			t.Errorf("%s: renamed %t, error %v, want %v", row.reason, renamed, err, row.is)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "directory.tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was not renamed is left: %v", err)
	}
	if _, err := lock(filepath.Join(dir, "none", "lock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock in a directory that is missing: %v", err)
	}
}

// TestLoadFails where the disk does: that does not make it a damaged record, which somebody
// may move away.
func TestLoadFails(t *testing.T) {
	if _, _, err := load("/proc/self/mem", ""); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want %v", err, syscall.EIO)
	}
}

// TestNoWorkingDirectory: a relative path is then no path.
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

// TestFSID: where it is but the number of a device that is none, another file system gets it.
func TestFSID(t *testing.T) {
	for _, row := range []struct {
		reason string
		dev    uint64
		id     [2]int32
		want   uint64
	}{
		{"both halves", 25, [2]int32{-1, 2}, 2<<32 | 1<<32 - 1},
		{"the number of no device", 25, [2]int32{25, 0}, 0},
		{"the number of a disk", 0x801, [2]int32{0x801, 0}, 0x801},
	} {
		if got := fsID(row.dev, syscall.Fsid{X__val: row.id}); got != row.want {
			t.Errorf("%s: got %#x, want %#x", row.reason, got, row.want)
		}
	}
}

// TestUnknownNamespaceCounts: what was not recorded with its namespace or without the
// directory of that counts as live, whatever is at its path.
func TestUnknownNamespaceCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	d := openDirectory(path)
	d.close()
	all := []NetNS{{Path: path, Dir: d.Directory}, {Path: path, Inode: 5}}
	if gone, err := goneOf(t.Context(), all); err != nil || slices.Contains(gone, true) {
		t.Errorf("gone are %v, %v", gone, err)
	}
	missing := NetNS{Path: filepath.Join(path, "ns"), Inode: 5, Dir: d.Directory}
	if _, err := goneOf(t.Context(), []NetNS{missing}); !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without its directory: %v", err)
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
