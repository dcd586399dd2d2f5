// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// An Outcome says what became of a reservation that was given to Release.
type Outcome uint8

const (
	// NotTried: Release ended before its turn. It is still there.
	NotTried Outcome = iota
	// Released: the file was removed.
	Released
	// Changed: the file is not the one that was judged any more, and was kept.
	Changed
	// Gone: the file was not there any more.
	Gone
	// Failed: the file is still there, or may be, and Errs says why.
	Failed
)

var outcomes = [...]string{"not-tried", "released", "changed", "gone", "failed"}

// String returns the outcome in lower case, as in "released".
func (o Outcome) String() string {
	if int(o) < len(outcomes) {
		return outcomes[o]
	}
	return "unknown"
}

// Releases says what one call of Release did.
type Releases struct {
	// Outcomes has one entry for each reservation given, in the same order.
	Outcomes []Outcome
	// Errs holds, by the same index, why the ones that Failed did. It is nil
	// when none did.
	Errs map[int]error
	// LockHeld is how long the lock was held in all, LongestHold how long at
	// most at once. Waiting for it counts in neither.
	LockHeld, LongestHold time.Duration
}

const (
	// maxHold is for how long the lock is held before others get a turn. An ADD
	// that comes meanwhile waits no longer than this and one unlink (R8).
	maxHold = 2 * time.Millisecond
	// breather is for how long the lock is left alone then. A flock is not
	// handed on in the order of arrival: whoever is awake takes it, and this
	// leaves those who sleep for it the time to wake up. In the latency of ADDs
	// beside passes no difference to twice as long was seen beyond the noise.
	breather = 500 * time.Microsecond
)

// errUnread is for reservations that come from Scan, or from nowhere.
var errUnread = errors.New("its owner was not read, so it can't be told whether it is still the same; read it with List or ReadOwners first")

// Release removes those of the given reservations whose files are still the
// very ones that were read: same inode, same change time, same size, same owner
// (R6). The owner is read again only where a change need not have moved the
// change time, because that was not older than a clock's tick when the owner was
// read.
//
// Release holds the plugin's own lock meanwhile, but never for longer than about
// two milliseconds at once, and creates nothing but that lock's file (R8). A
// release costs two system calls under the lock, or five where the owner is read
// again.
//
// It goes on after a failure. The error joins all that went wrong; what it
// returns beside it is true in any case (R11). When ctx ends, or the lock can't
// be had, the rest is NotTried.
//
// A Reservation whose owner was not read, or that another Store listed, is
// never removed.
func (s *Store) Release(ctx context.Context, rs ...Reservation) (Releases, error) {
	at := make([]int, len(rs))
	for i := range at {
		at[i] = i
	}
	return s.ReleaseAt(ctx, rs, at)
}

// ReleaseAt is Release of those reservations in rs whose indexes are given,
// which spares a copy of a few among many. What it returns goes by the position
// in at. An index that rs does not have is an error, and nothing is released.
func (s *Store) ReleaseAt(ctx context.Context, rs []Reservation, at []int) (Releases, error) {
	done := Releases{Outcomes: make([]Outcome, len(at))}
	if len(at) == 0 {
		return done, nil
	}
	for _, i := range at {
		if i < 0 || i >= len(rs) {
			return done, fmt.Errorf("releasing reservations in %s: there is no reservation %d among %d", s.dir(), i, len(rs))
		}
	}
	d, err := openDir(s.dir())
	if errors.Is(err, fs.ErrNotExist) {
		for i := range done.Outcomes {
			done.Outcomes[i] = Gone
		}
		return done, nil
	}
	if err != nil {
		return done, fmt.Errorf("releasing reservations: %w", err)
	}
	defer d.close()

	var errs []error
	buf := make([]byte, maxOwner+1)
	for next := 0; next < len(at); {
		if next > 0 && !sleep(ctx, breather) {
			errs = append(errs, s.stopped(ctx, len(at)-next))
			break
		}
		n, err := s.hold(ctx, d, rs, at[next:], buf, func(i int, outcome Outcome, err error) {
			done.Outcomes[next+i] = outcome
			if err != nil {
				errs = append(errs, err)
				if done.Errs == nil {
					done.Errs = make(map[int]error)
				}
				done.Errs[next+i] = err
			}
		}, &done)
		next += n
		if err != nil {
			errs = append(errs, err)
			break
		}
	}
	return done, errors.Join(errs...)
}

// hold takes the lock once and releases what it comes to in that time, at least
// one. It returns how many that were; an error means that Release must end.
func (s *Store) hold(ctx context.Context, d *dir, rs []Reservation, at []int, buf []byte, tell func(int, Outcome, error), done *Releases) (n int, err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return 0, err
	}
	since := time.Now()
	defer func() { // also when the context, which is the caller's code, panics
		err = errors.Join(err, unlock())
		held := time.Since(since)
		done.LockHeld += held
		done.LongestHold = max(done.LongestHold, held)
	}()
	for n < len(at) && (n == 0 || time.Since(since) < maxHold) {
		if ctx.Err() != nil {
			return n, s.stopped(ctx, len(at)-n)
		}
		r := &rs[at[n]]
		outcome, err := d.release(r, buf)
		if err != nil {
			err = fmt.Errorf("releasing %s: %w", s.path(r), err)
		}
		tell(n, outcome, err)
		n++
	}
	return n, nil
}

// release removes r's file if it is still the one that r was read from. The
// lock must be held.
func (d *dir) release(r *Reservation, buf []byte) (Outcome, error) {
	switch r.Owner {
	case Owned, Empty, Malformed:
	default:
		return Failed, errUnread
	}
	same, err := d.holds(r, buf)
	if errors.Is(err, fs.ErrNotExist) {
		return Gone, nil
	}
	if errors.Is(err, errNotRegular) {
		return Changed, nil
	}
	if err != nil {
		return Failed, err
	}
	if !same {
		return Changed, nil
	}
	switch err := d.remove(r.IP); {
	case errors.Is(err, fs.ErrNotExist): // somebody who takes no lock was faster
		return Gone, nil
	case err != nil:
		return Failed, err
	}
	return Released, nil
}

// holds reports whether the folder still has the very file that r was read from
// (R6). A file that was settled by then has its owner still if it has its change
// time, which spares an ADD that waits for the lock an open, a read and a close
// for each release. Of the others the owner is compared, too.
func (d *dir) holds(r *Reservation, buf []byte) (bool, error) {
	if r.settled {
		now, err := d.stat(r.IP)
		return r.is(now), err
	}
	now, content, err := d.look(r.IP, buf)
	if err != nil {
		return false, err
	}
	containerID, ifName, owner := parseOwner(content)
	return r.is(now) && owner == r.Owner && string(containerID) == r.ContainerID && string(ifName) == r.IfName, nil
}

// is compares the identity.
func (r *Reservation) is(now seen) bool {
	return now.ino == r.ino && now.changed == r.changed && now.size == r.size
}

func (s *Store) stopped(ctx context.Context, left int) error {
	return fmt.Errorf("releasing reservations in %s, with %d not tried: %w", s.dir(), left, ctx.Err())
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
