// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"hash/maphash"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// later lets the clocks of a store go on.
func later(s *Store, wall, mono time.Duration) {
	now := s.now
	s.now = func() (time.Duration, time.Duration) {
		w, lead := now()
		return w + wall, lead + wall - mono
	}
}

// TestSettled: a later List, and Release, read no owner of a file whose identity proves it, and do
// read that of any other. The test changes the owner in place, and then what was listed, so that
// the identity does not show it: as if the kernel's clock had not ticked, or had been set back to
// the same time, or the file had been stamped before it was written. (R6)
func TestSettled(t *testing.T) {
	const ms = time.Millisecond
	for _, row := range []struct {
		reason, content string
		age             time.Duration // since the change, when it is listed
		before, after   time.Duration // steps of the clock before it is listed, and after that
		settled         bool
	}{
		{"changed just before the margin", "abc\r\neth0", 3*time.Second + 1, 0, 0, true},
		{"... and listed when the clock had been slewed", "abc\r\neth0", 3*time.Second + 100*ms + 1, -100 * ms, 200 * ms, true},
		{"changed within the margin", "abc\r\neth0", 3 * time.Second, 0, 0, false},
		{"the clock is set back between two passes", "abc\r\neth0", time.Hour, 0, -101 * ms, false},
		{"... or forward, perhaps back from an earlier step", "abc\r\neth0", time.Hour, 0, 101 * ms, false},
		{"... or just before the first: a change may be newer than it seems", "abc\r\neth0", time.Hour, 101 * ms, 0, false},
		{"an ADD stopped between create and write", "", time.Hour, 0, 0, false},
		{"a file that host-local did not write", "one\ntwo\nthree", time.Hour, 0, 0, false},
	} {
		s := newStore(t)
		write(t, at(s, "10.0.0.1"), row.content)
		changed := time.Duration(list(t, s)[0].changed)
		s.now = func() (wall, lead time.Duration) { return changed, changed }
		s.last.Store(&memory{lead: changed, seed: maphash.MakeSeed()})
		later(s, row.age+row.before, row.age)
		rs := list(t, s)
		later(s, time.Hour+row.after, time.Hour)

		write(t, at(s, "10.0.0.1"), "xyz\r\neth0")
		must(t, openedDir(t, s).status(&rs[0])) // which the store remembers
		want, outcome := files(list(t, New(s.DataDir()))), Changed
		if row.settled {
			want, outcome = []string{"podnet 10.0.0.1"}, Released
		}
		diff(t, row.reason, want, files(list(t, s)))
		must(t, release(t.Context(), t, row.reason, s, rs, outcome))
	}
	for reason, r := range map[string]Reservation{
		"": {ino: 1, changed: 1e9 + 1}, "no inode": {changed: 1e9 + 1}, "a change time without nanoseconds": {ino: 1, changed: 1e9},
	} {
		if r.setOwner("abc", &memory{settledBefore: 5e9, seed: maphash.MakeSeed()}); (r.settled == 0) != (reason != "") {
			t.Errorf("%s: %+v", reason, r)
		}
	}
	var a, b Reservation
	if err := a.setStatus(&unix.Stat_t{Dev: 1, Mode: unix.S_IFREG}, nil); err != nil || a.isFile(&b) {
		t.Error("a file of another file system is the same")
	}
	s := newStore(t, "10.0.0.1")
	list(t, s)
	later(s, -time.Minute, 0)
	s.remembered()
	if later(s, time.Minute, 0); len(s.last.Load().files) > 0 {
		t.Error("a step that was seen is forgotten as it is undone")
	}
}

// TestSettledIsNotRead: nothing but the status of a settled file is asked. A sibling whose owner
// changed in place is read, in a network that comes later, and one whose owner a caller has changed.
func TestSettledIsNotRead(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2", "fd00::1")
	addNetwork(t, s, "z", "10.0.0.1", "10.0.0.2")
	later(s, time.Hour, time.Hour)
	rs := list(t, s)
	rs[1].ContainerID = "by-a-caller"
	must(t, os.Remove(at(s, "10.0.0.1")))
	write(t, s.filePath(&rs[3]), "xyz\r\neth0")
	refusing(t, func() {
		diff(t, "List", []string{"podnet 10.0.0.2 unreadable", "podnet fd00::1", "z 10.0.0.1 unreadable", "z 10.0.0.2"}, files(list(t, s)))
		err := release(t.Context(), t, "Release", s, rs, Gone, Failed, Released, Changed, Released)
		wantError(t, "Release", err, syscall.EIO, at(s, "10.0.0.2"))
	}, unix.SYS_READ)
	diff(t, "List", []string{"podnet 10.0.0.2", "z 10.0.0.1 xyz"}, files(list(t, s)))
	must(t, release(t.Context(), t, "Release", s, rs[1:2], Changed))
}

// TestSettledCopyUp: overlayfs copies a file of a lower layer up before it is written. The file is
// another one then, and is read.
func TestSettledCopyUp(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("SKIPPED, NOT TESTED: overlayfs; only root can mount it")
	}
	s, layers := newStore(t), t.TempDir()
	onThread(t, func() error {
		return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("layers", layers, "tmpfs", 0, "")) // overlayfs may not lie on another one
	}, func() {
		lower, upper, work := layers+"/lower", layers+"/upper", layers+"/work"
		must(t, os.CopyFS(lower, os.DirFS(s.DataDir())), os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755))
		write(t, lower+"/podnet/10.0.0.1", "abc\r\neth0")
		write(t, lower+"/podnet/10.0.0.2", "abc\r\neth0")
		must(t, unix.Mount("overlay", s.DataDir(), "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work))
		later(s, time.Hour, time.Hour)
		rs := list(t, s)
		write(t, at(s, "10.0.0.2"), "xyz\r\neth0")
		diff(t, "List", []string{"podnet 10.0.0.1", "podnet 10.0.0.2 xyz"}, files(list(t, s)))
		must(t, release(t.Context(), t, "Release", s, rs, Released, Changed))
	})
}
