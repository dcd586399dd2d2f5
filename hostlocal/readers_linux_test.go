// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// What is no network's is not followed: a link may lead to a mount that hangs.
func TestNetworksFollowsNoForeignLink(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{".backup", "no network"} {
		symlink(t, strings.Repeat("x", 300), filepath.Join(s.DataDir(), name)) // following it is an error
	}
	if names, err := s.Networks(); err != nil || len(names) != 1 {
		t.Errorf("got %q, %v", names, err)
	}
}

// Where the number of a system call is not known, a file's status is read by a
// descriptor that can't read: it works also for what may not be opened, and wakes
// nobody who waits at a pipe.
func TestStatusWithoutTheSystemCall(t *testing.T) {
	defer func(n uintptr) { sysFstatat = n }(sysFstatat)
	sysFstatat = 0
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	path := at(s, "10.0.0.1")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0); err != nil {
		t.Fatal(err)
	}
	d, err := s.open(network)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	r := Reservation{IP: netip.MustParseAddr("10.0.0.1")}
	if err := d.stat(&r); !errors.Is(err, errNotRegular) {
		t.Errorf("a pipe: %v", err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("x"), 0)); err != nil {
		t.Fatal(err)
	}
	if err := d.stat(&r); err != nil || r.ReservedAt.IsZero() || r.Identity() == (Identity{}) {
		t.Errorf("a file that may not be opened: %+v, %v", r, err)
	}
	l, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.check(), l.unlock()); err != nil {
		t.Error(err)
	}
}

// The second reader is ended by the caller's context: what it did not read is not
// taken for what is not there.
func TestSecondReaderEnds(t *testing.T) {
	s := newStore(t)
	ip := netip.MustParseAddr("10.0.0.1")
	for range twoReaders {
		reserve(t, s, ip.String())
		ip = ip.Next()
	}
	caller := goroutine()
	rs, err := s.List(hookContext{Context: t.Context(), err: func() error {
		if goroutine() != caller {
			runtime.Goexit()
		}
		return nil
	}})
	if rs != nil || err == nil {
		t.Errorf("%d reservations, error %v", len(rs), err)
	}
}

// goroutine returns the number of the goroutine that calls it.
func goroutine() string {
	buf := make([]byte, 64)
	fields := strings.Fields(string(buf[:runtime.Stack(buf, false)]))
	return fields[1]
}

// The caller's thread has a root of its own, as that of an agent that looks into the
// node's file system has, and the second reader's thread has not.
func TestListFromAThreadWithARoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can change its root")
	}
	s := newStore(t)
	ip := netip.MustParseAddr("10.0.0.1")
	for range 2 * twoReaders {
		reserve(t, s, ip.String())
		ip = ip.Next()
	}
	type result struct {
		n   int
		err error
	}
	got := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
		err := errors.Join(syscall.Unshare(syscall.CLONE_FS), syscall.Chroot(s.DataDir()))
		if err != nil {
			got <- result{0, err}
			return
		}
		rs, err := New("/").List(context.Background())
		got <- result{len(rs), err}
	}()
	if r := <-got; r.n != 2*twoReaders || r.err != nil {
		t.Errorf("%d of %d, error %v", r.n, 2*twoReaders, r.err)
	}
}
