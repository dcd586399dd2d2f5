// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/refuse"
)

// If the kernel refuses to show what a file is, that is an error: a namespace is not left out, nor
// taken for one that is hidden.
func TestCallIsRefused(t *testing.T) {
	const file = "/proc/self/ns/net"
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	for _, row := range []struct {
		reason string
		number uint32
		call   func() error
	}{
		{"the type of the file at a mount point", unix.SYS_FSTATFS, func() error {
			_, err := openMount(root, namespaceMount{1, file})
			return err
		}},
		{"its number", unix.SYS_FSTAT, func() error {
			_, err := openMount(root, namespaceMount{1, file})
			return err
		}},
		{"the number of an open namespace", unix.SYS_FSTAT, func() error {
			s := emptyScan("/proc")
			s.setns = func(int, int) error { return nil }
			return s.readNetNS(fd, "of process 7")
		}},
	} {
		var err error
		refuse.Call(t, row.number, func() { err = row.call() })
		if !errors.Is(err, unix.EIO) {
			t.Errorf("%s: got %v, want %v", row.reason, err, unix.EIO)
		}
	}
}

// quietNode returns a source of a node with one process, 1, on which nothing happens.
func quietNode(t *testing.T) *Source {
	t.Helper()
	proc := t.TempDir()
	dir := filepath.Join(proc, "1", "ns")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/pid:[1]", nil, 0o600), os.Symlink("pid:[1]", dir+"/pid"), os.WriteFile(dir+"/net", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Proc: proc, Nested: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asked is a context that counts calls of Err.
type asked struct {
	context.Context
	times *int
}

func (c asked) Err() error {
	*c.times++
	return nil
}

// A node on which nothing happens is read minScans times, and no more, since that costs time.
func TestQuietNodeIsReadTwice(t *testing.T) {
	times := 0
	if _, err := quietNode(t).scan(asked{t.Context(), &times}); err != nil || times != 2*minScans {
		t.Errorf("process 1 was looked at %d times, %v, want %d: its environment and its threads, each %d times", times, err, 2*minScans, minScans)
	}
}

// What was read, or has nothing to show, is not opened.
func TestNothingIsOpenedTwice(t *testing.T) {
	s := emptyScan(procOf(t, map[string]string{"environ": "PATH=/bin\x00", "task": ""}))
	if err := s.readEnvironment("7"); err != nil || s.adds != nil {
		t.Errorf("a process that runs no ADD: its threads were listed: %v, %v", s.adds, err)
	}
	s = emptyScan(procOf(t, map[string]string{"task/7/ns/net": "link:net:[5]", "task/7/ns/net:[5]": ""}))
	s.setns = func(int, int) error { return unix.EINVAL }
	if err := s.process("7"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a namespace that was not read: got %v", err)
	}
	s.found[5] = true
	if err := s.process("7"); err != nil {
		t.Errorf("a namespace that was read: %v", err)
	}
	s = emptyScan(procOf(t, map[string]string{"task/7/ns/net": ""}))
	s.setns = func(int, int) error { return nil }
	if err := s.process("7"); err == nil {
		t.Error("a file that is no link to a namespace was read")
	}
}

// The namespaces of a mountinfo file that is exactly as long as the limit are noted, each once
// for each path, and only opened if they were not read.
func TestMountsOfSeveralNamespaces(t *testing.T) {
	const text = "36 24 0:4 net:[5] /run/netns/a rw - nsfs nsfs rw\n37 24 0:4 net:[6] /run/netns/a rw - nsfs nsfs rw\n"
	s := emptyScan(procOf(t, map[string]string{"ns/mnt": "link:mnt:[1]", "root": "link:there", "there/run/netns": "link:netns", "mountinfo": text}))
	read := func(reason string, unreadable int) {
		t.Helper()
		clear(s.readRoots)
		clear(s.unreadable)
		clear(s.mountedAt) // each must name the mounts again: Living knows namespaces by them alone
		s.mountText, s.maxMountText = 0, len(text)
		if err := s.readMounts(s.proc + "/7"); err != nil || s.truncated || len(s.mountedAt["/run/netns/a"]) != 2 || len(s.unreadable) != unreadable {
			t.Errorf("%s: %v, truncated: %t, mounts %v, unreadable %v", reason, err, s.truncated, s.mountedAt, s.unreadable)
		}
	}
	read("their path is a circle of links", 2)
	s.found[5], s.found[6] = true, true
	read("they were read elsewhere", 0)
}

// Several namespaces may be mounted at one path, each in another mount namespace. Each is noted
// once, however many processes name it.
func TestNamespacesAtOnePath(t *testing.T) {
	s := emptyScan("")
	s.maxMountText = maxProcfs
	s.found[5], s.found[6] = true, true
	for _, inode := range []string{"5", "6", "6"} {
		proc := procOf(t, map[string]string{"ns/mnt": "link:mnt:[1]", "root/file": "",
			"mountinfo": "37 24 0:4 net:[" + inode + "] /run/netns/a rw - nsfs nsfs rw\n"})
		if err := s.readMounts(proc + "/7"); err != nil {
			t.Fatal(err)
		}
	}
	if at := s.mountedAt["/run/netns/a"]; !slices.Equal(at, []uint64{5, 6}) {
		t.Errorf("got %v", at)
	}
}

// Two processes of one mount namespace have two directories of one mount as their roots, as
// after a chroot in a plain directory. The mounts of both are read: only their inodes tell
// the roots apart.
//
// Guard: [scan.readMounts] compares the inodes of roots, too.
func TestHazard60TwoRootsOfOneMount(t *testing.T) {
	const other = "36 24 0:30 / /data rw - tmpfs tmpfs rw\n"
	s := emptyScan("")
	s.maxMountText = maxProcfs
	s.found[5] = true
	for _, text := range []string{other, other + "37 24 0:4 net:[5] /run/netns/a rw - nsfs nsfs rw\n"} {
		proc := procOf(t, map[string]string{"ns/mnt": "link:mnt:[1]", "root/file": "", "mountinfo": text})
		if err := s.readMounts(proc + "/7"); err != nil {
			t.Fatal(err)
		}
	}
	if at := s.mountedAt["/run/netns/a"]; len(s.readRoots) != 2 || len(at) != 1 {
		t.Errorf("roots %v, mounts %v", s.readRoots, s.mountedAt)
	}
}

// A file may be as long as errTooLong says.
func TestLongestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "environ")
	for _, row := range []struct {
		reason string
		size   int
		want   error
	}{
		{"as long as the limit", maxProcfs, nil},
		{"longer", maxProcfs + 1, errTooLong},
	} {
		if err := os.WriteFile(path, []byte(strings.Repeat("x", row.size)), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := new(scan).read(path); len(text) != maxProcfs || !errors.Is(err, row.want) {
			t.Errorf("%s: got %d bytes, %v, want %v", row.reason, len(text), err, row.want)
		}
	}
}
