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
// returns a directory for it there. It returns "" after the test has run there.
func inNamespaces(t *testing.T) (dir string) {
	t.Helper()
	if dir = os.Getenv(childEnv); dir == "" {
		runInNamespaces(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWNET)
		return ""
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
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

// holdInode keeps the kernel from reusing the inode number of a namespace.
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

// endContainer removes a namespace as a runtime does when a container ends.
func endContainer(t testing.TB, path string) {
	t.Helper()
	unmount(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// newDir makes a directory for namespaces. The mounts in it end with the process.
func newDir(t testing.TB, in string) string {
	t.Helper()
	dir, err := os.MkdirTemp(in, "netns") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// attachedTo is an attachment of a container whose namespace is at path.
func attachedTo(containerID, ip, path string) Entry {
	e := entry(containerID, ip)
	e.NetNS.Path = path
	return e
}

// TestNetNS: an entry has ended only if the namespace at its path is gone, or another
// one is there.
func TestNetNS(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	mount := func(path string) { mountNS(t, path) }
	for _, row := range []struct {
		reason string
		before func(path string) // before it is recorded
		then   func(path string)
		ended  bool
	}{
		{"it is still there", mount, func(string) {}, false},
		{"it is gone", mount, func(path string) { endContainer(t, path) }, true},
		{"another one is at its path", mount, func(path string) { holdInode(t, path); unmount(t, path); mount(path) }, true},
		{"no namespace is at its path: its mount may not be propagated", mount, func(path string) { unmount(t, path) }, false},
		{"its path is a link now", mount, func(path string) {
			endContainer(t, path)
			if err := os.Symlink("/proc/self/ns/net", path); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"its path had no namespace", func(path string) { write(t, path, "") }, func(path string) { _ = os.Remove(path) }, false},
		{"its path did not exist", func(string) {}, func(string) {}, false},
		{"its path was a link into /proc, whose process may end before it", func(path string) {
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
		if row.then(nsPath); row.ended && recordedNS.Present() {
			t.Errorf("%s: it is still present", row.reason)
		}
		if err := c.Add(entry("b", "10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		for who, pods := range map[string][]string{"writer": ids(t, c), "reader": ids(t, reader(t, path, served))} {
			if live := slices.Contains(pods, "a"); live == row.ended || !slices.Contains(pods, "b") {
				t.Errorf("%s: the %s sees %v (recorded: %+v)", row.reason, who, pods, recordedNS)
			}
		}
		blockWrites(t, path)
		if gone, err := c.Prune(t.Context()); (err != nil) != row.ended || gone != nil {
			t.Errorf("%s: the file can't be written: pruned %v, %v", row.reason, gone, err)
		}
		if err := os.RemoveAll(path + ".tmp"); err != nil {
			t.Fatal(err)
		}
		gone, err := c.Prune(t.Context())
		if err != nil || (len(gone) == 1) != row.ended {
			t.Errorf("%s: pruned %v, %v", row.reason, gone, err)
		}
		if r, err := decode(read(t, path)); err != nil || (len(r.Entries) == 1) != row.ended {
			t.Errorf("%s: the file has %v, %v", row.reason, r, err)
		}
		if row.ended {
			if err := c.Remove(key("b")); err != nil || len(c.Entries()) != 0 {
				t.Errorf("%s: %v, %v", row.reason, err, c.Entries())
			}
		}
	}
}

// All recorded namespaces vanish at once. Only in the recorded directory does this show
// that their containers have ended, and not in another directory at its path.
//
// Guard: [directories.check] compares the [Directory] of each, [directory.readNetNS]
// reads the namespace in that directory, and [goneOf] returns an error if it sees neither
// a recorded namespace nor a recorded directory.
func TestHazard50AllVanishAtOnce(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	if path := os.Getenv(elsewhereEnv); path != "" { // in another mount namespace
		unmount(t, path)
		_, err := reader(t, filepath.Join(dir, "attachments"), served).Pods(t.Context())
		fmt.Println("ELSEWHERE:", errors.Is(err, podsource.ErrIncomplete), err)
		return
	}
	both := []string{"a", "b"}
	for _, row := range []struct {
		reason string
		fs     string // the file system of the directory; empty: its parent's
		then   func(sub string)
		live   []string // nil: an error
	}{
		{"their files are gone: they ended", "tmpfs", func(sub string) { endContainer(t, sub+"/a"); endContainer(t, sub+"/b") }, []string{}},
		{"... also in a directory without a file system of its own", "", func(sub string) { endContainer(t, sub+"/a"); endContainer(t, sub+"/b") }, []string{}},
		{"the hostPath is lost: another directory is mounted there", "tmpfs", func(sub string) { mountFS(t, sub, "tmpfs") }, nil},
		{"it was unmounted lazily", "tmpfs", func(sub string) { unmount(t, sub) }, nil},
		{"their files are gone, and its file system has no ID that confirms it", "ramfs", func(sub string) { endContainer(t, sub+"/a"); endContainer(t, sub+"/b") }, nil},
		{"it was removed", "", func(sub string) {
			endContainer(t, sub+"/a")
			endContainer(t, sub+"/b")
			if err := os.Remove(sub); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"another directory was made at its path", "", func(sub string) {
			if err := errors.Join(os.Rename(sub, sub+".old"), os.Mkdir(sub, 0o755)); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"a file is at its path", "", func(sub string) {
			if err := os.Rename(sub, sub+".old"); err != nil {
				t.Fatal(err)
			}
			write(t, sub, "")
		}, nil},
		{"one is seen, so the other one's file is gone from the recorded directory", "tmpfs", func(sub string) { endContainer(t, sub+"/a") }, []string{"b"}},
		{"... whose file system has no ID", "ramfs", func(sub string) { endContainer(t, sub+"/a") }, []string{"b"}},
		{"the directory is confirmed, and nothing is mounted at their paths", "tmpfs", func(sub string) { unmount(t, sub+"/a"); unmount(t, sub+"/b") }, both},
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
					t.Errorf("%s: the %s returns %v, %v", row.reason, who, answer.Pods, err)
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

	// The agent's mount namespace lacks a mount of the node's.
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
		t.Errorf("in this mount namespace: %v", got)
	}
}

// elsewhereEnv names a directory that the child unmounts in its own mount namespace.
const elsewhereEnv = "HOSTLOCAL_GC_TEST_ELSEWHERE"

// The directory's file system was unmounted lazily, and another one was mounted with
// the same device and root inode numbers. It is another directory.
//
// Guard: [Directory.FS] is the ID of the file system, which is unique.
func TestHazard50AnotherFileSystemGotTheNumbers(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	for range 10 { // another process on this machine may get the numbers
		sub := newDir(t, dir)
		mountFS(t, sub, "tmpfs")
		mountNS(t, sub+"/a")
		c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, attachedTo("a", "10.0.0.2", sub+"/a"))
		was := c.Entries()[0].NetNS.Dir
		unmount(t, sub)
		for range 100 { // the kernel uses the lowest free number
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
	t.Error("no file system got the numbers of an earlier one")
}

// One of two directories is not seen. The namespaces in the other one show that this
// process sees the node's mounts, so it is no error, and those that are not seen count
// as live.
//
// Guard: [goneOf] reports no namespace as ended in a directory that is not
// [directories.confirmed].
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
		{"their files are gone, and the directory is not confirmed", func() { endContainer(t, lost+"/c"); endContainer(t, lost+"/d") }},
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

// Another namespace is mounted at the path and has the same inode number. On kernels
// with namespace IDs its ID shows that; on others the entry counts as live.
//
// Guard: [NetNS.is] compares [NetNS.ID], which [namespaceID] reads.
func TestHazard50InodeNumberIsUsedAgain(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	nsPath := filepath.Join(newDir(t, dir), "blue")
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served)
	mountNS(t, nsPath)
	var was NetNS
	// The kernel reuses the lowest free number, some time after the end. If another
	// process gets it, the test tries again with a new one.
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
		t.Errorf("Linux %d.%d: the namespace has ID %d", major, minor, was.ID)
	}
	want := []string{"a"}
	if was.ID != 0 {
		want = nil
	}
	if diff := cmp.Diff(want, ids(t, c)); diff != "" || was.Present() != (was.ID == 0) {
		t.Errorf("%+v is present: %t (-want +got):\n%s", was, was.Present(), diff)
	}
	// As recorded on an older kernel.
	e := c.Entries()[0]
	e.NetNS.ID = 0
	if err := c.Add(e); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a"}, ids(t, c)); diff != "" {
		t.Errorf("without an ID (-want +got):\n%s", diff)
	}
	if got := c.Entries()[0].NetNS; got != e.NetNS {
		t.Errorf("recorded %+v, want %+v", got, e.NetNS)
	}
	unknown := NetNS{Path: nsPath, Dir: e.NetNS.Dir}
	if gone, err := goneOf(t.Context(), []NetNS{unknown}); err != nil || gone[0] {
		t.Errorf("a namespace without identity: gone is %t, %v", gone, err)
	}
	t.Chdir(filepath.Dir(nsPath))
	if relative := (NetNS{Path: filepath.Base(nsPath)}); relative.identified() != relative {
		t.Error("a relative path was looked up")
	}
}

// isInode reports whether the namespace at path has this inode number.
func isInode(path string, inode uint64) bool {
	now, err := readNetNS(path)
	return err == nil && now.Inode == inode
}

// TestDirectoriesAreClosed: no descriptor is left open by checking namespaces, by
// writing a record, or by an Open that failed.
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
			t.Errorf("%s is still open", to)
		}
	}
}
