// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// node makes a pipe or a socket that nothing else has open.
func node(t *testing.T, path string, kind uint32) {
	t.Helper()
	must(t, syscall.Mknod(path, kind|0o600, 0))
}

// mkdir makes a directory with a reservation in it, like a backup.
func mkdir(t *testing.T, path string) {
	t.Helper()
	must(t, os.Mkdir(path, 0o755))
	write(t, filepath.Join(path, "10.0.0.9"), "abc\r\neth0")
}

// hold takes the lock by the plugin's own code.
func hold(t *testing.T, dir string) (unlock func()) {
	t.Helper()
	l, err := disk.NewFileLock(dir)
	must(t, err)
	must(t, l.Lock())
	return func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// openedDir opens the directory of the store's network.
func openedDir(t *testing.T, s *Store) dir {
	t.Helper()
	d, err := openDir(dirOf(s))
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// descriptors returns the number of an open descriptor of each path.
func descriptors(t *testing.T) map[string]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	all := make(map[string]int)
	for _, e := range fds {
		if path, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			all[path], err = strconv.Atoi(e.Name())
			must(t, err)
		}
	}
	return all
}

// TestHazard17ForeignFiles: only regular files with the names of addresses are listed, read and
// released, even if the file system reports no types. No other is opened for that, touched, or
// blocks (R7).
func TestHazard17ForeignFiles(t *testing.T) {
	s := newStore(t)
	in := func(name string) string { return filepath.Join(dirOf(s), name) }
	write(t, filepath.Join(s.DataDir(), "10.0.0.22"), "abc\r\neth0") // the name of an address, but not in the directory
	mkdir(t, in("backup"))
	for _, name := range []string{"10.0.0.01", "::ffff:10.0.0.1", "FD00::1", "fe80::1%eth0", "fd00__1", ".10.0.0.1", "last_reserved_ip.0"} {
		write(t, in(name), "abc\r\neth0")
	}
	good, foreign := []string{"10.0.0.1", "10.0.0.2", "fd00::1"}, []string{"10.0.0.20", "10.0.0.30", "10.0.0.31"}
	mkdir(t, in(foreign[0]))
	node(t, in(foreign[1]), syscall.S_IFIFO)
	node(t, in(foreign[2]), syscall.S_IFSOCK)
	for name, target := range map[string]string{
		"10.0.0.21": "../10.0.0.22", "10.0.0.22": "../10.0.0.22", "10.0.0.23": "10.0.0.1", "10.0.0.24": "10.0.0.24", "10.0.0.25": "/missing",
		"10.0.0.26": "/dev/null",
	} {
		must(t, os.Symlink(target, in(name)))
		foreign = append(foreign, name)
	}
	before := tree(t, s.DataDir())
	for _, ip := range good {
		write(t, at(s, ip), "abc\r\neth0")
	}
	d, entries := openedDir(t, s), make([]byte, 4096)
	n, err := syscall.ReadDirent(int(d.Fd()), entries)
	must(t, err)
	entries = entries[:n] // in the kernel's format
	untyped := slices.Clone(entries)
	for rest := untyped; len(rest) > 0; rest = rest[binary.NativeEndian.Uint16(rest[16:]):] {
		rest[18] = syscall.DT_UNKNOWN
	}
	wantListed := func(what string, entries []byte, want ...string) {
		t.Helper()
		got, ips := []string{}, addresses{}
		d.addRegular(&ips, entries)
		for _, ip := range ips.v4 {
			got = append(got, netip.AddrFrom4(ip).String())
		}
		for _, ip := range ips.v6 {
			got = append(got, ip.String())
		}
		slices.Sort(got)
		slices.Sort(want)
		diff(t, what, want, got)
	}
	wantListed("with types", entries, good...)
	wantListed("without types", untyped, good...)

	rs := list(t, s)
	diff(t, "List", []string{"podnet 10.0.0.1", "podnet 10.0.0.2", "podnet fd00::1"}, files(rs))
	must(t, release(t.Context(), t, "Release", s, rs, Released, Released, Released))
	diff(t, "foreign files", before, tree(t, s.DataDir()))

	// Also if the directory was renamed. A file that is gone by then is listed, and read finds that it is.
	must(t, os.Rename(dirOf(s), dirOf(s)+".old"))
	wantListed("renamed, without types", untyped, good...)
	for _, ip := range foreign {
		if _, err := d.read(&Reservation{IP: netip.MustParseAddr(ip)}, make([]byte, 10)); !errors.Is(err, errNotRegular) {
			t.Errorf("read of %v: %v", ip, err)
		}
	}
}

// TestListNames: all reservations are listed, each once, whatever other files are in the
// directory and however many system calls it takes to read.
func TestListNames(t *testing.T) {
	var ips []string
	for i := range 300 {
		ips = append(ips, fmt.Sprintf("10.0.%d.%d", i/100, i%100))
	}
	for i := range 20 {
		ips = append(ips, fmt.Sprintf("fd00::%x", i+1))
	}
	s := newStore(t, ips...)
	rs := list(t, s)
	wantLeft(t, s, "several system calls", ips...)
	for i := range 300 {
		write(t, filepath.Join(dirOf(s), fmt.Sprintf("10.1.0.%0248d", i)), "") // each of which fills a buffer with few others
	}
	diff(t, "with the longest names", rs, list(t, s))
}

// swaps replace a reservation. TestReleaseCompares has changes of the same file.
var swaps = []struct {
	reason string
	swap   func(t *testing.T, path, aside string)
	read   string  // of List, if it happens after the names are read; empty: left out
	want   Outcome // of Release, if it happens after List
}{
	{"a new file for the same owner, made beside the old one, so that it has another inode", func(t *testing.T, path, aside string) {
		write(t, aside, "abc\r\neth0")
		must(t, os.Rename(aside, path))
	}, "podnet 10.0.0.2", Changed},
	{"nothing", func(t *testing.T, path, _ string) { must(t, os.Remove(path)) }, "", Gone},
	{"a link to the same file", func(t *testing.T, path, aside string) {
		must(t, os.Rename(path, aside), os.Symlink(aside, path))
	}, "", Changed},
	{"a link to itself", func(t *testing.T, path, _ string) { must(t, os.Remove(path), os.Symlink(path, path)) }, "", Changed},
	{"a pipe", func(t *testing.T, path, _ string) {
		must(t, os.Remove(path))
		node(t, path, syscall.S_IFIFO)
	}, "", Changed},
	{"a directory", func(t *testing.T, path, _ string) {
		must(t, os.Remove(path))
		mkdir(t, path)
	}, "", Changed},
	{"the same file, cut short by a full disk", func(t *testing.T, path, _ string) { write(t, path, "") }, "podnet 10.0.0.2 empty", Changed},
	{"cp over it, in place", func(t *testing.T, path, _ string) { write(t, path, "xyz\r\neth0") }, "podnet 10.0.0.2 xyz", Changed},
	{"a new file for another owner, which may have the inode of the old one", func(t *testing.T, path, _ string) {
		must(t, os.Remove(path))
		write(t, path, "xyz\r\neth0")
	}, "podnet 10.0.0.2 xyz", Changed},
}

// TestHazard09ReplacedBetweenJudgingAndDeleting: a file that replaces a reservation while List runs
// is read as what it is, or left out; it is not followed, and does not block. One that replaced it
// since is kept (R6, R7), even if it did so just before Release compared that reservation. So it is
// whether or not the file that was listed first was settled.
func TestHazard09ReplacedBetweenJudgingAndDeleting(t *testing.T) {
	for _, row := range swaps {
		for i := range 4 {
			releasing, s := i%2 > 0, newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
			if i >= 2 {
				later(s, time.Hour, time.Hour)
			}
			rs, ctx, before := list(t, s), t.Context(), map[string]string(nil)
			swap := func() {
				row.swap(t, at(s, "10.0.0.2"), filepath.Join(s.DataDir(), "aside"))
				before = tree(t, s.DataDir())
			}
			if releasing {
				ctx = atCall(t, 3, swap)
			} else {
				l, err := s.List(atCall(t, 2, swap))
				must(t, err)
				want := []string{"podnet 10.0.0.1", row.read, "podnet 10.0.0.3"}
				diff(t, row.reason, slices.DeleteFunc(want, func(text string) bool { return text == "" }), files(l.Reservations))
			}
			must(t, release(ctx, t, row.reason, s, rs, Released, row.want, Released))
			delete(before, at(s, "10.0.0.1"))
			delete(before, at(s, "10.0.0.3"))
			diff(t, row.reason, before, tree(t, s.DataDir()))
		}
	}
}

// TestRetry: a call that a signal interrupted is repeated.
func TestRetry(t *testing.T) {
	calls := 0
	n, err := retry(func() (int, error) {
		calls++
		return calls, map[bool]error{true: syscall.EINTR}[calls < 3]
	})
	if n != 3 || err != nil {
		t.Errorf("retry: %d, %v after %d calls", n, err, calls)
	}
}

// TestDirectoryIsHeldOpen: if the directory is renamed during a release, and another one
// gets its name, the files of that one are kept.
func TestDirectoryIsHeldOpen(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	must(t, release(atCall(t, 3, func() {
		must(t, os.Rename(dirOf(s), dirOf(s)+".old"))
		addNetwork(t, s, network)
		must(t, os.Link(filepath.Join(dirOf(s)+".old", "10.0.0.2"), at(s, "10.0.0.2"))) // the same file
	}), t, "Release", s, list(t, s), Released, Changed))
	if _, err := os.Lstat(at(s, "10.0.0.2")); err != nil {
		t.Errorf("the new directory's file: %v", err)
	}
}

// TestHazard17LinkAsNetwork: a link with the name of a network is not followed, also not to see what
// it leads to, which may be a mount that hangs. It is an error that says what to do, because siblings
// may be behind it (R3, R7). Any other link, and a pipe, is ignored.
func TestHazard17LinkAsNetwork(t *testing.T) {
	for _, row := range []struct{ reason, name, target, err string }{
		{"a link to a directory", "linked", ".outside", "linked is a link, and"},
		{"a link to nothing: the directory may be mounted later", "linked", "missing", "put the directory itself in its place"},
		{"without the name of a network", ".linked", ".outside", ""},
	} {
		s := newStore(t, "10.0.0.1")
		mkdir(t, filepath.Join(s.DataDir(), ".outside"))
		node(t, filepath.Join(s.DataDir(), "piped"), syscall.S_IFIFO)
		must(t, os.Symlink(row.target, filepath.Join(s.DataDir(), row.name)))
		l, err := s.List(t.Context())
		names, namesErr := s.Networks()
		diff(t, row.reason, l.Networks, names)
		if row.err == "" {
			must(t, err, namesErr)
			diff(t, row.reason, Listing{Networks: []string{network}, Reservations: l.Reservations}, l)
			diff(t, row.reason, []string{"podnet 10.0.0.1"}, files(l.Reservations))
		} else {
			wantError(t, row.reason, err, nil, s.DataDir(), row.err)
			wantError(t, row.reason, namesErr, nil, s.DataDir(), row.err)
			diff(t, row.reason, Listing{}, l)
		}
	}
}

// TestHazard17LinkInPlaceOfNetwork: the directory is moved and replaced by a link to it,
// after List has read the names and before it reads the owners. That List goes on in the
// directory that it opened. A later List and a Release return an error about the link.
func TestHazard17LinkInPlaceOfNetwork(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	l, err := s.List(atCall(t, 2, func() {
		outside := filepath.Join(t.TempDir(), "outside")
		must(t, os.Rename(dirOf(s), outside), os.Symlink(outside, dirOf(s)))
	}))
	must(t, err)
	_, err = s.List(t.Context())
	wantError(t, "List", err, nil, dirOf(s)+" is a link")
	before := tree(t, dirOf(s)+"/.")
	err = release(t.Context(), t, "Release", s, l.Reservations, NotTried)
	wantError(t, "Release", err, syscall.ENOTDIR, dirOf(s))
	diff(t, "the link's target", before, tree(t, dirOf(s)+"/."))
}

// TestDataDirLink: the data directory itself may be a link, because the caller named it.
// A pipe in its place does not block.
func TestDataDirLink(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	link, pipe := New(filepath.Join(t.TempDir(), "link")), filepath.Join(t.TempDir(), "pipe")
	must(t, os.Symlink(s.DataDir(), link.DataDir()))
	must(t, release(t.Context(), t, "Release", link, list(t, link), Released))
	node(t, pipe, syscall.S_IFIFO)
	if l, err := New(pipe).List(t.Context()); err == nil {
		t.Errorf("List: %v", l)
	}
}

// TestNoDescriptorIsLeft: a call closes the descriptors that it opened, however it ends. Only
// those of the data directory count: others come and go with what earlier tests left.
func TestNoDescriptorIsLeft(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	node(t, at(s, "10.0.0.2"), syscall.S_IFIFO)
	node(t, filepath.Join(addNetwork(t, s, "piped", "10.0.0.1"), "lock"), syscall.S_IFIFO)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	rs := list(t, s)
	_, _ = s.List(ended)
	unlock := hold(t, dirOf(s))
	_, _ = s.Release(ended, pointers(rs)...)
	unlock()
	_, _ = s.Release(atCall(t, 1, func() { must(t, os.Remove(lockOf(s))) }),
		&rs[1], &rs[1], &rs[0], &Reservation{Network: network, IP: netip.MustParseAddr("10.0.0.2"), Owner: Owned})
	root, err := filepath.EvalSymlinks(s.DataDir())
	must(t, err)
	for path := range descriptors(t) {
		if strings.HasPrefix(path, root) {
			t.Errorf("%q is open", path)
		}
	}
}
