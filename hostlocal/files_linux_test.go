// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// node makes a pipe or a socket that nothing else has open.
func node(t *testing.T, path string, kind uint32) {
	t.Helper()
	if err := syscall.Mknod(path, kind|0o600, 0); err != nil {
		t.Fatal(err)
	}
}

// mkdir makes a directory with a reservation in it, like a backup.
func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(path, "10.0.0.9"), "abc\r\neth0")
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// move renames a file, and replaces the target if it exists.
func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
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
	node(t, in("fd00::30"), syscall.S_IFIFO)
	node(t, in("10.0.0.31"), syscall.S_IFSOCK)
	for _, name := range []string{
		"10.0.0.01", "010.0.0.1", "::ffff:10.0.0.1", "FD00::1", "fd00:0::1", "fe80::1%eth0", "fd00__1",
		"10.0.0.1.bak", ".10.0.0.1", "10.0.0.1~", "10.0.0.1 ", "README", "last_reserved_ip",
	} {
		write(t, in(name), "abc\r\neth0")
	}
	write(t, in("lock"), "")
	write(t, in("last_reserved_ip.0"), "10.0.0.2")
	write(t, in("last_reserved_ip.1"), "fd00::1")
	before := tree(t, s.DataDir())

	good := []string{"10.0.0.1", "10.0.0.2", "fd00::1"}
	reserve(t, s, good...)
	within(t, "List and Release beside foreign files", func() {
		rs, err := reservations(s.List(t.Context()))
		if err != nil {
			t.Errorf("List: %v", err)
		}
		if diff := cmp.Diff(good, addresses(rs)); diff != "" {
			t.Errorf("List (-want +got):\n%s", diff)
		}
		done, err := s.Release(t.Context(), pointers(rs)...)
		if err != nil {
			t.Errorf("Release: %v", err)
		}
		if diff := cmp.Diff([]Outcome{Released, Released, Released}, done.Outcomes); diff != "" {
			t.Errorf("Release (-want +got):\n%s", diff)
		}
	})
	if diff := cmp.Diff(before, tree(t, s.DataDir())); diff != "" {
		t.Errorf("foreign files were touched (-before +after):\n%s", diff)
	}
}

// swaps replace a reservation.
var swaps = []struct {
	reason string
	swap   func(t *testing.T, path, aside string)
	read   OwnerState // by List, if it happens after the names are read; Unknown: left out
	want   Outcome    // of Release, if it happens after List
}{
	{"a new file, made while the old one still exists, so that it has another inode", func(t *testing.T, path, aside string) {
		write(t, aside, "new\r\neth0")
		move(t, aside, path)
	}, Owned, Changed},
	{"a new file for the same owner", func(t *testing.T, path, aside string) {
		write(t, aside, "abc\r\neth0")
		move(t, aside, path)
	}, Owned, Changed},
	{"nothing", func(t *testing.T, path, _ string) {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}, Unknown, Gone},
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
	{"the same file, longer", func(t *testing.T, path, _ string) { write(t, path, "abc\r\neth0\n") }, Owned, Changed},
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
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ctim
	}
	before := changed()
	until(t, "a file's change time differs", func() bool {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		return changed() != before
	})
}

// TestListOfAnotherFile: a file that replaces a reservation while List runs is read as what
// it is, or left out. It is not followed, and does not block.
func TestListOfAnotherFile(t *testing.T) {
	for _, row := range swaps {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
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
			if diff := cmp.Diff(want, states(rs)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
		})
	}
}

// TestHazard09AnotherFile: a file that replaced a reservation since List is kept (R6, R7),
// even if it did so while Release was running, just before it compared that reservation.
func TestHazard09AnotherFile(t *testing.T) {
	for _, during := range []bool{false, true} {
		for _, row := range swaps {
			s := newStore(t)
			reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
			rs := list(t, s)
			aside := filepath.Join(s.DataDir(), "aside")
			var before map[string]string
			swap := func() {
				row.swap(t, at(s, "10.0.0.2"), aside)
				before = tree(t, s.DataDir())
			}
			ctx := hookContext{Context: t.Context()}
			if during {
				ctx.err = atCall(2, swap)
			} else {
				swap()
			}
			within(t, row.reason, func() {
				done, err := s.Release(ctx, pointers(rs)...)
				if err != nil {
					t.Errorf("Release: %v: %s", err, row.reason)
				}
				if diff := cmp.Diff([]Outcome{Released, row.want, Released}, done.Outcomes); diff != "" {
					t.Errorf("%s (-want +got):\n%s", row.reason, diff)
				}
			})
			after := tree(t, s.DataDir())
			for _, m := range []map[string]string{before, after} {
				for _, name := range []string{"10.0.0.1", "10.0.0.3", "lock"} {
					delete(m, filepath.Join(network, name))
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("it was touched: %s (-before +after):\n%s", row.reason, diff)
			}
		}
	}
}

// listWithoutDescriptors lists while the process may open only one more descriptor, that of
// the directory.
func listWithoutDescriptors(t *testing.T, s *Store, ctx context.Context) (rs []Reservation, err error) {
	t.Helper()
	withDescriptors(t, 1, func() { rs, err = reservations(s.List(ctx)) })
	return rs, err
}

// withDescriptors calls do while the process may open only n more descriptors.
func withDescriptors(t *testing.T, n uint64, do func()) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	opened := make([]int, n) // in ascending order, not without gaps: a file of an earlier test may have been closed late
	for i := range opened {
		var err error
		if opened[i], err = syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, fd := range opened {
		if err := syscall.Close(fd); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(opened[n-1]) + 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	do()
}

// TestListReportsUnreadableFiles: a file that can't be opened does not hide the others, and
// is never released.
func TestListReportsUnreadableFiles(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")

	rs, err := listWithoutDescriptors(t, s, t.Context())
	if err != nil || len(rs) != 3 {
		t.Fatalf("List: %v, %v", addresses(rs), err)
	}
	for _, r := range rs {
		info, err := os.Stat(s.filePath(&r))
		if err != nil {
			t.Fatal(err)
		}
		want := Reservation{Network: network, IP: r.IP, Owner: Unreadable, Err: r.Err, ReservedAt: info.ModTime()}
		if diff := cmp.Diff(want, r, equal, cmpopts.EquateErrors()); diff != "" {
			t.Errorf("List (-want +got):\n%s", diff)
		}
		if !errors.Is(r.Err, syscall.EMFILE) || !strings.Contains(r.Err.Error(), s.filePath(&r)) {
			t.Errorf("%v: %v, want an error that names the file", r.IP, r.Err)
		}
	}
	done, err := s.Release(t.Context(), pointers(rs)...)
	if diff := cmp.Diff([]Outcome{Failed, Failed, Failed}, done.Outcomes); diff != "" || err == nil {
		t.Errorf("Release of what could not be read: %v (-want +got):\n%s", err, diff)
	}
	if got := left(t, s); len(got) != 3 {
		t.Errorf("left are %v, want all", got)
	}
}

// TestHazard68UnreadableInARenamedDirectory: an unreadable file is listed even if another
// directory has the name by then. Nothing shows that the file is gone, and its container may
// have siblings.
func TestHazard68UnreadableInARenamedDirectory(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs, err := listWithoutDescriptors(t, s, hookContext{Context: t.Context(), err: atCall(1, func() {
		move(t, dirOf(s), dirOf(s)+".old")
		addNetwork(t, s, network)
	})})
	if diff := cmp.Diff([]OwnerState{Unreadable}, states(rs)); diff != "" || err != nil {
		t.Errorf("List: %v (-want +got):\n%s", err, diff)
	}
}

// TestRead: read opens only a regular file, whatever type it had when it was listed.
func TestRead(t *testing.T) {
	s := newStore(t)
	write(t, at(s, "10.0.0.1"), "content")
	symlink(t, "10.0.0.1", at(s, "10.0.0.2"))
	symlink(t, "/dev/null", at(s, "10.0.0.3"))
	symlink(t, "/missing", at(s, "10.0.0.4"))
	node(t, at(s, "10.0.0.5"), syscall.S_IFIFO)
	node(t, at(s, "10.0.0.6"), syscall.S_IFSOCK)
	mkdir(t, at(s, "10.0.0.7"))
	d, err := openDir(dirOf(s))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, row := range []struct {
		reason string
		ip     string
		want   error
	}{
		{"a file", "10.0.0.1", nil},
		{"a link", "10.0.0.2", errNotRegular},
		{"a link to a device", "10.0.0.3", errNotRegular},
		{"a link to nothing", "10.0.0.4", errNotRegular},
		{"a pipe", "10.0.0.5", errNotRegular},
		{"a socket", "10.0.0.6", errNotRegular},
		{"a directory", "10.0.0.7", errNotRegular},
		{"nothing", "10.0.0.8", fs.ErrNotExist},
	} {
		within(t, row.reason, func() {
			if _, err := d.read(&Reservation{IP: netip.MustParseAddr(row.ip)}, make([]byte, 10)); !errors.Is(err, row.want) {
				t.Errorf("read: %v, want %v: %s", err, row.want, row.reason)
			}
		})
	}

	none := Reservation{IP: netip.MustParseAddr("10.0.0.7")}
	if d.stat(&none); none.Identity() != (Identity{}) || !none.ReservedAt.IsZero() {
		t.Errorf("stat of a directory: %+v", none)
	}
	got := Reservation{IP: netip.MustParseAddr("10.0.0.1")}
	content, err := d.read(&got, make([]byte, 4))
	if err != nil || string(content) != "cont" {
		t.Errorf("read: %q, %v, want no more than fits", content, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(at(s, "10.0.0.1"), &st); err != nil {
		t.Fatal(err)
	}
	want := Identity{ino: st.Ino, changed: st.Ctim.Nano(), size: 7}
	if modified := time.Unix(st.Mtim.Unix()); got.Identity() != want || !got.ReservedAt.Equal(modified) {
		t.Errorf("read: %+v, want %+v, modified at %v", got, want, modified)
	}
}

// TestListOfAClosedDirectory: list returns an error, and does not take it for the end.
func TestListOfAClosedDirectory(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	d, err := openDir(dirOf(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "a closed directory", func() {
		if ips, err := d.list(); err == nil {
			t.Errorf("list: %v, want an error", ips)
		}
	})
}

// TestListFails: a network that can't be listed is an error, without a list (R3).
func TestListFails(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	addNetwork(t, s, "z")
	rs, err := reservations(s.List(hookContext{Context: t.Context(), done: func() { closeDescriptor(t, dirOf(s)) }}))
	if rs != nil || !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), network) {
		t.Errorf("List: %v, %v, want an error that names the network", rs, err)
	}
}

// closeDescriptor closes the descriptor of a path, if there is one.
func closeDescriptor(t *testing.T, path string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Error(err)
	}
	for _, e := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == path {
			fd, err := strconv.Atoi(e.Name())
			if err := errors.Join(err, syscall.Close(fd)); err != nil {
				t.Error(err)
			}
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
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	done, err := s.Release(hookContext{Context: t.Context(), err: atCall(2, func() {
		move(t, dirOf(s), dirOf(s)+".old")
		if err := os.Mkdir(dirOf(s), 0o755); err != nil {
			t.Error(err)
		}
		// The new directory also has the same file.
		if err := os.Link(filepath.Join(dirOf(s)+".old", "10.0.0.2"), at(s, "10.0.0.2")); err != nil {
			t.Error(err)
		}
	})}, pointers(rs)...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Outcome{Released, Changed}, done.Outcomes); diff != "" {
		t.Errorf("Release (-want +got):\n%s", diff)
	}
	if _, err := os.Lstat(at(s, "10.0.0.2")); err != nil {
		t.Errorf("the new directory's file: %v", err)
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
		{"a link to a network beside it", func(t *testing.T, path, _ string) { symlink(t, network, path) }, false},
		{"a link to a link to a directory", func(t *testing.T, path, outside string) {
			symlink(t, outside, outside+"-link")
			symlink(t, outside+"-link", path)
		}, false},
		{"a link to a file", func(t *testing.T, path, outside string) {
			symlink(t, filepath.Join(outside, "10.0.0.9"), path)
		}, true},
		{"a link to nothing", func(t *testing.T, path, _ string) { symlink(t, "/missing", path) }, true},
		{"a link below a file", func(t *testing.T, path, outside string) {
			symlink(t, filepath.Join(outside, "10.0.0.9", "x"), path)
		}, true},
		{"a link to itself", func(t *testing.T, path, _ string) { symlink(t, path, path) }, true},
		{"a pipe", func(t *testing.T, path, _ string) { node(t, path, syscall.S_IFIFO) }, true},
		{"a link to a pipe", func(t *testing.T, path, outside string) {
			node(t, outside+"-pipe", syscall.S_IFIFO)
			symlink(t, outside+"-pipe", path)
		}, true},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1")
		outside := filepath.Join(t.TempDir(), "outside")
		mkdir(t, outside)
		path := filepath.Join(s.DataDir(), "linked")
		row.make(t, path, outside)
		within(t, row.reason, func() {
			networks, networksErr := s.Networks()
			rs, err := reservations(s.List(t.Context()))
			if row.good {
				if err != nil || networksErr != nil || len(rs) != 1 || len(networks) != 1 {
					t.Errorf("List: %v, %v; Networks: %v, %v: %s", addresses(rs), err, networks, networksErr, row.reason)
				}
				return
			}
			for what, err := range map[string]error{"List": err, "Networks": networksErr} {
				if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "put the directory itself") {
					t.Errorf("%s: %v, want an error that names the link and says what to do: %s", what, err, row.reason)
				}
			}
			if rs != nil || networks != nil {
				t.Errorf("List: %v; Networks: %v, want nothing: %s", addresses(rs), networks, row.reason)
			}
		})
	}
}

// TestHazard17LinkInPlaceOfNetwork: the directory is moved and replaced by a link to it,
// after List has read the names and before it reads the owners. That List goes on in the
// directory that it opened. A later List and a Release return an error about the link.
func TestHazard17LinkInPlaceOfNetwork(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	swap := func() {
		outside := filepath.Join(t.TempDir(), "outside")
		move(t, dirOf(s), outside)
		symlink(t, outside, dirOf(s))
	}
	if got, err := reservations(s.List(hookContext{Context: t.Context(), err: atCall(1, swap)})); err != nil || !slices.Equal(addresses(got), addresses(rs)) {
		t.Errorf("List: %v, %v", addresses(got), err)
	}
	if got, err := reservations(s.List(t.Context())); got != nil || err == nil || !strings.Contains(err.Error(), "put the directory itself") {
		t.Errorf("List: %v, %v", addresses(got), err)
	}
	before := tree(t, dirOf(s)+"/.")
	result, err := s.Release(t.Context(), pointers(rs)...)
	if result.Outcomes[0] != NotTried || err == nil || !strings.Contains(err.Error(), "put the directory itself") {
		t.Errorf("Release: %v, %v", result.Outcomes, err)
	}
	if diff := cmp.Diff(before, tree(t, dirOf(s)+"/.")); diff != "" {
		t.Errorf("the link's target was touched (-before +after):\n%s", diff)
	}
}

// TestDataDirLink: the data directory itself may be a link, because the caller named it.
// A pipe in its place does not block.
func TestDataDirLink(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	link := filepath.Join(t.TempDir(), "link")
	symlink(t, s.DataDir(), link)
	rs := list(t, New(link))
	result, err := New(link).Release(t.Context(), pointers(rs)...)
	if diff := cmp.Diff([]Outcome{Released}, result.Outcomes); diff != "" || err != nil {
		t.Errorf("Release: %v (-want +got):\n%s", err, diff)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	node(t, pipe, syscall.S_IFIFO)
	within(t, "a pipe as data directory", func() {
		if rs, err := reservations(New(pipe).List(t.Context())); rs != nil || err == nil {
			t.Errorf("List: %v, %v", rs, err)
		}
	})
}

// TestNoDescriptorIsLeft: a call closes the descriptors that it opened, however it ends. Only
// those of the data directory count: others come and go with what earlier tests left.
func TestNoDescriptorIsLeft(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	node(t, at(s, "10.0.0.2"), syscall.S_IFIFO)
	root, err := filepath.EvalSymlinks(s.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	open := func() (files []string) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc here")
		}
		for _, e := range entries {
			if file, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(file, root) {
				files = append(files, file)
			}
		}
		return files
	}
	write(t, filepath.Join(addNetwork(t, s, "piped"), "10.0.0.1"), "abc\r\neth0")
	node(t, filepath.Join(s.DataDir(), "piped", "lock"), syscall.S_IFIFO)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	work := func() {
		reserve(t, s, "10.0.0.1")
		rs := list(t, s)
		_, _ = reservations(s.List(ended))
		unlock := hold(t, dirOf(s))
		if got := open(); len(got) != 1 || filepath.Base(got[0]) != "lock" {
			t.Fatalf("%q are open while the test holds the lock", got)
		}
		_, _ = s.Release(ended, pointers(rs)...)
		unlock()
		_, _ = s.Release(hookContext{Context: t.Context(), err: atCall(1, func() { removeLock(t, s) })},
			&rs[0], &rs[0], &rs[1], &Reservation{Network: network, IP: netip.MustParseAddr("10.0.0.2"), Owner: Owned})
	}
	for range 20 {
		work()
	}
	if got := open(); len(got) != 0 {
		t.Errorf("%q are open", got)
	}
}

// Only a link with the name of a network is followed: others may lead to a mount that hangs.
func TestNetworksFollowsNoForeignLink(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{".backup", "no network"} {
		symlink(t, strings.Repeat("x", 300), filepath.Join(s.DataDir(), name)) // following it is an error
	}
	if names, err := s.Networks(); err != nil || len(names) != 1 {
		t.Errorf("got %q, %v", names, err)
	}
}

// A link with the name of a network whose target can't be read is an error.
func TestNetworksReportsUnreadableLinks(t *testing.T) {
	s := newStore(t)
	symlink(t, strings.Repeat("x", 300), filepath.Join(s.DataDir(), "second"))
	if names, err := s.Networks(); names != nil || !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("Networks: %v, %v, want an error of the link", names, err)
	}
}
