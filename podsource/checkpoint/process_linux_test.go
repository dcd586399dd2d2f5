// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// childEnv makes a test a child of itself, which works in the directory named.
const childEnv = "HOSTLOCAL_GC_TEST_RECORD_DIR"

// child is a command that runs this very test in a process of its own.
func child(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	return cmd
}

// apart runs this test in namespaces of its own, which end with it.
func apart(t *testing.T, flags uintptr) {
	t.Helper()
	cmd := child(t, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	runtime.LockOSThread() // the child ends with the thread that started it
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		skipLoudly(t, "a process in namespaces of its own", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("\n%s", out)
	}
	t.Logf("\n%s", out)
}

// TestTwoWriters: while a process has the record open, another Open fails at
// once; readers are free, and the writer's death lets go of it.
func TestTwoWriters(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		if _, err := Open(filepath.Join(dir, "attachments"), served); err != nil {
			t.Fatal(err)
		}
		fmt.Println("OPEN")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or its parent died
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "attachments")
	first := begun(t, path, served, entry("a", "10.0.0.2"))
	refused := func(whose string) {
		t.Helper()
		if c, err := Open(path, served); c != nil || !errors.Is(err, ErrLocked) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("while %s writes: %v, want %v", whose, err, ErrLocked)
		}
		if got, err := Read(path, served).Pods(t.Context()); err != nil || len(got.Pods) != 1 {
			t.Errorf("a reader while %s writes: %v, %v", whose, got, err)
		}
	}
	refused("this process")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := child(t, dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan() && lines.Text() != "OPEN"; {
	}
	refused("another process")
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if diff := cmp.Diff([]string{"10.0.0.2"}, recorded(opened(t, path, served))); diff != "" {
		t.Errorf("after its death (-want +got):\n%s", diff)
	}
}

// TestDiskFull: with no room left, Add and Remove are errors and the old state
// stands, in memory and on the disk. With room again both go on.
func TestDiskFull(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		apart(t, syscall.CLONE_NEWNS)
		return
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		skipLoudly(t, "mounting", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "attachments")
	c := begun(t, path, served)
	n := 0
	var err error
	for ; err == nil && n < 5000; n++ {
		err = c.Add(entry(fmt.Sprintf("a%04d", n), "10.0.0.2"))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d attachments: %v, want %v", n, err, syscall.ENOSPC)
	}
	n-- // of which the last one failed
	// Whatever size the failure came at: now there is no room for a byte.
	filler, err := os.Create(filepath.Join(dir, "filler"))
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	before := string(read(t, path))
	_, pruneErr := c.Prune() // has nothing to do
	for what, err := range map[string]error{
		"add": c.Add(entry("b", "10.0.0.3")), "add anew": c.Add(entry("a0001", "10.0.0.3")), "remove": c.Remove(key("a0000")),
	} {
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v, want %v", what, err, syscall.ENOSPC)
		}
	}
	if pruneErr != nil || c.Remove(key("b")) != nil {
		t.Error("what changes nothing needs room")
	}
	if got := string(read(t, path)); got != before {
		t.Error("the file was changed")
	}
	if diff := cmp.Diff([]string{"filler"}, leftovers(t, path)); diff != "" {
		t.Errorf("in the directory (-want +got):\n%s", diff)
	}
	if e, ok := c.Get(key("a0001")); !ok || e.IPs[0].String() != "10.0.0.2" {
		t.Errorf("in memory is %v, want it as it was", e)
	}
	if got := len(c.Entries()); got != n {
		t.Errorf("%d attachments in memory, want %d", got, n)
	}
	if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Remove(key("a0000")), c.Remove(key("a0001")), c.Add(entry("b", "10.0.0.3")), c.Close()); err != nil {
		t.Error(err)
	}
	if got := len(opened(t, path, served).Entries()); got != n-1 {
		t.Errorf("%d attachments on the disk, want %d", got, n-1)
	}
}

// TestNoBootID: without the kernel's word nothing is known of the record, also
// not that there is none, which would be the fallback's turn.
func TestNoBootID(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		apart(t, syscall.CLONE_NEWNS)
		return
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		skipLoudly(t, "mounting", err)
	}
	if err := syscall.Mount("tmpfs", "/proc/sys", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "attachments")
	_, openErr := Open(path, served)
	_, readErr := Read(path, served).Pods(t.Context())
	for who, err := range map[string]error{"writer": openErr, "reader": readErr} {
		if err == nil || errors.Is(err, podsource.ErrNotHere) || !strings.Contains(err.Error(), "boot ID") {
			t.Errorf("%s: %v, want an error about the boot ID", who, err)
		}
	}
	if err := opened(t, path, ofBoot("1")).Close(); err != nil {
		t.Errorf("told by the caller: %v", err)
	}
}

// TestNetNS: an entry is dead when the namespace that was mounted at its path is
// gone, or is another one by now; and only then.
func TestNetNS(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		apart(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWNET)
		return
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		skipLoudly(t, "mounting", err)
	}
	mount := func(path string) { // a new namespace, as `ip netns add` and runtimes do
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
	unmount := func(path string) {
		t.Helper()
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(path string) { // its inode is not given to another namespace
		t.Helper()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	for _, row := range []struct {
		reason string
		before func(path string) // what is there when it is recorded
		then   func(path string)
		dead   bool
	}{
		{"it is there still", mount, func(string) {}, false},
		{"it is gone", mount, func(path string) { unmount(path); _ = os.Remove(path) }, true},
		{"another one has its path", mount, func(path string) { keep(path); unmount(path); mount(path) }, true},
		{"its path holds no namespace: its mount may not be passed on to us", mount, unmount, false},
		{"its path is a link now", mount, func(path string) {
			unmount(path)
			if err := errors.Join(os.Remove(path), os.Symlink("/proc/self/ns/net", path)); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"the directory is gone, too: it may not be mounted for us", mount, func(path string) {
			unmount(path)
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
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
		sub, err := os.MkdirTemp(dir, "netns") //nolint:usetesting // a mount below it is detached with the process
		if err != nil {
			t.Fatal(err)
		}
		nsPath := filepath.Join(sub, "ns")
		path := filepath.Join(t.TempDir(), "attachments")
		row.before(nsPath)
		e := entry("a", "10.0.0.2")
		e.NetNS.Path = nsPath
		c := begun(t, path, served, e)
		recordedNS := c.Entries()[0].NetNS
		row.then(nsPath)
		if err := c.Add(entry("b", "10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		for who, pods := range map[string][]string{"writer": ids(t, c), "reader": ids(t, Read(path, served))} {
			if alive := slices.Contains(pods, "a"); alive == row.dead || !slices.Contains(pods, "b") {
				t.Errorf("%s: the %s sees %v (recorded: %+v)", row.reason, who, pods, recordedNS)
			}
		}
		gone, err := c.Prune()
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
