// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"
)

// ErrLocked is returned, wrapped, by Release if the plugin's lock on a network's
// directory could not be taken: another process held it until ctx ended or for
// ten seconds, the
// file is not usable as a lock (a link, a pipe, a directory), or it was removed
// or replaced again and again while Release held it.
var ErrLocked = errors.New("host-local's lock is not available")

var (
	errLockBusy     = errors.New("the lock is held by another process")
	errLockReplaced = errors.New("the lock was removed or replaced")
	errNotListed    = errors.New("its owner was not read by List, so it can't be told whether it is still the same")
)

// An Outcome says what became of a reservation that was given to Release.
type Outcome uint8

const (
	// NotTried: Release ended before it came to this one. It is still there.
	NotTried Outcome = iota
	// Released: the file was removed.
	Released
	// Changed: the file is not the one that was read any more, and was kept.
	Changed
	// Gone: the file was not there any more.
	Gone
	// Failed: the file is still there, or may be, and Errs says why.
	Failed
)

// String returns the outcome in lower case, as in "released".
func (o Outcome) String() string {
	return word(o, "not-tried", "released", "changed", "gone", "failed")
}

// A ReleaseResult says what one call of Release did.
type ReleaseResult struct {
	// Outcomes has one entry for each reservation given, in the same order.
	Outcomes []Outcome
	// Errs holds, by the same index, why the ones that Failed did. It is nil
	// when none did.
	Errs map[int]error
	// LockHeld is how long locks were held in all, LongestHold how long one was
	// at most at once. Waiting counts in neither.
	LockHeld, LongestHold time.Duration
}

const (
	// maxHold is for how long a lock is held before others may take it. An ADD
	// that comes meanwhile waits no longer than this and one unlink (R8).
	maxHold = 2 * time.Millisecond
	// lockPause is for how long the lock is left alone then. A flock is not
	// handed on in the order of arrival: whoever is awake takes it, and this
	// leaves those who sleep for it the time to wake up. In the latency of ADDs
	// beside passes no difference to twice as long was seen beyond the noise.
	lockPause = 500 * time.Microsecond
	// maxReplaced is how many holds in a row may end without a release because
	// the lock was replaced.
	maxReplaced = 5
	// Locks that are busy are tried for again in turns, after a pause that grows
	// from the first of these to the second, as long as some network gets on, and
	// for the third after that. An ADD holds a lock for a few milliseconds.
	minLockPoll = time.Millisecond
	maxLockPoll = 10 * time.Millisecond
	maxLockWait = 10 * time.Second
	// maxErrors is how many errors Release joins.
	maxErrors = 8
)

// Release removes those of the given reservations whose files are still the
// very ones that were read: same inode, same change time, same size, same owner
// (R6). They may be of several networks, and in any order. The owner is read
// again only where a change need not have moved the change time, because that
// was not older than a clock's tick when the owner was read.
//
// Release holds the plugin's own lock of each network meanwhile, but never for
// longer than about two milliseconds at once, and creates nothing but that
// lock's file (R8). Before each removal it makes sure that the lock is still
// the directory's. A release costs three system calls under the lock, or six
// where the owner is read again.
//
// It goes on after a failure, and with the other networks if one can't be
// locked; those whose locks are busy are tried in turns, for ten seconds after the
// last of them got on. When ctx ends the rest is NotTried. The error joins what went wrong, at most eight errors and the number
// of the others; those about networks come first. The result beside it is true
// in any case (R11).
//
// What was not read by List, or is Unreadable, is never removed: it is Failed.
func (s *Store) Release(ctx context.Context, rs ...*Reservation) (ReleaseResult, error) {
	w := releaser{store: s, rs: rs, buf: make([]byte, maxOwner+1)}
	w.Outcomes = make([]Outcome, len(rs))
	byNetwork := make(map[string][]int)
	for i, r := range rs {
		switch {
		case r == nil:
			w.fail(i, errors.New("releasing a reservation that is nil"))
		case !validName(r.Network):
			w.fail(i, fmt.Errorf("releasing %v: invalid network name %q", r.IP, r.Network))
		case r.Owner != Owned && r.Owner != Empty && r.Owner != Malformed:
			w.fail(i, fmt.Errorf("releasing %s: %w", s.filePath(r), errNotListed))
		default:
			byNetwork[r.Network] = append(byNetwork[r.Network], i)
		}
	}
	queue := slices.Sorted(maps.Keys(byNetwork))
	for waited, pause := time.Now(), minLockPoll; len(queue) > 0; pause = min(2*pause, maxLockPoll) {
		var busy []string
		for _, network := range queue {
			before := len(byNetwork[network])
			left, err := w.release(ctx, network, byNetwork[network])
			if len(left) < before {
				waited, pause = time.Now(), minLockPoll
			}
			byNetwork[network] = left
			switch {
			case errors.Is(err, errLockBusy):
				busy = append(busy, network)
			case err != nil:
				w.errs = append(w.errs, w.notTried(network, len(left), err))
			}
		}
		queue = busy
		if len(busy) > 0 && time.Since(waited) < maxLockWait && sleep(ctx, pause) {
			continue
		}
		for _, network := range busy {
			err := fmt.Errorf("%w: %w", ErrLocked, errLockBusy)
			if ended := ctx.Err(); ended != nil {
				err = fmt.Errorf("%w: %w", err, ended)
			}
			w.errs = append(w.errs, w.notTried(network, len(byNetwork[network]), err))
		}
		break
	}
	return w.ReleaseResult, w.join()
}

func (w *releaser) notTried(network string, n int, err error) error {
	return fmt.Errorf("releasing reservations in %s, with %d not tried: %w", filepath.Join(w.store.dataDir, network), n, err)
}

// A releaser is one call of Release.
type releaser struct {
	store *Store
	rs    []*Reservation
	buf   []byte
	errs  []error // about networks
	ReleaseResult
}

func (w *releaser) fail(i int, err error) {
	if w.Errs == nil {
		w.Errs = make(map[int]error)
	}
	w.Outcomes[i], w.Errs[i] = Failed, err
}

// join joins the errors about networks, and then those about files.
func (w *releaser) join() error {
	errs := w.errs
	for _, i := range slices.Sorted(maps.Keys(w.Errs)) {
		errs = append(errs, w.Errs[i])
	}
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}

// release releases the reservations of one network whose indexes are given, and
// returns those that were not tried.
func (w *releaser) release(ctx context.Context, network string, order []int) (left []int, err error) {
	d, err := w.store.open(network)
	if err == nil {
		defer d.close()
	}
	for replaced := 0; len(order) > 0; {
		n := 0
		if err == nil {
			n, err = w.hold(ctx, d, order)
			order = order[n:]
		}
		if n > 0 {
			replaced = 0
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // the directory was removed
			for _, i := range order {
				w.Outcomes[i] = Gone
			}
			return nil, nil
		case errors.Is(err, errLockReplaced) && replaced < maxReplaced:
			replaced++
			err = nil
		case err != nil:
			return order, err
		}
		if len(order) > 0 && !sleep(ctx, lockPause) {
			return order, ctx.Err()
		}
	}
	return nil, err
}

// hold takes the lock of d once, and releases what it comes to in that time, at
// least one. It returns how many that were.
func (w *releaser) hold(ctx context.Context, d *dir, order []int) (n int, err error) {
	lock, err := d.lock()
	if err != nil {
		return 0, err
	}
	since := time.Now()
	defer func() { // also when the context, which is the caller's code, panics
		err = errors.Join(err, lock.unlock())
		held := time.Since(since)
		w.LockHeld += held
		w.LongestHold = max(w.LongestHold, held)
	}()
	for n < len(order) && (n == 0 || time.Since(since) < maxHold) {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		i := order[n]
		outcome, err := w.releaseOne(d, lock, w.rs[i])
		if errors.Is(err, errLockReplaced) {
			return n, fmt.Errorf("%w: %w", ErrLocked, err)
		}
		w.Outcomes[i] = outcome
		if err != nil {
			w.fail(i, fmt.Errorf("releasing %s: %w", w.store.filePath(w.rs[i]), err))
		}
		n++
	}
	return n, nil
}

// releaseOne removes r's file if it is still the one that r was read from, and
// if the lock is still the directory's.
func (w *releaser) releaseOne(d *dir, lock *fileLock, r *Reservation) (Outcome, error) {
	same, err := d.isSame(r, w.buf)
	if err == nil && same {
		if err = lock.check(); err == nil {
			err = d.remove(r.IP)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // also where somebody who takes no lock was faster
		return Gone, nil
	case errors.Is(err, errNotRegular) || err == nil && !same:
		return Changed, nil
	case err != nil:
		return Failed, err
	}
	return Released, nil
}

// isSame reports whether the directory still has the very file that r was read
// from (R6). A file whose change time is stable has its owner still if it has
// its change time. That spares an ADD that waits for the lock an open, a read
// and a close for each release. Of the others the owner is compared, too.
func (d *dir) isSame(r *Reservation, buf []byte) (bool, error) {
	if r.ctimeStable {
		file, err := d.stat(r.IP)
		return file.Identity == r.Identity(), err
	}
	file, content, err := d.read(r.IP, buf)
	containerID, ifName, owner := parseOwner(content)
	return file.Identity == r.Identity() && owner == r.Owner && string(containerID) == r.ContainerID && string(ifName) == r.IfName, err
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
