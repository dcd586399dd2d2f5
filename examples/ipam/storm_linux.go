// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A note is the result of the last pass over a network, for ADDs that waited for it and for the
// next pass. Times are those since the boot, which all processes share.
type note struct {
	BootID   string        `json:"bootID"`
	Passes   int           `json:"passes"` // number since the boot
	Begin    time.Duration `json:"begin"`
	End      time.Duration `json:"end"`
	EndedAt  time.Time     `json:"endedAt"` // by the wall clock, for people
	Released int           `json:"released"`
	MinAge   string        `json:"minAge,omitempty"`
	Found    string        `json:"found"`
}

// passForAll makes a pass, or uses the result of another ADD's pass. A pass that began after the
// failed try answers for this ADD. A pass that released something after that try began justifies
// another try. So concurrent ADDs that fail share one pass.
func (a *attempt) passForAll(began time.Duration) (again bool, err error) {
	lock, err := lockStorm(a.ctx, a.node.conf)
	if err != nil {
		return false, err
	}
	defer lock.unlock()
	last := lock.read()
	switch {
	case last.Released > 0 && last.End >= began:
		return true, nil
	case last.Begin >= began && last.End > 0:
		a.found("another ADD's answer: " + last.Found)
		return false, nil
	}
	if err := a.pauseAfter(&last); err != nil {
		return false, err
	}
	f, err := a.passNoted(lock, func(*finding) bool { return false }, true)
	if errors.Is(err, gc.ErrSourceTimeout) { // the CPU is busy; a later try may succeed
		a.found(err.Error())
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if f.released == 0 {
		a.found(f.text)
	}
	return f.released > 0, nil
}

// passPause is the minimum time between the beginnings of a pass that released nothing and of the
// next one. On a node that stays full the runtime repeats its ADDs for ever: they cost one pass in
// that time, and share it. No pause follows a pass that lacked time, since leaks may be left.
const passPause = 2 * time.Second

// pauseAfter waits until the next pass may begin. It keeps the lock, so that all waiting ADDs use
// that pass.
func (a *attempt) pauseAfter(last *note) error {
	wait := last.Begin + passPause - sinceBoot()
	if last.Released > 0 || last.Begin == 0 || a.pause(wait) {
		return nil
	}
	return fmt.Errorf("waiting to search network %s for leaks once more: %w", a.node.conf.network, a.ctx.Err())
}

// passNoted makes a pass and notes it. A failed pass is noted, too, since it would fail for all who
// wait. Some passes that released nothing answer no other ADD: those that lacked time, their
// sources' or their ADD's, and those for one address (not forAll). The note then keeps the previous
// result.
func (a *attempt) passNoted(lock *stormLock, enough func(*finding) bool, forAll bool) (finding, error) {
	before := lock.read()
	n := before
	n.Passes++
	n.Begin = sinceBoot()
	f, err := a.pass(enough)
	n.End, n.EndedAt, n.Released, n.MinAge, n.Found = sinceBoot(), time.Now(), f.released, f.minAge.String(), f.text
	if err != nil {
		n.MinAge, n.Found = "", err.Error()
	}
	if f.released == 0 && (!forAll || errors.Is(err, gc.ErrSourceTimeout) || err != nil && a.ctx.Err() != nil) {
		before.Passes = n.Passes
		n = before
	}
	if noteErr := lock.write(&n); noteErr != nil {
		logf("network %s: %v", a.node.conf.network, noteErr)
	}
	if f.released > 0 {
		logf("%s, in %v", f.text, (n.End - n.Begin).Round(time.Millisecond))
	}
	return f, err
}

// memory is where the library keeps what outlives this process, such as when it first saw a
// reservation without a usable timestamp: beside the networks' directories, where host-local never
// looks.
func (c *config) memory() string { return filepath.Join(c.dataDir, ".gc-memory") }

// A stormLock is the lock for passes over a network, with their note in its file,
// <data dir>/.<network>.gc.
type stormLock struct {
	file *os.File
	boot string
}

// lockStorm waits for the lock. If the file system has no room for its file, it locks the data
// directory instead, without a note: the releases make room.
func lockStorm(ctx context.Context, conf *config) (*stormLock, error) {
	path := filepath.Join(conf.dataDir, "."+conf.network+".gc")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("reading the boot's ID: %w", err)
	}
	for {
		file, err := openLock(path)
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			path = conf.dataDir
			file, err = os.Open(path)
		}
		if err != nil {
			return nil, fmt.Errorf("opening the lock under which network %s is searched for leaks: %w", conf.network, err)
		}
		locked := make(chan error, 1)
		go func() { locked <- flock(file) }()
		select {
		case err = <-locked:
		case <-ctx.Done(): // the waiting thread ends with this process, and does nothing under the lock
			return nil, fmt.Errorf("waiting for another ADD's pass over network %s: %w", conf.network, ctx.Err())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
		}
		there, err := os.Stat(path) // openLock follows no link in the last element
		mine, mineErr := file.Stat()
		if err == nil && mineErr == nil && os.SameFile(there, mine) {
			return &stormLock{file, strings.TrimSpace(string(boot))}, nil
		}
		_ = file.Close() // the file was removed meanwhile, and others lock a new one
	}
}

// openLock opens the lock file, and creates it if there is none. It follows no link, and a pipe
// does not block it.
func openLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file; remove it", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func flock(file *os.File) error {
	for {
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// unlock releases the lock.
func (l *stormLock) unlock() { _ = l.file.Close() }

// read returns the note. It is empty if the note is of another boot, from the future, or torn
// because its writer was killed.
func (l *stormLock) read() note {
	var n note
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, 64<<20))
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err != nil || n.BootID != l.boot || n.Begin > n.End || n.End > sinceBoot() {
		return note{BootID: l.boot}
	}
	return n
}

// write replaces the note.
func (l *stormLock) write(n *note) error {
	text, err := json.Marshal(n)
	if err == nil {
		err = l.file.Truncate(0)
	}
	if err == nil {
		_, err = l.file.WriteAt(append(text, '\n'), 0)
	}
	if err != nil {
		return fmt.Errorf("noting the result of a pass for other ADDs: %w", err)
	}
	return nil
}
