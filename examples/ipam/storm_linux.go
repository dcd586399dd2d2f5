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

// A note is what the last pass over a network left for the ADDs that waited for it,
// and for the next pass. Times are those since the boot, which all processes share.
type note struct {
	BootID   string        `json:"bootID"`
	Passes   int           `json:"passes"` // since the boot
	Begin    time.Duration `json:"begin"`
	End      time.Duration `json:"end"`
	EndedAt  time.Time     `json:"endedAt"` // by the wall clock, for people
	Released int           `json:"released"`
	MinAge   string        `json:"minAge,omitempty"`
	Found    string        `json:"found"`
	// FirstSeen is when reservations without a usable timestamp were first seen
	// unowned: a process that ends with its ADD remembers nothing.
	FirstSeen map[string]time.Duration `json:"firstSeen,omitempty"`
}

// passForAll does a pass, or takes the result of one that another ADD did: of one that
// began after the try that failed it takes its answer, and one that released
// something after that try began is reason enough for another try. So ADDs that fail at
// once do one pass and not one each.
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
	if errors.Is(err, gc.ErrSourceTimeout) { // the CPU has more to do than this; later tries may fare better
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

// passPause is how long after the begin of a pass that released nothing the next one
// begins at the earliest. On a node that is full for good the runtime repeats its ADDs
// for ever: they cost one pass in that time, and the ADDs that come meanwhile share it.
const passPause = 2 * time.Second

// pauseAfter waits until a pass may begin after the last one. The lock is held
// meanwhile, so that all who wait take the answer of that pass.
func (a *attempt) pauseAfter(last *note) error {
	wait := last.Begin + passPause - sinceBoot()
	if last.Released > 0 || last.Begin == 0 || a.pause(wait) {
		return nil
	}
	return fmt.Errorf("waiting to search network %s for leaks once more: %w", a.node.conf.network, a.ctx.Err())
}

// passNoted does a pass and notes it. One that failed is noted too, since it would fail
// for all who wait. A pass that released nothing and lacked time, whether its sources' or
// its own ADD's, or was done for one address (not forAll) answers nobody else: the note
// keeps what the pass before has found.
func (a *attempt) passNoted(lock *stormLock, enough func(*finding) bool, forAll bool) (finding, error) {
	before := lock.read()
	n := before
	n.Passes++
	n.Begin = sinceBoot()
	f, err := a.pass(&n, enough)
	n.End, n.EndedAt, n.Released, n.MinAge, n.Found = sinceBoot(), time.Now(), f.released, f.minAge.String(), f.text
	if err != nil {
		n.MinAge, n.Found = "", err.Error()
	}
	if f.released == 0 && (!forAll || errors.Is(err, gc.ErrSourceTimeout) || err != nil && a.ctx.Err() != nil) {
		before.Passes, before.FirstSeen = n.Passes, n.FirstSeen
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

// A stormLock is the lock under which passes over a network are done, and their note.
// It is the one file that this plugin makes: <data dir>/.<network>.gc, beside the
// network's directory, where host-local never looks.
type stormLock struct {
	file *os.File
	boot string
}

// lockStorm waits for the lock. Where there is no room for its file the data directory is
// locked in its place, and nothing is noted: to release is what makes room.
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
		case <-ctx.Done(): // the waiting thread ends with this process, and nothing is done under the lock until then
			return nil, fmt.Errorf("waiting for another ADD's pass over network %s: %w", conf.network, ctx.Err())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
		}
		there, err := os.Stat(path) // no link was opened but the one to the data directory
		mine, mineErr := file.Stat()
		if err == nil && mineErr == nil && os.SameFile(there, mine) {
			return &stormLock{file, strings.TrimSpace(string(boot))}, nil
		}
		_ = file.Close() // somebody has removed it meanwhile, and others lock another one
	}
}

// openLock opens the lock, and makes it if there is none. It follows no link, and is
// not blocked by a pipe.
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

// unlock gives the lock to the next.
func (l *stormLock) unlock() { _ = l.file.Close() }

// read returns the note. One of another boot or from the future, or that was torn when
// a pass was killed, says nothing.
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
