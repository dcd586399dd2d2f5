// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"
)

// ErrLocked is returned, wrapped, by Release if the plugin's lock on a network's
// directory could not be taken: another process held it until ctx ended or for
// ten seconds, it was removed or replaced again and again for as long, the file is not
// usable as a lock (a link, a pipe, a directory), or the directory can't be opened. On
// systems other than Linux, where no node runs, Release waits for the other process without a limit.
var ErrLocked = errors.New("host-local's lock is not available")

var (
	errNotListed = errors.New("its owner was not read by List, so the file can't be compared: list it again")
	errChanged   = errors.New("the file is no longer the one that was read")

	errLockBusy     = errors.New("the lock is held by another process")
	errLockReplaced = errors.New("the lock was removed or replaced")
	errUnfinished   = errors.New("it takes several holds of the lock")
	retried         = []error{errLockBusy, errLockReplaced, errUnfinished} // after these a network is tried again later
)

// An Outcome says what Release did with a reservation.
type Outcome string

const (
	// NotTried: Release ended before this reservation, and left it as it is.
	NotTried Outcome = "not-tried"
	// Released: the file was removed.
	Released Outcome = "released"
	// Changed: the file is no longer the one that was read, and was kept.
	Changed Outcome = "changed"
	// Gone: the file, or its network's directory, no longer existed.
	Gone Outcome = "gone"
	// Failed: the file was not removed, as far as is known, and Errs says why.
	Failed Outcome = "failed"
)

// A ReleaseResult says what one call of Release did.
type ReleaseResult struct {
	// Outcomes has one entry for each given reservation, in the same order.
	Outcomes []Outcome
	// Errs has the errors of those that are Failed, by the same index, and nil for the others.
	Errs []error
	// LockHeld is how long locks were held in all, and LongestHold the longest single
	// time. Waiting for a lock is not part of them.
	LockHeld, LongestHold time.Duration
}

const (
	// maxHold is the time after which Release releases a lock for others to take. An ADD
	// waits no longer than this and one unlink (R8).
	maxHold = 2 * time.Millisecond
	// Release tries the locks of all networks in rounds, so that a lock that is held does not
	// delay the other networks. After a round with progress it pauses for minPause, since the
	// kernel does not grant a flock in the order of arrival: the pause gives a sleeping ADD
	// time to wake up. (Twice this length made no measurable difference to the latency of
	// ADDs.) After others the pause doubles up to maxPause, since an ADD holds a lock for a
	// few milliseconds. Release gives up after maxIdle rounds, about ten seconds.
	minPause = 500 * time.Microsecond
	maxPause = 10 * time.Millisecond
	maxIdle  = 1000
	// maxErrors is the number of errors that Release joins.
	maxErrors = 8
)

// Release removes the given reservations whose files are still the ones that were read:
// same inode, change time, size and owner (R6). They may be of several networks, in any
// order.
//
// Release holds the plugin's lock of the network during removals, for about two
// milliseconds at a time, or longer while it waits for a CPU, and creates nothing but the
// lock's file (R8). Directly before each removal it checks that the lock is still that of the
// directory that it was taken in, whatever its name is by then, and that ctx has not ended: a file
// system that did not answer for long may have delayed any step. A removal takes three system calls under the lock, or six if its file was
// changed within three seconds before List or is empty.
//
// After a failure Release goes on, also with other networks if one can't be locked. It
// gives up when no network has made progress for ten seconds. When ctx ends, the rest is
// NotTried. The error joins at most eight errors, that of ctx and those about networks first, and
// says how many more there are. The result beside it is complete (R11).
//
// A reservation that was not read by List, or is Unreadable, is Failed and never removed.
func (s *Store) Release(ctx context.Context, rs ...*Reservation) (ReleaseResult, error) {
	w := releaser{store: s, rs: rs}
	w.Outcomes, w.Errs = slices.Repeat([]Outcome{NotTried}, len(rs)), make([]error, len(rs))
	var all []*queue
	for i, r := range rs {
		r = cmp.Or(r, &Reservation{})
		if !ValidName(r.Network) || r.IP.Zone() != "" || r.Owner != Owned && r.Owner != Empty && r.Owner != Malformed {
			w.fail(i, fmt.Errorf("releasing %s: %w", s.filePath(r), errNotListed))
			continue
		}
		q := slices.IndexFunc(all, func(q *queue) bool { return q.network == r.Network })
		if q < 0 {
			q, all = len(all), append(all, &queue{network: r.Network})
		}
		all[q].left = append(all[q].left, i)
	}
	waiting := slices.Clone(all)
	for idle := 0; ; idle++ { // rounds without progress
		for _, q := range waiting {
			before := len(q.left)
			if q.err = w.hold(ctx, q); len(q.left) < before {
				idle = 0
			}
		}
		waiting = slices.DeleteFunc(waiting, func(q *queue) bool {
			return idle == maxIdle || !slices.ContainsFunc(retried, func(err error) bool { return errors.Is(q.err, err) })
		})
		if len(waiting) == 0 {
			return w.ReleaseResult, w.join(all)
		}
		select {
		case <-ctx.Done():
			return w.ReleaseResult, w.join(all, ctx.Err())
		case <-time.After(min(minPause<<min(idle, 10), maxPause)):
		}
	}
}

// A queue has the reservations of one network that are not tried yet.
type queue struct {
	network string
	left    []int // indexes
	err     error // of the last hold
}

// A releaser is one call of Release.
type releaser struct {
	store *Store
	rs    []*Reservation
	ReleaseResult
}

func (w *releaser) fail(i int, err error) { w.Outcomes[i], w.Errs[i] = Failed, err }

// join joins errors, those about networks, and then those about files.
func (w *releaser) join(all []*queue, errs ...error) error {
	for _, q := range all {
		if q.err != nil {
			path := filepath.Join(w.store.dataDir, q.network)
			errs = append(errs, fmt.Errorf("removing files in %s, with %d not tried: %w", path, len(q.left), q.err))
		}
	}
	errs = append(errs, slices.DeleteFunc(slices.Clone(w.Errs), func(err error) bool { return err == nil })...)
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}

// hold takes a network's lock once, and tries its reservations in order for maxHold, at
// least one. If the directory was removed, all that is left is Gone. After a nil error
// nothing is left to try.
func (w *releaser) hold(ctx context.Context, q *queue) (err error) {
	d, err := w.store.open(q.network)
	var lock *fileLock
	if err == nil {
		defer func() { _ = d.Close() }() // nothing was written through it
		lock, err = d.lock()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for _, i := range q.left {
			w.Outcomes[i] = Gone
		}
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	since := time.Now()
	defer func() { // also when the context, which is the caller's code, panics
		err = cmp.Or(lock.unlock(), err)
		held := time.Since(since)
		w.LockHeld += held
		w.LongestHold = max(w.LongestHold, held)
	}()
	for _, i := range q.left {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := w.store.remembered()
		err := d.compare(w.rs[i], &m)
		if err == nil {
			if err := lock.check(); err != nil {
				return fmt.Errorf("%w: %w", ErrLocked, err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			err = d.remove(w.rs[i])
		}
		switch {
		case err == nil:
			w.Outcomes[i] = Released
		case errors.Is(err, fs.ErrNotExist): // also if a process that takes no lock removed it first
			w.Outcomes[i] = Gone
		case errors.Is(err, errChanged) || errors.Is(err, errNotRegular):
			w.Outcomes[i] = Changed
		default:
			w.fail(i, fmt.Errorf("releasing %s: %w", w.store.filePath(w.rs[i]), err))
		}
		if q.left = q.left[1:]; len(q.left) > 0 && time.Since(since) >= maxHold {
			return errUnfinished
		}
	}
	return nil
}

// compare returns errChanged if r's file is not the file that was read, with the same owner
// (R6). It reads the owner, unless the identity proves that: a file that changes twice within a
// tick of the kernel's clock keeps its change time.
func (d dir) compare(r *Reservation, m *memory) (err error) {
	now := Reservation{IP: r.IP, Owner: r.Owner, ContainerID: r.ContainerID, IfName: r.IfName}
	if r.settled == m.proof(r) {
		err = d.status(&now)
	} else {
		var content string
		content, err = d.read(&now, make([]byte, maxOwner+1))
		now.ContainerID, now.IfName, now.Owner = parseOwner(content)
	}
	if err == nil && (!now.isFile(r) || now.Owner != r.Owner || now.ContainerID != r.ContainerID || now.IfName != r.IfName) {
		return errChanged
	}
	return err
}
