// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Another process holds a lock of the directory, as anyone who can read it can: changes and Open wait
// for a short one, and return an error after five seconds.
func TestDirectoryIsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		c := begun(t, path, served)
		dir, err := locked(filepath.Dir(path), os.O_RDONLY, 0)
		must(t, err)
		before := time.Now()
		_, openErr := Open(path, served)
		for _, err := range []error{openErr, c.Add(entry("a", "10.0.0.2"))} {
			check(t, err != nil && !errors.Is(err, ErrLocked) && strings.Contains(err.Error(), "lslocks"), "got %v", err)
		}
		took := time.Since(before)
		check(t, took >= 2*directoryWait && took <= 3*directoryWait, "took %v", took)
		time.AfterFunc(time.Second, func() { _ = dir.Close() })
		must(t, c.Add(entry("a", "10.0.0.2")))
	})
}

// whileLocked calls do while the directory of a record is locked, as during a commit or an Open, and meanwhile when do waits for it.
func whileLocked(t *testing.T, path string, do func() error, meanwhile func()) {
	t.Helper()
	dir, err := locked(filepath.Dir(path), os.O_RDONLY, 0)
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- do() }()
	synctest.Wait()
	check(t, len(done) == 0, "it does not wait")
	meanwhile()
	must(t, dir.Close(), <-done)
}

// A second writer, after the lock file was removed, reads what the first one commits just then; and a commit waits for an Open.
//
// Guard: [Open] and [replace] lock the directory.
func TestHazard96OpenDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		c := begun(t, path, served)
		content, err := encode(record{BootID: c.bootID, Written: time.Now(), Entries: []Entry{entry("a", "10.0.0.2")}})
		must(t, err, c.Close(), os.Remove(path+".lock"))
		whileLocked(t, path, func() (err error) { c, err = Open(path, served); return err }, func() { write(t, path, string(content)) })
		defer func() { must(t, c.Close()) }()
		whileLocked(t, path, func() error { return c.Add(entry("b", "10.0.0.3")) }, func() {})
		same(t, "recorded", []string{"10.0.0.2", "10.0.0.3"}, recorded(c))
	})
}
