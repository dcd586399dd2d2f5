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
	within(t, "List and Release beside foreign files", func() {
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
	})
	diff(t, "foreign files", before, tree(t, s.DataDir()))
}

// swaps replace a reservation.
var swaps = []struct {
	reason string
	swap   func(t *testing.T, path, aside string)
	read   OwnerState // by List, if it happens after the names are read; Unknown: left out
	want   Outcome    // of Release, if it happens after List
}{
	{"a new file for the same owner, made while the old one still exists, so that it has another inode", func(t *testing.T, path, aside string) {
		write(t, aside, "abc\r\neth0")
		move(t, aside, path)
	}, Owned, Changed},
	{"nothing", func(t *testing.T, path, _ string) { must(t, os.Remove(path)) }, Unknown, Gone},
	{"a link to the same file", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, aside, path)
	}, Unknown, Changed},
	{"a link to itself", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, path, path)
	}, Unknown, Changed},
	{"a link to nothing", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, "/missing", path)
	}, Unknown, Changed},
	{"a pipe", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		node(t, path, syscall.S_IFIFO)
	}, Unknown, Changed},
	{"a socket", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		node(t, path, syscall.S_IFSOCK)
	}, Unknown, Changed},
	{"a directory", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		mkdir(t, path)
	}, Unknown, Changed},
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
		if row.read == Unknown {
			want = []OwnerState{Owned, Owned}
		}
		within(t, row.reason, func() {
			rs, err := reservations(s.List(hookContext{Context: t.Context(), err: atCall(2, func() {
				row.swap(t, at(s, "10.0.0.2"), filepath.Join(s.DataDir(), "aside"))
			})}))
			if err != nil {
				t.Errorf("List: %v: %s", err, row.reason)
			}
			diff(t, row.reason, want, states(rs))
		})
	}
}

// TestHazard09AnotherFile: a file that replaced a reservation since List is kept (R6, R7),
// even if it did so while Release was running, just before it compared that reservation.
func TestHazard09AnotherFile(t *testing.T) {
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
			within(t, row.reason, func() {
				done, err := s.Release(ctx, pointers(rs)...)
				if err != nil {
					t.Errorf("Release: %v: %s", err, row.reason)
				}
				diff(t, row.reason, []Outcome{Released, row.want, Released}, done.Outcomes)
			})
			delete(before, at(s, "10.0.0.1"))
			delete(before, at(s, "10.0.0.3"))
			diff(t, row.reason, before, tree(t, s.DataDir()))
		}
	}
}

// withDescriptors calls do while the process may open only n more descriptors.
func withDescriptors(t *testing.T, n uint64, do func()) {
	t.Helper()
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	opened := make([]int, n) // in ascending order, not without gaps: a file of an earlier test may have been closed late
	for i := range opened {
		var err error
		opened[i], err = syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		must(t, err)
	}
	for _, fd := range opened {
		must(t, syscall.Close(fd))
	}
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(opened[n-1]) + 1, Max: limit.Max}))
	defer func() { must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	do()
}

// TestListReportsUnreadableFiles: a file that can't be opened does not hide the others, and
// is never released.
func TestListReportsUnreadableFiles(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	var rs []Reservation
	var err error
	withDescriptors(t, 1, func() { rs, err = reservations(s.List(t.Context())) }) // that of the directory
	must(t, err)
	for _, r := range rs {
		info, err := os.Stat(s.filePath(&r))
		must(t, err)
		diff(t, "List", Reservation{Network: network, IP: r.IP, Owner: Unreadable, Err: syscall.EMFILE, ReservedAt: info.ModTime()}, r)
		if !strings.Contains(r.Err.Error(), s.filePath(&r)) {
			t.Errorf("%v: %v, want an error that names the file", r.IP, r.Err)
		}
	}
	done, err := s.Release(t.Context(), pointers(rs)...)
	diff(t, "Release of what could not be read", []Outcome{Failed, Failed}, done.Outcomes)
	if err == nil {
		t.Error("Release returns no error")
	}
	wantLeft(t, s, "all", "10.0.0.1", "10.0.0.2")
}

// TestHazard68UnreadableInARenamedDirectory: an unreadable file is listed even if another
// directory has the name by then. Nothing shows that the file is gone, and its container may
// have siblings.
func TestHazard68UnreadableInARenamedDirectory(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	withDescriptors(t, 1, func() {
		rs, err := reservations(s.List(hookContext{Context: t.Context(), err: atCall(1, func() {
			move(t, dirOf(s), dirOf(s)+".old")
			addNetwork(t, s, network)
		})}))
		must(t, err)
		diff(t, "List", []OwnerState{Unreadable}, states(rs))
	})
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
		within(t, ip, func() {
			if _, err := d.read(&Reservation{IP: netip.MustParseAddr(ip)}, make([]byte, 10)); !errors.Is(err, want) {
				t.Errorf("read of %s: %v, want %v", ip, err, want)
			}
		})
	}
	none := Reservation{IP: netip.MustParseAddr("10.0.0.6")}
	if d.stat(&none); none.Identity() != (Identity{}) || !none.ReservedAt.IsZero() {
		t.Errorf("stat of a directory: %+v", none)
	}
	got := Reservation{IP: netip.MustParseAddr("10.0.0.1")}
	content, err := d.read(&got, make([]byte, 4))
	if err != nil || string(content) != "cont" {
		t.Errorf("read: %q, %v, want no more than fits", content, err)
	}
	var st syscall.Stat_t
	must(t, syscall.Stat(at(s, "10.0.0.1"), &st))
	want := Identity{ino: st.Ino, changed: st.Ctim.Nano(), size: 7}
	if modified := time.Unix(st.Mtim.Unix()); got.Identity() != want || !got.ReservedAt.Equal(modified) {
		t.Errorf("read: %+v, want %+v, modified at %v", got, want, modified)
	}
}

// TestListFails: a network that can't be listed is an error, without a list (R3).
func TestListFails(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	addNetwork(t, s, "z")
	l, err := s.List(hookContext{Context: t.Context(), done: func() { closeDescriptor(t, dirOf(s)) }})
	if l.Networks != nil || l.Reservations != nil || !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "network "+network) {
		t.Errorf("List: %v, %v, want an error that names the network", l, err)
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

// closeDescriptor closes the descriptors of a path.
func closeDescriptor(t *testing.T, path string) {
	t.Helper()
	for fd, to := range descriptors(t) {
		if to == path {
			must(t, syscall.Close(fd))
		}
	}
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
// what to do, because siblings in it would not be read (R3, R7). Any other link is ignored.
func TestHazard17LinkAsNetwork(t *testing.T) {
	for _, row := range []struct {
		reason string
		make   func(t *testing.T, path, outside string)
		good   bool
	}{
		{"a link to a directory", func(t *testing.T, path, outside string) { symlink(t, outside, path) }, false},
		{"a link to a link to a directory", func(t *testing.T, path, outside string) {
			symlink(t, outside, outside+"-link")
			symlink(t, outside+"-link", path)
		}, false},
		{"a link to a file", func(t *testing.T, path, outside string) { symlink(t, filepath.Join(outside, "10.0.0.9"), path) }, true},
		{"a link to nothing", func(t *testing.T, path, _ string) { symlink(t, "/missing", path) }, true},
		{"a link below a file", func(t *testing.T, path, outside string) { symlink(t, filepath.Join(outside, "10.0.0.9", "x"), path) }, true},
		{"a link to itself", func(t *testing.T, path, _ string) { symlink(t, path, path) }, true},
		{"a pipe", func(t *testing.T, path, _ string) { node(t, path, syscall.S_IFIFO) }, true},
	} {
		s := newStore(t, "10.0.0.1")
		outside := filepath.Join(t.TempDir(), "outside")
		mkdir(t, outside)
		path := filepath.Join(s.DataDir(), "linked")
		row.make(t, path, outside)
		within(t, row.reason, func() {
			l, err := s.List(t.Context())
			names, namesErr := s.Networks()
			want := Listing{}
			if row.good {
				want = Listing{Networks: []string{network}, Reservations: l.Reservations}
				if err != nil || namesErr != nil || len(l.Reservations) != 1 {
					t.Errorf("List: %v, %v, %v: %s", files(l.Reservations), err, namesErr, row.reason)
				}
			} else {
				wantLinkError(t, row.reason, path, err)
				wantLinkError(t, row.reason, path, namesErr)
			}
			diff(t, row.reason, want, l)
			diff(t, row.reason, want.Networks, names)
		})
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
	within(t, "a pipe as data directory", func() {
		if l, err := New(pipe).List(t.Context()); err == nil {
			t.Errorf("List: %v", l)
		}
	})
}

// TestNoDescriptorIsLeft: a call closes the descriptors that it opened, however it ends. Only
// those of the data directory count: others come and go with what earlier tests left.
func TestNoDescriptorIsLeft(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	node(t, at(s, "10.0.0.2"), syscall.S_IFIFO)
	node(t, filepath.Join(addNetwork(t, s, "piped", "10.0.0.1"), "lock"), syscall.S_IFIFO)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		write(t, at(s, "10.0.0.1"), "abc\r\neth0")
		rs := list(t, s)
		_, _ = s.List(ended)
		unlock := hold(t, dirOf(s))
		_, _ = s.Release(ended, pointers(rs)...)
		unlock()
		_, _ = s.Release(hookContext{Context: t.Context(), err: atCall(1, func() { removeLock(t, s) })},
			&rs[0], &rs[0], &rs[1], &Reservation{Network: network, IP: netip.MustParseAddr("10.0.0.2"), Owner: Owned})
	}
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
