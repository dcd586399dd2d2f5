// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/refuse"
)

// childEnv is set in the child process of a test. It names the child's directory.
const childEnv = "HOSTLOCAL_GC_TEST_RECORD_DIR"

// child returns a command that runs the same test in a child process.
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

// TestTwoWriters: while a process has the record open, another Open fails at once, in it or in another one, and
// readers succeed. The end of the writer releases the lock.
func TestTwoWriters(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		_, err := Open(filepath.Join(dir, "attachments"), served)
		fmt.Println("opened:", err) // it ends without Close
		return
	}
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served, entry("a", "10.0.0.2"))
	for _, says := range []string{ErrLocked.Error(), "opened: <nil>"} {
		out, err := child(t, filepath.Dir(path)).CombinedOutput()
		if err != nil || !strings.Contains(string(out), says) {
			t.Errorf("another process: %v, want %s:\n%s", err, says, out)
		}
		if got := ids(t, reader(t, path, served)); !slices.Equal(got, []string{"a"}) {
			t.Errorf("a reader sees %v", got)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	opened(t, path, served)
	if c, err := Open(path, served); c != nil || !errors.Is(err, ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in this process: %v, want %v", err, ErrLocked)
	}
}

// The lock file is removed while the record is open. A second writer, of this process or of another one, opens the record; then no
// change of the first one succeeds, and none of the second one is lost. While nobody else has opened it, the first one is told, too.
//
// Guard: [lockDirectory] compares the lock file with the one at its path.
func TestHazard96LockFileIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	first := begun(t, path, served, entry("a", "10.0.0.2"))
	if err := os.Remove(path + ".lock"); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		for what, err := range map[string]error{"add": first.Add(entry("lost", "10.0.0.9")), "remove": first.Remove(key("a"))} {
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path+".lock was removed") {
				t.Errorf("%s: %v, want %v", what, err, ErrLocked)
			}
		}
	}
	refused()
	second := opened(t, path, served)
	if err := second.Add(entry("b", "10.0.0.3")); err != nil {
		t.Fatal(err)
	}
	refused()
	if err := first.Close(); !errors.Is(err, ErrLocked) {
		t.Errorf("closing: %v, want %v", err, ErrLocked)
	}
	if _, err := Open(path, served); !errors.Is(err, ErrLocked) {
		t.Errorf("a third writer: %v, want %v", err, ErrLocked)
	}
	want := []string{"10.0.0.2", "10.0.0.3"}
	if err := second.Close(); err != nil || !slices.Equal(recorded(opened(t, path, served)), want) {
		t.Errorf("want %v in the record; error %v", want, err)
	}
}

// whileLocked calls do while the directory of a record is locked, as during a commit or an Open, and meanwhile when do waits for it.
func whileLocked(t *testing.T, path string, do func() error, meanwhile func()) {
	t.Helper()
	dir, err := locked(filepath.Dir(path), os.O_RDONLY, true)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	waits := fmt.Sprintf("-> FLOCK  ADVISORY  WRITE %d ", os.Getpid())
	for !strings.Contains(string(read(t, "/proc/locks")), waits) {
		if len(done) > 0 {
			t.Error("it does not wait")
			break
		}
	}
	meanwhile()
	if err := errors.Join(dir.Close(), <-done); err != nil {
		t.Error(err)
	}
}

// A second writer, after the lock file was removed, reads what the first one commits just then; and a commit waits for an Open.
//
// Guard: [Open] and [replace] lock the directory.
func TestHazard96OpenDuringACommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served)
	content, err := encode(record{BootID: c.bootID, Written: time.Now(), Entries: []Entry{entry("a", "10.0.0.2")}})
	if err = errors.Join(err, c.Close(), os.Remove(path+".lock")); err != nil {
		t.Fatal(err)
	}
	whileLocked(t, path, func() (err error) { c, err = Open(path, served); return err }, func() { write(t, path, string(content)) })
	whileLocked(t, path, func() error { return c.Add(entry("b", "10.0.0.3")) }, func() {})
	if got := recorded(c); !slices.Equal(got, []string{"10.0.0.2", "10.0.0.3"}) {
		t.Errorf("the second one has %v", got)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// If the kernel refuses a lock, nothing is written.
func TestLockIsRefused(t *testing.T) {
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, entry("a", "10.0.0.2"))
	before := string(read(t, c.path))
	refuse.Call(t, syscall.SYS_FLOCK, func() {
		_, openErr := Open(c.path, served)
		err := c.Add(entry("b", "10.0.0.3"))
		if !errors.Is(err, syscall.EIO) || !errors.Is(openErr, syscall.EIO) || string(read(t, c.path)) != before {
			t.Errorf("Add: %v; Open: %v; or the file was changed", err, openErr)
		}
	})
}

// TestDiskFull: on a full disk Add and Remove return errors, and the state does not
// change, in memory and on the disk. After that both work again.
func TestDiskFull(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "attachments")
	c := begun(t, path, served, entry("a", "10.0.0.2"), entry("c", "10.0.0.4"))
	filler, err := os.Create(filepath.Join(dir, "filler"))
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	before := string(read(t, path))
	_, pruneErr := c.Prune(t.Context()) // changes nothing
	for what, err := range map[string]error{
		"add": c.Add(entry("b", "10.0.0.3")), "add again": c.Add(entry("a", "10.0.0.3")), "remove": c.Remove(key("c")),
	} {
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v, want %v", what, err, syscall.ENOSPC)
		}
	}
	if pruneErr != nil || c.Remove(key("b")) != nil {
		t.Error("a call without a change returned an error")
	}
	got := recorded(c)
	if string(read(t, path)) != before || !slices.Equal(got, []string{"10.0.0.2", "10.0.0.4"}) || len(leftovers(t, path)) != 1 {
		t.Errorf("the file was changed, or in memory are %v, or there is %v", got, leftovers(t, path))
	}
	if err := errors.Join(filler.Close(), os.Remove(filler.Name()), c.Remove(key("a")), c.Add(entry("b", "10.0.0.3")), c.Close()); err != nil {
		t.Fatal(err)
	}
	if got := recorded(opened(t, path, served)); !slices.Equal(got, []string{"10.0.0.3", "10.0.0.4"}) {
		t.Errorf("on the disk are %v", got)
	}
}
