// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// node makes a pipe or a socket. Neither has anybody at its other end.
func node(t *testing.T, path string, kind uint32) {
	t.Helper()
	if err := syscall.Mknod(path, kind|0o600, 0); err != nil {
		t.Fatal(err)
	}
}

// mkdir makes a folder with a reservation in it, as a backup would be.
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

// move renames, over what is there.
func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// TestHazard17StrangersInTheFolder: none is listed, none is touched, none
// blocks (R7).
func TestHazard17StrangersInTheFolder(t *testing.T) {
	s := newStore(t)
	in := func(name string) string { return filepath.Join(s.dir(), name) }
	outside := filepath.Join(s.DataDir(), "10.0.0.22") // the name of an address, but not in the folder
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
	within(t, "a listing and a release among strangers", func() {
		names, err := s.Scan(t.Context())
		if err != nil {
			t.Errorf("Scan: %v", err)
		}
		if diff := cmp.Diff(good, addresses(names)); diff != "" {
			t.Errorf("Scan goes by what the directory says, and opens nothing (-want +got):\n%s", diff)
		}
		rs, err := s.List(t.Context())
		if err != nil {
			t.Errorf("List: %v", err)
		}
		if diff := cmp.Diff(good, addresses(rs)); diff != "" {
			t.Errorf("List (-want +got):\n%s", diff)
		}
		done, err := s.Release(t.Context(), rs...)
		if err != nil {
			t.Errorf("Release: %v", err)
		}
		if diff := cmp.Diff([]Outcome{Released, Released, Released}, done.Outcomes); diff != "" {
			t.Errorf("Release (-want +got):\n%s", diff)
		}
	})
	if diff := cmp.Diff(before, tree(t, s.DataDir())); diff != "" {
		t.Errorf("strangers were touched (-before +after):\n%s", diff)
	}
}

// swaps are what somebody may put where a reservation was.
var swaps = []struct {
	reason string
	swap   func(t *testing.T, path, aside string)
	read   OwnerState // what ReadOwners says of it after a Scan
	want   Outcome    // what Release says of it after a List
}{
	{"a new file, made while the old one is still there, so that it is another inode", func(t *testing.T, path, aside string) {
		write(t, aside, "new\r\neth0")
		move(t, aside, path)
	}, Replaced, Changed},
	{"a new file for the same owner", func(t *testing.T, path, aside string) {
		write(t, aside, "abc\r\neth0")
		move(t, aside, path)
	}, Replaced, Changed},
	{"nothing", func(t *testing.T, path, _ string) {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}, Vanished, Gone},
	{"a link to the very file that was seen", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, aside, path)
	}, Replaced, Changed},
	{"a link that leads to itself", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, path, path)
	}, Replaced, Changed},
	{"a link that leads nowhere", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		symlink(t, "/missing", path)
	}, Replaced, Changed},
	{"a pipe", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		node(t, path, syscall.S_IFIFO)
	}, Replaced, Changed},
	{"a socket", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		node(t, path, syscall.S_IFSOCK)
	}, Replaced, Changed},
	{"a folder", func(t *testing.T, path, aside string) {
		move(t, path, aside)
		mkdir(t, path)
	}, Replaced, Changed},
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

// changeTime does something to a file until its change time has moved: where
// the kernel counts that in ticks, two changes may have one time.
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
	until(t, "the change time of a file moves", func() bool {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		return changed() != before
	})
}

// TestReadOwnersOfAnotherFile: what was put in a reservation's place since the
// Scan is not mistaken for it, not followed, and blocks nothing.
func TestReadOwnersOfAnotherFile(t *testing.T) {
	for _, row := range swaps {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		rs := scan(t, s)
		row.swap(t, at(s, "10.0.0.2"), filepath.Join(s.DataDir(), "aside"))
		within(t, row.reason, func() {
			failures, err := s.ReadOwners(t.Context(), rs, all, nil)
			if len(failures) != 0 || err != nil {
				t.Errorf("ReadOwners: %v, %v: %s", failures, err, row.reason)
			}
		})
		if diff := cmp.Diff([]OwnerState{Owned, row.read, Owned}, states(rs)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if r := rs[1]; r.Owner != Owned && (r.ContainerID != "" || r.IfName != "") {
			t.Errorf("%v, and still of %q, %q: %s", r.Owner, r.ContainerID, r.IfName, row.reason)
		}
	}
}

// TestHazard09AnotherFile: what was put in a reservation's place since the List
// is kept (R6, R7), also when that happens while Release is at work, right
// before its turn, and whether the owner is read again or not.
func TestHazard09AnotherFile(t *testing.T) {
	for variant := range 4 {
		during, settled := variant%2 == 1, variant/2 == 1
		for _, row := range swaps {
			s := newStore(t)
			reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
			rs := list(t, s)
			for i := range rs {
				rs[i].settled = settled
			}
			aside := filepath.Join(s.DataDir(), "aside")
			var before map[string]string
			swap := func() {
				row.swap(t, at(s, "10.0.0.2"), aside)
				before = tree(t, s.DataDir())
			}
			ctx := hookContext{Context: t.Context()}
			if during {
				asked := 0
				ctx.err = func() error {
					if asked++; asked == 2 {
						swap()
					}
					return nil
				}
			} else {
				swap()
			}
			within(t, row.reason, func() {
				done, err := s.Release(ctx, rs...)
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
					delete(m, filepath.Join(s.Network(), name))
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("it was touched: %s (-before +after):\n%s", row.reason, diff)
			}
		}
	}
}

// TestListLeavesOut: what goes away or is replaced while List reads is left
// out, without an error.
func TestListLeavesOut(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	asked := 0
	rs, err := s.List(hookContext{Context: t.Context(), err: func() error {
		if asked++; asked == 2 { // the names are read
			aside := filepath.Join(s.DataDir(), "aside")
			write(t, aside, "new\r\neth0")
			move(t, aside, at(s, "10.0.0.1"))
			if err := os.Remove(at(s, "10.0.0.3")); err != nil {
				t.Error(err)
			}
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.4"}, addresses(rs)); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
}

// TestListTellsWhatItCouldNotRead: a file that can't be opened hides no other,
// and is no candidate.
func TestListTellsWhatItCouldNotRead(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")

	// Let the process have one more descriptor: the folder's.
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	free, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Close(free); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(free) + 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	rs, err := s.List(t.Context())
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}

	ip := netip.MustParseAddr
	want := []Reservation{
		{IP: ip("10.0.0.1"), Owner: Unreadable}, {IP: ip("10.0.0.2"), Owner: Unreadable}, {IP: ip("10.0.0.3"), Owner: Unreadable},
	}
	if diff := cmp.Diff(want, rs, equal); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	if !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("List: %v, want %v", err, syscall.EMFILE)
	}
	for _, r := range want {
		if !strings.Contains(err.Error(), s.path(&r)) {
			t.Errorf("%q does not name %s", err, s.path(&r))
		}
	}
	done, err := s.Release(t.Context(), rs...)
	if diff := cmp.Diff([]Outcome{Failed, Failed, Failed}, done.Outcomes); diff != "" || err == nil {
		t.Errorf("Release of what could not be read: %v (-want +got):\n%s", err, diff)
	}
	if got := left(t, s); len(got) != 3 {
		t.Errorf("left are %v, want all", got)
	}
}

// TestLook: what look opens is a regular file of the folder, whatever the
// directory said before. The callers' comparison of inodes would catch most of
// the rest, but an inode's number is used again.
func TestLook(t *testing.T) {
	s := newStore(t)
	write(t, at(s, "10.0.0.1"), "content")
	symlink(t, "10.0.0.1", at(s, "10.0.0.2"))
	symlink(t, "/dev/null", at(s, "10.0.0.3"))
	symlink(t, "/missing", at(s, "10.0.0.4"))
	node(t, at(s, "10.0.0.5"), syscall.S_IFIFO)
	node(t, at(s, "10.0.0.6"), syscall.S_IFSOCK)
	mkdir(t, at(s, "10.0.0.7"))
	d, err := openDir(s.dir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
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
		{"a folder", "10.0.0.7", errNotRegular},
		{"nothing", "10.0.0.8", fs.ErrNotExist},
	} {
		within(t, row.reason, func() {
			if _, _, err := d.look(netip.MustParseAddr(row.ip), make([]byte, 10)); !errors.Is(err, row.want) {
				t.Errorf("look: %v, want %v: %s", err, row.want, row.reason)
			}
		})
	}

	got, content, err := d.look(netip.MustParseAddr("10.0.0.1"), make([]byte, 4))
	if err != nil || string(content) != "cont" {
		t.Errorf("look: %q, %v, want no more than fits", content, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(at(s, "10.0.0.1"), &st); err != nil {
		t.Fatal(err)
	}
	want := seen{ino: st.Ino, changed: st.Ctim.Nano(), size: 7, modified: time.Unix(st.Mtim.Unix())}
	if got != want {
		t.Errorf("look: %+v, want %+v", got, want)
	}
}

// TestFolderIsHeldOpen: once a release has begun, it works in the folder that it
// opened, also when another one gets its name. What that one holds is another
// network's, or newer.
func TestFolderIsHeldOpen(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	asked := 0
	done, err := s.Release(hookContext{Context: t.Context(), err: func() error {
		if asked++; asked == 2 {
			move(t, s.dir(), s.dir()+".old")
			if err := os.Mkdir(s.dir(), 0o755); err != nil {
				t.Error(err)
			}
			// The very file under the new folder's name, too.
			if err := os.Link(filepath.Join(s.dir()+".old", "10.0.0.2"), at(s, "10.0.0.2")); err != nil {
				t.Error(err)
			}
		}
		return nil
	}}, rs...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Outcome{Released, Changed}, done.Outcomes); diff != "" {
		t.Errorf("Release (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.2"}, left(t, s)); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

// TestNetworksFollowsNoLink: a link to a folder is no network.
func TestNetworksFollowsNoLink(t *testing.T) {
	s := newStore(t)
	symlink(t, s.dir(), filepath.Join(s.DataDir(), "link"))
	node(t, filepath.Join(s.DataDir(), "pipe"), syscall.S_IFIFO)
	got, err := Networks(s.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"podnet"}, got); diff != "" {
		t.Errorf("Networks (-want +got):\n%s", diff)
	}
}

// TestNoDescriptorIsLeft: whichever way a call ends, it closes what it opened.
func TestNoDescriptorIsLeft(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	node(t, at(s, "10.0.0.2"), syscall.S_IFIFO)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc here")
		}
		return len(entries)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	work := func() {
		reserve(t, s, "10.0.0.1")
		rs := list(t, s)
		_, _ = s.ReadOwners(ended, scan(t, s), all, nil)
		_, _ = s.ReadOwners(t.Context(), []Reservation{{IP: netip.MustParseAddr("10.0.0.2")}}, all, nil)
		within(t, "a release", func() {
			_, _ = s.Release(ended, rs...)
			_, _ = s.Release(t.Context(), append(rs, rs[0], Reservation{IP: netip.MustParseAddr("10.0.0.2"), Owner: Owned})...)
		})
		until(t, "the abandoned wait for the lock has ended", func() bool { return len(s.turn) == 0 })
	}
	work()
	before := open()
	for range 20 {
		work()
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors are open, before it was %d", after, before)
	}
}

// TestSettled: a change time counts for the owner only where a later change must
// have moved it.
func TestSettled(t *testing.T) {
	now := time.Unix(1_700_000_000, 500_000_000)
	for _, row := range []struct {
		reason  string
		changed time.Time
		want    bool
	}{
		{"long ago", now.Add(-time.Hour), true},
		{"longer ago than any tick", now.Add(-101 * time.Millisecond), true},
		{"maybe in this very tick", now.Add(-100 * time.Millisecond), false},
		{"just now", now, false},
		{"in the future: the clock was stepped back", now.Add(time.Hour), false},
		{"a whole second: the file system may not know better", now.Add(-time.Hour - 500*time.Millisecond), false},
	} {
		if got := (seen{changed: row.changed.UnixNano()}).settled(now); got != row.want {
			t.Errorf("settled: %t, want %t: %s", got, row.want, row.reason)
		}
	}
}

// TestSeenInRemoved: what is open and has no name any more is gone, not changed.
func TestSeenInRemoved(t *testing.T) {
	if _, err := seenIn(&syscall.Stat_t{Mode: syscall.S_IFREG}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("seenIn: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestFilesSettle: what has been left alone is settled when it is read, and not
// what was just made. It is enough to look at such a file's status.
func TestFilesSettle(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	until(t, "the file is settled", func() bool { return list(t, s)[0].settled })
	d, err := openDir(s.dir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	r := list(t, s)[0]
	for _, row := range []struct {
		reason string
		change func(*testing.T)
		want   bool
		err    error
	}{
		{"nothing changed", func(*testing.T) {}, true, nil},
		{"an owner of the same length", func(t *testing.T) { write(t, at(s, "10.0.0.1"), "xyz\r\neth0") }, false, nil},
		{"a link in its place", func(t *testing.T) {
			move(t, at(s, "10.0.0.1"), filepath.Join(s.DataDir(), "aside"))
			symlink(t, filepath.Join(s.DataDir(), "aside"), at(s, "10.0.0.1"))
		}, false, errNotRegular},
		{"nothing in its place", func(t *testing.T) {
			if err := os.Remove(at(s, "10.0.0.1")); err != nil {
				t.Error(err)
			}
		}, false, fs.ErrNotExist},
	} {
		row.change(t)
		if same, err := d.holds(&r, nil); same != row.want || !errors.Is(err, row.err) {
			t.Errorf("holds: %t, %v, want %t, %v: %s", same, err, row.want, row.err, row.reason)
		}
	}
	until(t, "a file is read right after it was made, and is not settled", func() bool {
		_ = os.Remove(at(s, "10.0.0.2"))
		reserve(t, s, "10.0.0.2")
		return !list(t, s)[0].settled
	})
}
