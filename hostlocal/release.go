// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
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
// ten seconds, it was removed or replaced again and again for as long, or the file
// is not usable as a lock (a link, a pipe, a directory).
var ErrLocked = errors.New("host-local's lock is not available")

var (
	errLockBusy     = errors.New("the lock is held by another process")
	errLockReplaced = errors.New("the lock was removed or replaced")
	errNotListed    = errors.New("its owner was not read by List, so the file can't be compared: list it again")
	errChanged      = errors.New("the file is no longer the one that was read")
)

// An Outcome says what Release did with a reservation.
type Outcome string

const (
	// NotTried: Release ended before this reservation, which still exists.
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
	// Errs has the errors of reservations that are Failed, by the same index. It is nil
	// if there are none.
	Errs map[int]error
	// LockHeld is how long locks were held in all, and LongestHold the longest single
	// time. Waiting for a lock is not part of them.
	LockHeld, LongestHold time.Duration
}

const (
	// maxHold is the time after which Release releases a lock for others to take. An ADD
	// waits no longer than this and one unlink (R8).
	maxHold = 2 * time.Millisecond
	// Release tries the locks of all networks in rounds, with a pause after each round. The
	// pause is minPause while some network makes progress. Otherwise it doubles up to
	// maxPause, since an ADD holds a lock for a few milliseconds. The kernel does not grant a
	// flock in the order of arrival: a running process takes it before a sleeping one, and
	// the pause gives the sleeping one time to wake up. A pause of twice this length made no
	// measurable difference to the latency of ADDs during passes.
	minPause = 500 * time.Microsecond
	maxPause = 10 * time.Millisecond
	// maxLockWait is how long Release goes on without progress in any network.
	maxLockWait = 10 * time.Second
	// maxErrors is the number of errors that Release joins.
	maxErrors = 8
)

// Release removes the given reservations whose files are still the ones that were read:
// same inode, change time, size and owner (R6). They may be of several networks, in any
// order.
//
// Release holds the plugin's lock of the network during removals, for about two
// milliseconds at a time, and creates nothing but the lock's file (R8). Before each
// removal it checks that the lock is still that of the directory. A removal takes six
// system calls under the lock.
//
// After a failure Release goes on, also with other networks if one can't be locked. It
// gives up when no network has made progress for ten seconds. When ctx ends, the rest is
// NotTried. The error joins at most eight errors, those about networks first, and says how
// many more there are. The result beside it is complete (R11).
//
// A reservation that was not read by List, or is Unreadable, is Failed and never removed.
func (s *Store) Release(ctx context.Context, rs ...*Reservation) (ReleaseResult, error) {
	w := releaser{store: s, rs: rs}
	w.Outcomes = slices.Repeat([]Outcome{NotTried}, len(rs))
	left := make(map[string][]int) // the indexes of reservations not tried yet, by network
	for i, r := range rs {
		switch {
		case r == nil:
			w.fail(i, errors.New("releasing a reservation that is nil"))
		case !validName(r.Network):
			w.fail(i, fmt.Errorf("releasing %v: invalid network name %q", r.IP, r.Network))
		case r.IP.Zone() != "" || r.Owner != Owned && r.Owner != Empty && r.Owner != Malformed:
			w.fail(i, fmt.Errorf("releasing %s: %w", s.filePath(r), errNotListed))
		default:
			left[r.Network] = append(left[r.Network], i)
		}
	}
	var errs []error
	giveUp := func(network string, err error) {
		path := filepath.Join(s.dataDir, network)
		errs = append(errs, fmt.Errorf("releasing reservations in %s, with %d not tried: %w", path, len(left[network]), err))
		delete(left, network)
	}
	unavailable := make(map[string]error) // by network: why the last attempt to take its lock failed, if it did
	for progress, pause := time.Now(), minPause; ; pause = min(2*pause, maxPause) {
		for _, network := range slices.Sorted(maps.Keys(left)) {
			n, err := w.hold(ctx, network, left[network])
			if n > 0 {
				progress, pause = time.Now(), minPause
			}
			left[network] = left[network][n:]
			unavailable[network] = err
			switch {
			case err == nil && len(left[network]) == 0:
				delete(left, network)
			case err == nil:
			case errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil: // the directory was removed
				for _, i := range left[network] {
					w.Outcomes[i] = Gone
				}
				delete(left, network)
			case !errors.Is(err, errLockBusy) && !errors.Is(err, errLockReplaced),
				pause == maxPause && time.Since(progress) >= maxLockWait: // after several tries, however long they took
				giveUp(network, err)
			}
		}
		if len(left) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			for _, network := range slices.Sorted(maps.Keys(left)) {
				err := cmp.Or(ctx.Err(), context.Canceled)
				if why := unavailable[network]; why != nil {
					err = fmt.Errorf("%w: %w", why, err)
				}
				giveUp(network, err)
			}
		case <-time.After(pause):
		}
	}
	return w.ReleaseResult, w.join(errs)
}

// A releaser is one call of Release.
type releaser struct {
	store *Store
	rs    []*Reservation
	ReleaseResult
}

func (w *releaser) fail(i int, err error) {
	if w.Errs == nil {
		w.Errs = make(map[int]error)
	}
	w.Outcomes[i], w.Errs[i] = Failed, err
}

// join joins the errors about networks, and then those about files.
func (w *releaser) join(errs []error) error {
	for _, i := range slices.Sorted(maps.Keys(w.Errs)) {
		errs = append(errs, w.Errs[i])
	}
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}

// hold takes a network's lock once, and tries reservations in order for maxHold, at least
// one. It returns the number that it tried.
func (w *releaser) hold(ctx context.Context, network string, order []int) (n int, err error) {
	d, err := w.store.open(network)
	if err != nil {
		return 0, err
	}
	defer func() { _ = d.Close() }() // nothing was written through it
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
	for held := time.Duration(0); n < len(order) && held < maxHold; n, held = n+1, time.Since(since) {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		i := order[n]
		switch err := w.release(d, lock, w.rs[i]); {
		case err == nil:
			w.Outcomes[i] = Released
		case errors.Is(err, errLockReplaced):
			return n, fmt.Errorf("%w: %w", ErrLocked, err)
		case errors.Is(err, fs.ErrNotExist): // also if a process that takes no lock removed it first
			w.Outcomes[i] = Gone
		case errors.Is(err, errChanged) || errors.Is(err, errNotRegular):
			w.Outcomes[i] = Changed
		default:
			w.fail(i, fmt.Errorf("releasing %s: %w", w.store.filePath(w.rs[i]), err))
		}
	}
	return n, nil
}

// release removes r's file if it is still the file that was read, with the same owner
// (R6), and if the lock is still that of the directory. The owner is compared because a
// file that changes twice within a tick of the kernel's clock keeps its change time.
func (w *releaser) release(d dir, lock *fileLock, r *Reservation) error {
	now := Reservation{IP: r.IP}
	content, err := d.read(&now, make([]byte, maxOwner+1))
	if err != nil {
		return err
	}
	id, ifName, owner := parseOwner(content)
	if now.identity != r.identity || owner != r.Owner || string(id) != r.ContainerID || string(ifName) != r.IfName {
		return errChanged
	}
	if err := lock.check(); err != nil {
		return err
	}
	return d.remove(r)
}
