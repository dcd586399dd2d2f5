// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// inNamespaces runs this test in a mount and a network namespace of its own, and
// returns a directory for it there; none is that it ran already.
func inNamespaces(t *testing.T) (dir string) {
	t.Helper()
	if dir = os.Getenv(childEnv); dir == "" {
		runInNamespaces(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWNET)
		return ""
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		skipLoudly(t, "mounting", err)
	}
	return dir
}

// mountNS mounts a new namespace at path, as `ip netns add` and runtimes do.
func mountNS(t testing.TB, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = f.Close()
	}
	if err = errors.Join(err, syscall.Unshare(syscall.CLONE_NEWNET),
		syscall.Mount("/proc/thread-self/ns/net", path, "", syscall.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
}

// keep has the inode of a namespace not given to another one.
func holdInode(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
}

func mountFS(t testing.TB, path, kind string) {
	t.Helper()
	if err := syscall.Mount(kind, path, kind, 0, ""); err != nil {
		t.Fatal(err)
	}
}

// unmount is umount -l.
func unmount(t testing.TB, path string) {
	t.Helper()
	if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}

// end is what a runtime does when a container ends.
func endContainer(t testing.TB, path string) {
	t.Helper()
	unmount(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// newDir makes a directory for namespaces. What is mounted in it ends with the
// process.
func newDir(t testing.TB, in string) string {
	t.Helper()
	dir, err := os.MkdirTemp(in, "netns") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// attachedTo is an attachment of a container with that namespace.
func attachedTo(containerID, ip, path string) Entry {
	e := entry(containerID, ip)
	e.NetNS.Path = path
	return e
}

// TestNetNS: an entry is dead when the namespace that was mounted at its path is
// gone, or is another one by now; and only then.
func TestNetNS(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	mount := func(path string) { mountNS(t, path) }
	for _, row := range []struct {
		reason string
		before func(path string) // what is there when it is recorded
		then   func(path string)
		dead   bool
	}{
		{"it is there still", mount, func(string) {}, false},
		{"it is gone", mount, func(path string) { endContainer(t, path) }, true},
		{"another one has its path", mount, func(path string) { holdInode(t, path); unmount(t, path); mount(path) }, true},
		{"its path holds no namespace: its mount may not be passed on to us", mount, func(path string) { unmount(t, path) }, false},
		{"its path is a link now", mount, func(path string) {
			endContainer(t, path)
			if err := os.Symlink("/proc/self/ns/net", path); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"a path that was no namespace", func(path string) { write(t, path, "") }, func(path string) { _ = os.Remove(path) }, false},
		{"a path that was nothing", func(string) {}, func(string) {}, false},
		{"a link into /proc, whose process may end before", func(path string) {
			if err := os.Symlink("/proc/thread-self/ns/net", path); err != nil {
				t.Fatal(err)
			}
		}, func(path string) { _ = os.Remove(path) }, false},
	} {
		nsPath := filepath.Join(newDir(t, dir), "ns")
		path := filepath.Join(t.TempDir(), "attachments")
		row.before(nsPath)
		c := begun(t, path, served, attachedTo("a", "10.0.0.2", nsPath))
		recordedNS := c.Entries()[0].NetNS
		if row.then(nsPath); row.dead && recordedNS.Present() {
			t.Errorf("%s: it is present still", row.reason)
		}
		if err := c.Add(entry("b", "10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		for who, pods := range map[string][]string{"writer": ids(t, c), "reader": ids(t, reader(t, path, served))} {
			if alive := slices.Contains(pods, "a"); alive == row.dead || !slices.Contains(pods, "b") {
				t.Errorf("%s: the %s sees %v (recorded: %+v)", row.reason, who, pods, recordedNS)
			}
		}
		blockWrites(t, path)
		if gone, err := c.Prune(t.Context()); (err != nil) != row.dead || gone != nil {
			t.Errorf("%s: pruned %v from what can't be written, %v", row.reason, gone, err)
		}
		if err := os.RemoveAll(path + ".tmp"); err != nil {
			t.Fatal(err)
		}
		gone, err := c.Prune(t.Context())
		if err != nil || (len(gone) == 1) != row.dead {
			t.Errorf("%s: pruned %v, %v", row.reason, gone, err)
		}
		if r, err := decode(read(t, path)); err != nil || (len(r.Entries) == 1) != row.dead {
			t.Errorf("%s: on the disk is %v, %v", row.reason, r, err)
		}
		if row.dead {
			if err := c.Remove(key("b")); err != nil || len(c.Entries()) != 0 {
				t.Errorf("%s: %v, %v", row.reason, err, c.Entries())
			}
		}
	}
}

// All recorded namespaces vanish at once. Their containers have ended only if that
// is seen in the very directory in which they were recorded; whatever else is at its
// path says nothing of them.
//
// Guard: [directories.check] compares the [Directory] of each, [directory.readNetNS] is of that
// one, and [goneOf] refuses where nothing that was recorded is seen.
func TestHazard50AllVanishAtOnce(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	if path := os.Getenv(elsewhereEnv); path != "" { // another mount namespace
		unmount(t, path)
		_, err := reader(t, filepath.Join(dir, "attachments"), served).Pods(t.Context())
		fmt.Println("ELSEWHERE:", errors.Is(err, podsource.ErrIncomplete), err)
		return
	}
	both := []string{"a", "b"}
	for _, row := range []struct {
		reason string
		fs     string // what the directory is on; empty: on its parent's
		then   func(sub string)
		live   []string // nil: it is refused
	}{
		{"their files are gone from it: they ended", "tmpfs", func(sub string) { endContainer(t, sub+"/a"); endContainer(t, sub+"/b") }, []string{}},
		{"... also in one that has no file system of its own", "", func(sub string) { endContainer(t, sub+"/a"); endContainer(t, sub+"/b") }, []string{}},
		{"the hostPath is lost: another directory is mounted there", "tmpfs", func(sub string) { mountFS(t, sub, "tmpfs") }, nil},
		{"it was unmounted lazily", "tmpfs", func(sub string) { unmount(t, sub) }, nil},
		{"their files are gone, and no ID of its file system shows that it is the one", "ramfs", func(sub string) { endContainer(t, sub+"/a"); endContainer(t, sub+"/b") }, nil},
		{"there is none any more", "", func(sub string) {
			endContainer(t, sub+"/a")
			endContainer(t, sub+"/b")
			if err := os.Remove(sub); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"another one was made under its name", "", func(sub string) {
			if err := errors.Join(os.Rename(sub, sub+".old"), os.Mkdir(sub, 0o755)); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"a file is in its place", "", func(sub string) {
			if err := os.Rename(sub, sub+".old"); err != nil {
				t.Fatal(err)
			}
			write(t, sub, "")
		}, nil},
		{"one is seen, so the other one's file is gone from the right directory", "tmpfs", func(sub string) { endContainer(t, sub+"/a") }, []string{"b"}},
		{"... whose file system has no ID", "ramfs", func(sub string) { endContainer(t, sub+"/a") }, []string{"b"}},
		{"the directory is there, and nothing is mounted at their paths", "tmpfs", func(sub string) { unmount(t, sub+"/a"); unmount(t, sub+"/b") }, both},
		{"... whose file system has no ID", "ramfs", func(sub string) { unmount(t, sub+"/a"); unmount(t, sub+"/b") }, nil},
		{"... and others are mounted there", "ramfs", func(sub string) {
			for _, path := range []string{sub + "/a", sub + "/b"} {
				holdInode(t, path)
				unmount(t, path)
				mountNS(t, path)
			}
		}, nil},
	} {
		sub := newDir(t, dir)
		if row.fs != "" {
			mountFS(t, sub, row.fs)
		}
		n := newNode(t, t.TempDir())
		path := filepath.Join(t.TempDir(), "attachments")
		c := begun(t, path, served)
		for i, id := range both {
			ip := fmt.Sprintf("10.0.0.%d", i+2)
			mountNS(t, filepath.Join(sub, id))
			if err := c.Add(attachedTo(id, ip, filepath.Join(sub, id))); err != nil {
				t.Fatal(err)
			}
			n.reserve(ip, id)
		}
		n.reserve("10.0.0.4", "leaked")
		row.then(sub)
		for who, source := range map[string]podsource.Source{"writer": c, "reader": reader(t, path, served)} {
			answer, err := source.Pods(t.Context())
			if row.live == nil {
				if !errors.Is(err, podsource.ErrIncomplete) || errors.Is(err, podsource.ErrNotHere) || !strings.Contains(err.Error(), "hostPath") || !strings.Contains(err.Error(), sub) {
					t.Errorf("%s: the %s says %v, %v", row.reason, who, answer.Pods, err)
				}
				continue
			}
			if diff := cmp.Diff(row.live, append([]string{}, ids(t, source)...)); err != nil || diff != "" {
				t.Errorf("%s: the %s: %v (-want +got):\n%s", row.reason, who, err, diff)
			}
		}
		want := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}
		if row.live != nil {
			want = nil
			for _, id := range row.live {
				want = append(want, fmt.Sprintf("10.0.0.%d", id[0]-'a'+2))
			}
		}
		if err := n.pass(c, gc.Options{}); (err != nil) != (row.live == nil) {
			t.Errorf("%s: the pass: %v", row.reason, err)
		}
		if diff := cmp.Diff(want, n.left()); diff != "" {
			t.Errorf("%s: reserved (-want +got):\n%s", row.reason, diff)
		}
		gone, err := c.Prune(t.Context())
		if (err != nil) != (row.live == nil) || err == nil && len(gone)+len(row.live) != 2 || err != nil && len(c.Entries()) != 2 {
			t.Errorf("%s: pruned %v, %v", row.reason, gone, err)
		}
	}

	// The agent's mount namespace lacks what the node's has.
	sub := newDir(t, dir)
	mountFS(t, sub, "tmpfs")
	mountNS(t, sub+"/a")
	begun(t, filepath.Join(dir, "attachments"), served, attachedTo("a", "10.0.0.2", sub+"/a"))
	cmd := child(t, dir)
	cmd.Env = append(cmd.Env, elsewhereEnv+"="+sub)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "ELSEWHERE: true") {
		t.Errorf("in another mount namespace: %v\n%s", err, out)
	}
	if got := ids(t, reader(t, filepath.Join(dir, "attachments"), served)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("here: %v", got)
	}
}

// elsewhereEnv names a directory to unmount in a mount namespace of its own.
const elsewhereEnv = "HOSTLOCAL_GC_TEST_ELSEWHERE"

// The directory's file system was unmounted lazily and another one mounted, which was
// given its device number, and its root the inode number: it is another one.
//
// Guard: [Directory.FS] is the ID of a file system, which no other one has.
func TestHazard50AnotherFileSystemGotTheNumbers(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	for range 10 { // somebody else on this machine may be given them
		sub := newDir(t, dir)
		mountFS(t, sub, "tmpfs")
		mountNS(t, sub+"/a")
		c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, attachedTo("a", "10.0.0.2", sub+"/a"))
		was := c.Entries()[0].NetNS.Dir
		unmount(t, sub)
		for range 100 { // the lowest that is free is next
			mountFS(t, sub, "tmpfs")
			d := openDirectory(sub + "/a")
			d.close()
			if d.Dev != was.Dev || d.Inode != was.Inode {
				continue
			}
			if answer, err := c.Pods(t.Context()); !errors.Is(err, podsource.ErrIncomplete) {
				t.Errorf("it was %+v and is %+v: %+v, %v", was, d.Directory, answer.Pods, err)
			}
			return
		}
	}
	t.Error("no file system was given the numbers of the one before it")
}

// Of two directories one is not seen here. Those in the other one show that the view
// is the node's, so it is no error, and those that are not seen count as live.
//
// Guard: [goneOf] lets go of none in a directory that was not [directories.confirmed].
func TestHazard50OneOfTwoDirectoriesIsNotSeen(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	seen, lost := newDir(t, dir), newDir(t, dir)
	mountFS(t, lost, "ramfs")
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served)
	for i, path := range []string{seen + "/live", seen + "/ended", lost + "/c", lost + "/d"} {
		mountNS(t, path)
		if err := c.Add(attachedTo(filepath.Base(path), fmt.Sprintf("10.0.0.%d", i+2), path)); err != nil {
			t.Fatal(err)
		}
	}
	endContainer(t, seen+"/ended")
	for _, step := range []struct {
		reason string
		do     func()
	}{
		{"their files are gone, and nothing shows that this is the directory", func() { endContainer(t, lost+"/c"); endContainer(t, lost+"/d") }},
		{"it is unmounted", func() { unmount(t, lost) }},
	} {
		step.do()
		if diff := cmp.Diff([]string{"c", "d", "live"}, ids(t, c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.reason, diff)
		}
	}
	if gone, err := c.Prune(t.Context()); err != nil || len(gone) != 1 || gone[0].ContainerID != "ended" {
		t.Errorf("pruned: %v, %v", gone, err)
	}
}

// Another namespace is mounted at the path and has the inode number of the one that
// ended there. Its ID tells, where the kernel has them; else it counts as live.
//
// Guard: [NetNS.is] compares the [NetNS.ID], which [namespaceID] asks the kernel for.
func TestHazard50InodeNumberIsUsedAgain(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	nsPath := filepath.Join(newDir(t, dir), "blue")
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served)
	mountNS(t, nsPath)
	var was NetNS
	// The kernel gives the lowest number that is free, some moments after the end. On
	// a busy machine somebody else may get it: then anew.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for tries := 0; tries == 0 || !isInode(nsPath, was.Inode); tries++ {
		if tries%10 == 0 {
			if err := c.Add(attachedTo("a", "10.0.0.2", nsPath)); err != nil {
				t.Fatal(err)
			}
			if was = c.Entries()[0].NetNS; !was.Present() {
				t.Errorf("%+v is not present", was)
			}
		}
		if tries == 1000 {
			t.Fatal("no namespace got the inode number of the one before it")
		}
		endContainer(t, nsPath)
		<-again.C
		mountNS(t, nsPath)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(read(t, "/proc/sys/kernel/osrelease")), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if hasIDs := major > 6 || major == 6 && minor >= 18; hasIDs != (was.ID != 0) {
		t.Errorf("Linux %d.%d: the namespace has the ID %d", major, minor, was.ID)
	}
	want := []string{"a"}
	if was.ID != 0 {
		want = nil
	}
	if diff := cmp.Diff(want, ids(t, c)); diff != "" || was.Present() != (was.ID == 0) {
		t.Errorf("%+v is present: %t (-want +got):\n%s", was, was.Present(), diff)
	}
	// As an older kernel recorded it.
	e := c.Entries()[0]
	e.NetNS.ID = 0
	if err := c.Add(e); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a"}, ids(t, c)); diff != "" {
		t.Errorf("without an ID (-want +got):\n%s", diff)
	}
	if got := c.Entries()[0].NetNS; got != e.NetNS {
		t.Errorf("given was %+v, recorded is %+v", e.NetNS, got)
	}
	unknown := NetNS{Path: nsPath, Dir: e.NetNS.Dir}
	if gone, err := goneOf(t.Context(), []NetNS{unknown}); err != nil || gone[0] {
		t.Errorf("one that was not seen when it was recorded is gone: %t, %v", gone, err)
	}
	t.Chdir(filepath.Dir(nsPath))
	if relative := (NetNS{Path: filepath.Base(nsPath)}); relative.identified() != relative {
		t.Error("looked for a path that is another one elsewhere")
	}
}

// isInode reports whether what is mounted at path has an inode number.
func isInode(path string, inode uint64) bool {
	now, err := readNetNS(path)
	return err == nil && now.Inode == inode
}

// TestDirectoriesAreClosed: looking for namespaces leaves no descriptor open, nor does a
// record that was written, or could not be opened.
func TestDirectoriesAreClosed(t *testing.T) {
	base := t.TempDir()
	var all []NetNS
	for _, name := range []string{"a", "b"} {
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, ns := range []string{"1", "2"} {
			all = append(all, NetNS{Path: filepath.Join(dir, ns), Inode: 1, Dir: Directory{Inode: 1}})
		}
	}
	path := filepath.Join(base, "attachments")
	c := begun(t, path, served)
	if _, err := Open(path, served); !errors.Is(err, ErrLocked) {
		t.Errorf("got %v, want %v", err, ErrLocked)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := goneOf(t.Context(), all); !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("got %v, want %v", err, podsource.ErrIncomplete)
	}
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range descriptors {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, base) {
			t.Errorf("%s is open still", to)
		}
	}
}
