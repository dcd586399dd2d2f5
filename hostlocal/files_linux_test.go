// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
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

func symlink(t *testing.T, target, path string) {
	t.Helper()
	must(t, os.Symlink(target, path))
}

// move renames a file, and replaces the target if it exists.
func move(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.Rename(from, to))
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

// removeLock removes the network's lock, as rm -rf <network>/* does.
func removeLock(t *testing.T, s *Store) {
	if err := os.Remove(lockOf(s)); err != nil {
		t.Error(err)
	}
}

// TestHazard17ForeignFiles: none is listed, touched or blocks (R7).
func TestHazard17ForeignFiles(t *testing.T) {
	s := newStore(t)
	in := func(name string) string { return filepath.Join(dirOf(s), name) }
	outside := filepath.Join(s.DataDir(), "10.0.0.22") // the name of an address, but not in the directory
	write(t, outside, "abc\r\neth0")
	mkdir(t, in("backup"))
	mkdir(t, in("10.0.0.20"))
	symlink(t, outside, in("10.0.0.21"))
	symlink(t, "../10.0.0.22", in("10.0.0.22"))
	symlink(t, "10.0.0.1", in("10.0.0.23"))
	symlink(t, "10.0.0.24", in("10.0.0.24"))
	symlink(t, "/missing", in("10.0.0.25"))
	node(t, in("10.0.0.30"), syscall.S_IFIFO)
	node(t, in("10.0.0.31"), syscall.S_IFSOCK)
	for _, name := range []string{
		"10.0.0.01", "010.0.0.1", "::ffff:10.0.0.1", "FD00::1", "fd00:0::1", "fe80::1%eth0", "fd00__1",
		"10.0.0.1.bak", ".10.0.0.1", "10.0.0.1~", "10.0.0.1 ", "README", "last_reserved_ip", "last_reserved_ip.0",
	} {
		write(t, in(name), "abc\r\neth0")
	}
	before := tree(t, s.DataDir())
	for _, ip := range []string{"10.0.0.1", "10.0.0.2", "fd00::1"} {
		write(t, at(s, ip), "abc\r\neth0")
	}
	rs, err := reservations(s.List(t.Context()))
	if err != nil {
		t.Errorf("List: %v", err)
	}
	diff(t, "List", []string{"podnet 10.0.0.1", "podnet 10.0.0.2", "podnet fd00::1"}, files(rs))
	done, err := s.Release(t.Context(), pointers(rs)...)
	if err != nil {
		t.Errorf("Release: %v", err)
	}
	diff(t, "Release", []Outcome{Released, Released, Released}, done.Outcomes)
	diff(t, "foreign files", before, tree(t, s.DataDir()))
}

// swaps replace a reservation.
var swaps = []struct {
	reason string
	swap   func(t *testing.T, path, aside string)
	read   OwnerState // by List, if it happens after the names are read; empty: left out
	want   Outcome    // of Release, if it happens after List
}{
	{"a new file for the same owner, made beside the old one, so that it has another inode", func(t *testing.T, path, aside string) {
		write(t, aside, "abc\r\neth0")
		move(t, aside, path)
	}, Owned, Changed},
	{"nothing", func(t *testing.T, path, _ string) { must(t, os.Remove(path)) }, "", Gone},
	{"a link to the same file", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, aside, path)
	}, "", Changed},
	{"a link to itself", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, path, path)
	}, "", Changed},
	{"a pipe", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		node(t, path, syscall.S_IFIFO)
	}, "", Changed},
	{"a directory", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		mkdir(t, path)
	}, "", Changed},
	{"the same file after a chmod", func(t *testing.T, path, _ string) {
		changeTime(t, path, func() error { return os.Chmod(path, 0o640) })
	}, Owned, Changed},
	{"the same file with another owner of the same length", func(t *testing.T, path, _ string) {
		changeTime(t, path, func() error { return os.WriteFile(path, []byte("xyz\r\neth0"), 0o600) })
	}, Owned, Changed},
	{"the same file, cut short by a full disk", func(t *testing.T, path, _ string) { write(t, path, "") }, Empty, Changed},
	{"the same file with a second name", func(t *testing.T, path, aside string) {
		changeTime(t, path, func() error {
			_ = os.Remove(aside)
			return os.Link(path, aside)
		})
	}, Owned, Changed},
}

// changeTime changes a file until its change time differs: where the kernel counts that
// time in ticks, two changes may have the same.
func changeTime(t *testing.T, path string, do func() error) {
	t.Helper()
	changed := func() syscall.Timespec {
		var st syscall.Stat_t
		must(t, syscall.Stat(path, &st))
		return st.Ctim
	}
	for before, start := changed(), time.Now(); changed() == before; must(t, do()) {
		if time.Since(start) > time.Minute {
			t.Fatal("the change time of a file does not change")
		}
	}
}

// TestListOfAnotherFile: a file that replaces a reservation while List runs is read as what
// it is, or left out. It is not followed, and does not block.
func TestListOfAnotherFile(t *testing.T) {
	for _, row := range swaps {
		s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		want := []OwnerState{Owned, row.read, Owned}
		if row.read == "" {
			want = []OwnerState{Owned, Owned}
		}
		rs, err := reservations(s.List(hookContext{Context: t.Context(), err: atCall(2, func() {
			row.swap(t, at(s, "10.0.0.2"), filepath.Join(s.DataDir(), "aside"))
		})}))
		if err != nil {
			t.Errorf("List: %v: %s", err, row.reason)
		}
		diff(t, row.reason, want, states(rs))
	}
}

// TestHazard09ReplacedBetweenJudgingAndDeleting: a file that replaced a reservation since List is kept (R6, R7),
// even if it did so while Release was running, just before it compared that reservation.
func TestHazard09ReplacedBetweenJudgingAndDeleting(t *testing.T) {
	for _, during := range []bool{false, true} {
		for _, row := range swaps {
			s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
			rs := list(t, s)
			var before map[string]string
			swap := func() {
				row.swap(t, at(s, "10.0.0.2"), filepath.Join(s.DataDir(), "aside"))
				before = tree(t, s.DataDir())
			}
			ctx := hookContext{Context: t.Context()}
			if during {
				ctx.err = atCall(3, swap)
			} else {
				swap()
			}
			done, err := s.Release(ctx, pointers(rs)...)
			if err != nil {
				t.Errorf("Release: %v: %s", err, row.reason)
			}
			diff(t, row.reason, []Outcome{Released, row.want, Released}, done.Outcomes)
			delete(before, at(s, "10.0.0.1"))
			delete(before, at(s, "10.0.0.3"))
			diff(t, row.reason, before, tree(t, s.DataDir()))
		}
	}
}

// TestRead: read opens only a regular file, whatever type it had when it was listed.
func TestRead(t *testing.T) {
	s := newStore(t)
	kinds(t, s)
	d := openedDir(t, s)
	for ip, want := range map[string]error{
		"10.0.0.1": nil, "10.0.0.2": errNotRegular, "10.0.0.3": errNotRegular, "10.0.0.4": errNotRegular, "10.0.0.5": errNotRegular,
		"10.0.0.6": errNotRegular, "10.0.0.7": errNotRegular, "10.0.0.8": fs.ErrNotExist,
	} {
		if _, err := d.read(&Reservation{IP: netip.MustParseAddr(ip)}, make([]byte, 10)); !errors.Is(err, want) {
			t.Errorf("read of %s: %v, want %v", ip, err, want)
		}
	}
	none := Reservation{IP: netip.MustParseAddr("10.0.0.6")}
	if d.stat(&none); none.identity != (identity{}) || !none.ReservedAt.IsZero() {
		t.Errorf("stat of a directory: %+v", none)
	}
	got := Reservation{IP: netip.MustParseAddr("10.0.0.1")}
	content, err := d.read(&got, make([]byte, 4))
	if err != nil || string(content) != "cont" {
		t.Errorf("read: %q, %v, want no more than fits", content, err)
	}
	var st syscall.Stat_t
	must(t, syscall.Stat(at(s, "10.0.0.1"), &st))
	want := identity{ino: st.Ino, changed: st.Ctim.Nano(), size: 7}
	if modified := time.Unix(st.Mtim.Unix()); got.identity != want || !got.ReservedAt.Equal(modified) {
		t.Errorf("read: %+v, want %+v, modified at %v", got, want, modified)
	}
}

// descriptors returns the path of each open descriptor.
func descriptors(t *testing.T) map[int]string {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	paths := make(map[int]string)
	for _, e := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			fd, err := strconv.Atoi(e.Name())
			must(t, err)
			paths[fd] = to
		}
	}
	return paths
}

// TestRetry: a call that a signal interrupted is repeated.
func TestRetry(t *testing.T) {
	calls := 0
	n, err := retry(func() (int, error) {
		if calls++; calls < 3 {
			return -1, syscall.EINTR
		}
		return 7, nil
	})
	if n != 7 || err != nil || calls != 3 {
		t.Errorf("retry: %d, %v after %d calls", n, err, calls)
	}
}

// TestDirectoryIsHeldOpen: if the directory is renamed during a release, and another one
// gets its name, the files of that one are kept.
func TestDirectoryIsHeldOpen(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	done, err := s.Release(hookContext{Context: t.Context(), err: atCall(3, func() {
		move(t, dirOf(s), dirOf(s)+".old")
		addNetwork(t, s, network)
		must(t, os.Link(filepath.Join(dirOf(s)+".old", "10.0.0.2"), at(s, "10.0.0.2"))) // the same file
	})}, pointers(rs)...)
	must(t, err)
	diff(t, "Release", []Outcome{Released, Changed}, done.Outcomes)
	if _, err := os.Lstat(at(s, "10.0.0.2")); err != nil {
		t.Errorf("the new directory's file: %v", err)
	}
}

// wantLinkError fails the test unless an error names a link and says what to do.
func wantLinkError(t *testing.T, what, path string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "put the directory itself") {
		t.Errorf("%s: %v, want an error that names the link and says what to do", what, err)
	}
}

// TestHazard17LinkAsNetwork: a link to a directory is not followed. It is an error that says
// what to do, because siblings in it would not be read (R3, R7). Any other link, and a pipe,
// is ignored.
func TestHazard17LinkAsNetwork(t *testing.T) {
	for _, row := range []struct {
		reason, target string
		good           bool
	}{
		{"a link to a directory", ".outside", false},
		{"a link to a link to a directory", ".link", false},
		{"a link to a file", ".outside/10.0.0.9", true},
		{"a link to nothing", "missing", true},
		{"a link below a file", ".outside/10.0.0.9/x", true},
		{"a link to itself", "linked", true},
	} {
		s := newStore(t, "10.0.0.1")
		mkdir(t, filepath.Join(s.DataDir(), ".outside"))
		symlink(t, ".outside", filepath.Join(s.DataDir(), ".link"))
		node(t, filepath.Join(s.DataDir(), "piped"), syscall.S_IFIFO)
		path := filepath.Join(s.DataDir(), "linked")
		symlink(t, row.target, path)
		l, err := s.List(t.Context())
		names, namesErr := s.Networks()
		diff(t, row.reason, l.Networks, names)
		if row.good {
			must(t, err, namesErr)
			diff(t, row.reason, Listing{Networks: []string{network}, Reservations: l.Reservations}, l)
			diff(t, row.reason, []string{"podnet 10.0.0.1"}, files(l.Reservations))
		} else {
			wantLinkError(t, row.reason, path, err)
			wantLinkError(t, row.reason, path, namesErr)
			diff(t, row.reason, Listing{}, l)
		}
	}
}

// TestHazard17LinkInPlaceOfNetwork: the directory is moved and replaced by a link to it,
// after List has read the names and before it reads the owners. That List goes on in the
// directory that it opened. A later List and a Release return an error about the link.
func TestHazard17LinkInPlaceOfNetwork(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	rs, err := reservations(s.List(hookContext{Context: t.Context(), err: atCall(1, func() {
		outside := filepath.Join(t.TempDir(), "outside")
		move(t, dirOf(s), outside)
		symlink(t, outside, dirOf(s))
	})}))
	must(t, err)
	_, err = s.List(t.Context())
	wantLinkError(t, "List", dirOf(s), err)
	before := tree(t, dirOf(s)+"/.")
	result, err := s.Release(t.Context(), pointers(rs)...)
	wantLinkError(t, "Release", dirOf(s), err)
	diff(t, "Release", []Outcome{NotTried}, result.Outcomes)
	diff(t, "the link's target", before, tree(t, dirOf(s)+"/."))
}

// TestDataDirLink: the data directory itself may be a link, because the caller named it.
// A pipe in its place does not block.
func TestDataDirLink(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	link := New(filepath.Join(t.TempDir(), "link"))
	symlink(t, s.DataDir(), link.DataDir())
	result, err := link.Release(t.Context(), pointers(list(t, link))...)
	must(t, err)
	diff(t, "Release", []Outcome{Released}, result.Outcomes)
	pipe := filepath.Join(t.TempDir(), "pipe")
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
	_, _ = s.Release(hookContext{Context: t.Context(), err: atCall(1, func() { removeLock(t, s) })},
		&rs[1], &rs[1], &rs[0], &Reservation{Network: network, IP: netip.MustParseAddr("10.0.0.2"), Owner: Owned})
	root, err := filepath.EvalSymlinks(s.DataDir())
	must(t, err)
	for _, path := range descriptors(t) {
		if strings.HasPrefix(path, root) {
			t.Errorf("%q is open", path)
		}
	}
}

// Only a link with the name of a network is followed: others may lead to a mount that hangs.
func TestNetworksFollowsNoForeignLink(t *testing.T) {
	s := newStore(t)
	unreadable := strings.Repeat("x", 300) // following it is an error
	for _, name := range []string{".backup", "no network"} {
		symlink(t, unreadable, filepath.Join(s.DataDir(), name))
	}
	if names, err := s.Networks(); err != nil || len(names) != 1 {
		t.Errorf("got %q, %v", names, err)
	}
	symlink(t, unreadable, filepath.Join(s.DataDir(), "second"))
	if names, err := s.Networks(); names != nil || !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("Networks: %v, %v, want an error of the link", names, err)
	}
}

// The error of a context is fs.ErrNotExist, like that of a file or a directory that was removed.
func TestReleaseContextErrorIsNotExist(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	for _, first := range []error{nil, fs.ErrNotExist} {
		gone := hookContext{Context: t.Context(), err: func() error {
			err := first
			first = fs.ErrNotExist
			return err
		}}
		result, err := s.Release(gone, pointers(list(t, s))...)
		if result.Outcomes[0] != NotTried || err == nil {
			t.Errorf("%v, error %v", result.Outcomes, err)
		}
	}
}

// No reservation's address has a zone, which could lead out of the directory.
func TestReleaseZone(t *testing.T) {
	s := newStore(t, "fd00::1")
	mkdir(t, filepath.Join(dirOf(s), "fd00::1%"))
	outside := filepath.Join(s.DataDir(), "outside")
	must(t, os.Link(at(s, "fd00::1"), outside))
	r := list(t, s)[0]
	r.IP = r.IP.WithZone("/../../outside")
	if result, err := s.Release(t.Context(), &r); result.Outcomes[0] != Failed || err == nil {
		t.Errorf("%v, error %v", result.Outcomes, err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error("a file outside of the directory was removed")
	}
}
