// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// originOf returns the origin of a memory that is written now, and the name of a data directory in it.
func originOf(dataDir string) (of origin, dir string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return of, "", err
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dataDir, &st); err != nil {
		return of, "", &fs.PathError{Op: "stat", Path: dataDir, Err: err}
	}
	namespace, _ := os.Readlink("/proc/self/ns/time") // since Linux 5.6; before, there is one
	return origin{strings.TrimSpace(string(boot)), namespace}, fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// readMemory returns a memory, or nil if there is none. One of another boot counts as none. So
// does one that is damaged, from the future or writable by others, which is an error. It reads the
// clock after the file, which another process may write meanwhile.
func readMemory(path string, of origin, now func() reading) (*memory, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, errors.New("others can write it, so it is not used; remove it")
	}
	var m memory
	if err := json.NewDecoder(f).Decode(&m); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	switch {
	case m.Of != of:
		return nil, nil
	case m.Mono > now().mono:
		return nil, errors.New("it is from the future")
	}
	for _, seen := range m.Dirs {
		if laterThan(m.Mono, seen.Files) || laterThan(m.Mono, seen.Finished) {
			return nil, errors.New("it is damaged: a first sight is later than its writing")
		}
	}
	return &m, nil
}

func laterThan[T comparable](written time.Duration, sights []sight[T]) bool {
	return slices.ContainsFunc(sights, func(s sight[T]) bool { return s.Seen > written })
}

// lockTries is how often the lock of a memory is tried, ten milliseconds apart: another process
// that was stopped while it held the lock must not stop this one.
const lockTries = 100

// changeMemory replaces a memory. No other process changes it meanwhile.
func changeMemory(path string, change func() *memory) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // this unlocks it
	for try := 1; ; try++ {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if try == lockTries || !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("locking %s.lock: %w", path, err)
		}
		<-time.After(10 * time.Millisecond)
	}
	content, err := json.Marshal(change())
	if err != nil {
		return err
	}
	next := path + ".new"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
