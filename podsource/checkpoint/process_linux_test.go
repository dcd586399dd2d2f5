// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	must(t, err)
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	return cmd
}

// skipLoudly skips a test that can't run on this machine. In CI it fails.
func skipLoudly(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s does not work here, and CI needs it: %v", what, err)
	}
	t.Skipf("SKIPPED, NOT TESTED: %s does not work here: %v", what, err)
}

// TestTwoWriters: while a process has the record open, Open in another one fails at once, and readers succeed. The end of the
// writer releases the lock.
func TestTwoWriters(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		_, err := Open(filepath.Join(dir, "attachments"), served)
		fmt.Println("opened:", err) // it ends without Close
		return
	}
	path := newPath(t)
	c := begun(t, path, served, entry("a", "10.0.0.2"))
	for _, says := range []string{ErrLocked.Error(), "opened: <nil>"} {
		out, err := child(t, filepath.Dir(path)).CombinedOutput()
		if err != nil || !strings.Contains(string(out), says) {
			t.Errorf("another process: %v, want %s:\n%s", err, says, out)
		}
		same(t, "by a reader", []string{"a"}, ids(t, reader(t, path, served)))
		must(t, c.Close())
	}
}

// The lock file is removed while the record is open. A second writer, of this process or of another one, opens the record; then no
// change of the first one succeeds, and none of the second one is lost. While nobody else has opened it, the first one is told, too.
//
// Guard: [lockDirectory] compares the lock file with the one at its path.
func TestHazard96LockFileIsRemoved(t *testing.T) {
	path := newPath(t)
	first, err := Open(path, served)
	must(t, err, first.Backfill(t.Context(), noPods, nil), first.Add(entry("a", "10.0.0.2")), os.Remove(path+".lock"))
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path+".lock was removed") {
			t.Errorf("%v, want %v", err, ErrLocked)
		}
	}
	refused(first.Add(entry("lost", "10.0.0.9")))
	second := opened(t, path, served)
	must(t, second.Add(entry("b", "10.0.0.3")))
	refused(first.Add(entry("lost", "10.0.0.9")))
	refused(first.Remove(key("a")))
	refused(first.Close())
	if _, err := Open(path, served); !errors.Is(err, ErrLocked) {
		t.Errorf("a third writer: %v, want %v", err, ErrLocked)
	}
	must(t, second.Close())
	same(t, "recorded", []string{"10.0.0.2", "10.0.0.3"}, recorded(opened(t, path, served)))
}

// whileLocked calls do while the directory of a record is locked, as during a commit or an Open, and meanwhile when do waits for it.
func whileLocked(t *testing.T, path string, do func() error, meanwhile func()) {
	t.Helper()
	dir, err := locked(filepath.Dir(path), os.O_RDONLY, true)
	must(t, err)
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
	must(t, dir.Close(), <-done)
}

// A second writer, after the lock file was removed, reads what the first one commits just then; and a commit waits for an Open. If the
// kernel refuses a lock, nothing is written.
//
// Guard: [Open] and [replace] lock the directory.
func TestHazard96OpenDuringACommit(t *testing.T) {
	path := newPath(t)
	c := begun(t, path, served)
	content, err := encode(record{BootID: c.bootID, Written: time.Now(), Entries: []Entry{entry("a", "10.0.0.2")}})
	must(t, err, c.Close(), os.Remove(path+".lock"))
	whileLocked(t, path, func() (err error) { c, err = Open(path, served); return err }, func() { write(t, path, string(content)) })
	defer func() { must(t, c.Close()) }()
	whileLocked(t, path, func() error { return c.Add(entry("b", "10.0.0.3")) }, func() {})
	before := string(read(t, path))
	refuse.Call(t, syscall.SYS_FLOCK, func() {
		_, openErr := Open(path, served)
		if err := c.Add(entry("c", "10.0.0.4")); !errors.Is(err, syscall.EIO) || !errors.Is(openErr, syscall.EIO) {
			t.Errorf("Add: %v; Open: %v", err, openErr)
		}
	})
	same(t, "the file", before, string(read(t, path)))
	same(t, "recorded", []string{"10.0.0.2", "10.0.0.3"}, recorded(c))
}

// TestDiskFull: on a full disk Add and Remove return errors, and the state does not
// change, in memory and on the disk. After that both work again.
func TestDiskFull(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
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
	must(t, c.Remove(key("b"))) // changes nothing
	for what, err := range map[string]error{
		"add": c.Add(entry("b", "10.0.0.3")), "add again": c.Add(entry("a", "10.0.0.3")), "remove": c.Remove(key("c")),
	} {
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v, want %v", what, err, syscall.ENOSPC)
		}
	}
	same(t, "the file", before, string(read(t, path)))
	same(t, "in memory", []string{"10.0.0.2", "10.0.0.4"}, recorded(c))
	same(t, "left behind", []string(nil), leftovers(t, path))
	must(t, filler.Close(), os.Remove(filler.Name()), c.Remove(key("a")), c.Add(entry("b", "10.0.0.3")), c.Close())
	same(t, "on the disk", []string{"10.0.0.3", "10.0.0.4"}, recorded(opened(t, path, served)))
}
