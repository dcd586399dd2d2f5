// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestReadingWritesNothing: not even the time of access, which a disk would have
// to store for every reservation.
func TestReadingWritesNothing(t *testing.T) {
	s := newStore(t)
	path := filepath.Join(dirOf(s), "10.0.0.2")
	write(t, path, "abc\r\neth0")
	accessed, written := time.Now().Add(-72*time.Hour), time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, accessed, written); err != nil {
		t.Fatal(err)
	}
	if rs, err := s.List(t.Context()); err != nil || len(rs) != 1 || rs[0].Owner != Owned {
		t.Fatalf("List: %v, %v", rs, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if got := time.Unix(st.Atim.Unix()); !got.Equal(accessed) {
		t.Errorf("the file was accessed at %v, want %v as before", got, accessed)
	}
}

// TestReadingFilesOfOthers: who may read a file but does not own it may not ask
// the kernel to keep the time of access as it is, and reads it all the same.
func TestReadingFilesOfOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	s := newStore(t)
	path := filepath.Join(dirOf(s), "10.0.0.2")
	write(t, path, "abc\r\neth0")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := openDir(dirOf(s))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	type result struct {
		content string
		err     error
	}
	got := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: this thread is somebody else's, and ends with the goroutine
		const nobody = 65534
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0); errno != 0 {
			got <- result{"", errno}
			return
		}
		content, err := d.read(&Reservation{IP: netip.MustParseAddr("10.0.0.2")}, make([]byte, 64))
		got <- result{string(content), err}
	}()
	if r := <-got; r.err != nil || r.content != "abc\r\neth0" {
		t.Errorf("read %q, error %v", r.content, r.err)
	}
	if d.noatime != 0 {
		t.Error("the kernel did not refuse O_NOATIME, so this showed nothing")
	}
}
