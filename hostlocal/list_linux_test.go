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
	"syscall"
	"testing"
)

// openedDir opens the directory of the store's network.
func openedDir(t *testing.T, s *Store) dir {
	t.Helper()
	d, err := openDir(dirOf(s))
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// entriesOf returns entries of a directory in the kernel's format, at most that many bytes.
func entriesOf(t *testing.T, d dir, most int) []byte {
	t.Helper()
	buf := make([]byte, most)
	n, err := syscall.ReadDirent(int(d.Fd()), buf)
	must(t, err)
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
func texts(ips []netip.Addr) []string {
	out := []string{}
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
		{"several system calls", 1000, 0},
		{"the longest names, each of which fills a buffer with few others", 100, 300},
	} {
		want := append([]string{}, manyAddresses(row.many)...)
		s := newStore(t, want...)
		for i := range row.others {
			write(t, filepath.Join(dirOf(s), fmt.Sprintf("10.1.0.%0248d", i)), "")
		}
		ips, err := openedDir(t, s).list()
		must(t, err)
		slices.Sort(want)
		diff(t, row.reason, want, texts(ips))
	}
}

// kinds makes a file of each kind. Each has an address as its name. Only the first is a
// reservation.
func kinds(t *testing.T, s *Store) {
	t.Helper()
	write(t, at(s, "10.0.0.1"), "content")
	symlink(t, "10.0.0.1", at(s, "10.0.0.2"))
	symlink(t, "/missing", at(s, "10.0.0.3"))
	node(t, at(s, "10.0.0.4"), syscall.S_IFIFO)
	node(t, at(s, "10.0.0.5"), syscall.S_IFSOCK)
	mkdir(t, at(s, "10.0.0.6"))
	symlink(t, "/dev/null", at(s, "10.0.0.7"))
	write(t, filepath.Join(dirOf(s), "last_reserved_ip.0"), "10.0.0.1")
}

// withoutTypes returns entries of a file system that reports no types.
func withoutTypes(entries []byte) []byte {
	entries = slices.Clone(entries)
	for rest := entries; len(rest) > 0; rest = rest[binary.NativeEndian.Uint16(rest[16:]):] {
		rest[18] = syscall.DT_UNKNOWN
	}
	return entries
}

// TestListKinds: only regular files are listed, even if the file system reports no types,
// and none is opened for that (R7). What is known not to be a file is also not listed if it
// can't be looked up because the directory was renamed.
func TestListKinds(t *testing.T) {
	s := newStore(t)
	kinds(t, s)
	d := openedDir(t, s)
	entries := entriesOf(t, d, 4096)
	diff(t, "with types", []string{"10.0.0.1"}, texts(d.appendRegular(nil, entries)))
	diff(t, "without types", []string{"10.0.0.1"}, texts(d.appendRegular(nil, withoutTypes(entries))))
	must(t, os.Rename(dirOf(s), dirOf(s)+".old"))
	diff(t, "renamed", []string{"10.0.0.1"}, texts(d.appendRegular(nil, entries)))
}

// TestListKindsInARenamedDirectory: if the type is unknown because the directory was
// renamed, the file is listed, and read finds its type by the directory's descriptor.
func TestListKindsInARenamedDirectory(t *testing.T) {
	s := newStore(t)
	kinds(t, s)
	d := openedDir(t, s)
	entries := withoutTypes(entriesOf(t, d, 4096))
	must(t, os.Rename(dirOf(s), dirOf(s)+".old"))
	ips := d.appendRegular(nil, entries)
	if len(ips) != 7 {
		t.Errorf("got %v, want every file that may be a reservation", ips)
	}
	for _, ip := range ips {
		if _, err := d.read(&Reservation{IP: ip}, make([]byte, 10)); errors.Is(err, errNotRegular) == (ip.String() == "10.0.0.1") {
			t.Errorf("read of %v: %v", ip, err)
		}
	}
}

// List allocates about what its reservations need, whatever the size of the directory.
func TestListAllocatesLittle(t *testing.T) {
	s := newStore(t, manyAddresses(100)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list(t, s)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
		t.Errorf("a List of 100 reservations allocates %d bytes", n)
	}
}
