// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// openedDir opens the directory of the store's network.
func openedDir(t *testing.T, s *Store) dir {
	t.Helper()
	d, err := openDir(dirOf(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// entriesOf returns entries of a directory in the kernel's format, at most that many bytes.
func entriesOf(t *testing.T, d dir, most int) []byte {
	t.Helper()
	buf := make([]byte, most)
	n, err := syscall.ReadDirent(int(d.Fd()), buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// manyAddresses returns n addresses, half of them IPv4 and half IPv6.
func manyAddresses(n int) (ips []string) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:1000")
	for range n / 2 {
		ips = append(ips, four.String(), six.String())
		four, six = four.Next(), six.Next()
	}
	return ips
}

// texts returns addresses as text, sorted by that.
func texts(ips []netip.Addr) (out []string) {
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	slices.Sort(out)
	return out
}

// TestListNames: all reservations are listed, each once, whatever other files are in the
// directory and however many system calls it takes to read.
func TestListNames(t *testing.T) {
	for _, row := range []struct {
		reason string
		many   int
		others int // with names as long as they may be
	}{
		{"an empty directory", 0, 0},
		{"fewer than fit into one system call", 10, 0},
		{"several system calls", 1000, 0},
		{"the longest names, each of which fills a buffer with few others", 100, 300},
	} {
		s := newStore(t)
		want := manyAddresses(row.many)
		reserve(t, s, want...)
		for i := range row.others {
			write(t, filepath.Join(dirOf(s), fmt.Sprintf("10.1.0.%0248d", i)), "")
		}
		ips, err := openedDir(t, s).list()
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, texts(ips), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// TestListOfAChangingDirectory: a reservation that exists all the time is listed once, even
// if others are added and removed between two system calls.
func TestListOfAChangingDirectory(t *testing.T) {
	s := newStore(t)
	all := manyAddresses(400)
	stay, gone := all[:200], all[200:]
	reserve(t, s, all...)
	d := openedDir(t, s)
	ips := d.appendRegular(nil, entriesOf(t, d, 512))
	for i, ip := range gone {
		if err := os.Remove(at(s, ip)); err != nil {
			t.Fatal(err)
		}
		reserve(t, s, fmt.Sprintf("10.2.0.%d", i))
	}
	rest, err := d.list()
	if err != nil || len(ips) == 0 {
		t.Fatalf("%d addresses by the first system call, %v", len(ips), err)
	}
	got := texts(append(ips, rest...))
	for _, ip := range stay {
		if i, found := slices.BinarySearch(got, ip); !found || i+1 < len(got) && got[i+1] == ip {
			t.Errorf("%s is not listed, or twice: %v", ip, got)
		}
	}
}

// kinds makes a file of each kind. Each has an address as its name. Only the first is a
// reservation.
func kinds(t *testing.T, s *Store) {
	t.Helper()
	reserve(t, s, "10.0.0.1")
	symlink(t, "10.0.0.1", at(s, "10.0.0.2"))
	symlink(t, "/missing", at(s, "10.0.0.3"))
	node(t, at(s, "10.0.0.4"), syscall.S_IFIFO)
	node(t, at(s, "10.0.0.5"), syscall.S_IFSOCK)
	mkdir(t, at(s, "10.0.0.6"))
	write(t, filepath.Join(dirOf(s), "last_reserved_ip.0"), "10.0.0.1")
}

// withoutTypes changes entries to those of a file system that reports no types.
func withoutTypes(entries []byte) []byte {
	for rest := entries; len(rest) > 0; rest = rest[binary.NativeEndian.Uint16(rest[16:]):] {
		rest[18] = syscall.DT_UNKNOWN
	}
	return entries
}

// TestListKinds: only regular files are listed, even if the file system reports no types,
// and none is opened for that (R7).
func TestListKinds(t *testing.T) {
	s := newStore(t)
	kinds(t, s)
	d := openedDir(t, s)
	entries := entriesOf(t, d, 4096)
	within(t, "listing a pipe", func() {
		for reason, entries := range map[string][]byte{"with types": slices.Clone(entries), "without types": withoutTypes(entries)} {
			if diff := cmp.Diff([]string{"10.0.0.1"}, texts(d.appendRegular(nil, entries))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", reason, diff)
			}
		}
	})
}

// TestListKnownKindsInARenamedDirectory: what is known not to be a file is not listed, also if
// it can't be looked up because the directory was renamed (R7).
func TestListKnownKindsInARenamedDirectory(t *testing.T) {
	s := newStore(t)
	kinds(t, s)
	d := openedDir(t, s)
	entries := entriesOf(t, d, 4096)
	move(t, dirOf(s), dirOf(s)+".old")
	if diff := cmp.Diff([]string{"10.0.0.1"}, texts(d.appendRegular(nil, entries))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestListKindsInARenamedDirectory: if the type is unknown because the directory was
// renamed, the file is listed, and read finds its type by the directory's descriptor.
func TestListKindsInARenamedDirectory(t *testing.T) {
	s := newStore(t)
	kinds(t, s)
	d := openedDir(t, s)
	entries := withoutTypes(entriesOf(t, d, 4096))
	move(t, dirOf(s), dirOf(s)+".old")
	ips := d.appendRegular(nil, entries)
	if !slices.Contains(texts(ips), "10.0.0.1") {
		t.Errorf("got %v, want every file that may be a reservation", ips)
	}
	for _, ip := range ips {
		if _, err := d.read(&Reservation{IP: ip}, make([]byte, 10)); errors.Is(err, errNotRegular) == (ip.String() == "10.0.0.1") {
			t.Errorf("read of %v: %v", ip, err)
		}
	}
}

// TestListOfARemovedDirectory: a directory that is removed while it is listed has no
// reservations.
func TestListOfARemovedDirectory(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs, err := reservations(s.List(hookContext{Context: t.Context(), done: func() {
		if err := os.RemoveAll(dirOf(s)); err != nil {
			t.Error(err)
		}
	}}))
	if len(rs) > 0 || err != nil {
		t.Errorf("List: %v, %v", addresses(rs), err)
	}
}

// A regular file among the networks is ignored without a stat(2), which fails here: with its
// name the path is too long.
func TestNetworksWithAFileThatCanNotBeStatted(t *testing.T) {
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	for err == nil && len(path) < 3900 {
		name := strings.Repeat("d", min(200, 4060-len(path)))
		path = filepath.Join(path, name)
		if err = dir.Mkdir(name, 0o755); err == nil {
			dir, err = dir.OpenRoot(name)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := dir.Create(strings.Repeat("f", 250))
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := New(path).Networks(); err != nil {
		t.Error(err)
	}
}

// List allocates about what its reservations need, whatever the size of the directory.
func TestListAllocatesLittle(t *testing.T) {
	s := newStore(t)
	for i := range 100 {
		reserve(t, s, fmt.Sprintf("10.0.0.%d", i+1))
	}
	list(t, s)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list(t, s)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
		t.Errorf("a List of 100 reservations allocates %d bytes", n)
	}
}
