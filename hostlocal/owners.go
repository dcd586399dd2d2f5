// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"
	"time"
)

// ReadOwners reads the owner, the time and the rest of the identity of those
// reservations in rs for which wanted says so, and that are still Unread. What
// was replaced or went away since Scan is marked so and not mistaken for what
// was listed.
//
// Each costs an open, an fstat, a read and a close: of a pass's work on 65,536
// reservations the larger part, so ask only for what is needed. A wanted that is
// nil stands for all.
//
// name may be nil. Otherwise it turns a container ID that was read into a
// string: one that the caller has at hand spares an allocation. When it returns
// false the owner is of no interest, and the reservation stays Unread.
//
// Of many reservations two goroutines read, which takes half the time: then
// wanted, name and ctx are called from both at once.
//
// An error about one file leaves that reservation Unreadable and is returned
// under its index; err is about the folder or the context, and then owners that
// were not reached stay Unread.
func (s *Store) ReadOwners(ctx context.Context, rs []Reservation, wanted func(i int) bool,
	name func(containerID []byte) (string, bool),
) (failures map[int]error, err error) {
	if name == nil {
		name = func(containerID []byte) (string, bool) { return string(containerID), true }
	}
	var mu sync.Mutex // guards what is returned
	panicked := inBlocks(len(rs), func(take func() (from, to int)) {
		h := hand{name: name, buf: make([]byte, maxOwner+1)}
		defer h.close()
		failed, ended := h.read(ctx, s, rs, wanted, take)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			err = ended
		}
		if failures == nil {
			failures = failed
		} else {
			maps.Copy(failures, failed)
		}
	})
	if panicked != nil {
		err = errors.Join(err, fmt.Errorf("reading owners in %s: %w", s.dir(), panicked))
	}
	return failures, err
}

// A hand is what one goroutine reads owners with.
type hand struct {
	dir    *dir // opened for the first of them
	buf    []byte
	name   func(containerID []byte) (string, bool)
	since  time.Time // by the wall clock, before what is read now
	ifName string    // the last one: nearly all are eth0, and share one string
}

func (h *hand) close() {
	if h.dir != nil {
		h.dir.close()
	}
}

// read is ReadOwners for the blocks of rs that it takes.
func (h *hand) read(ctx context.Context, s *Store, rs []Reservation, wanted func(int) bool, take func() (from, to int)) (failures map[int]error, err error) {
	for from, to := take(); from < to; from, to = take() {
		h.since = time.Now()
		for i := from; i < to; i++ {
			r := &rs[i]
			if r.Owner != Unread || wanted != nil && !wanted(i) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return failures, fmt.Errorf("reading owners in %s: %w", s.dir(), err)
			}
			if h.dir == nil {
				h.dir, err = openDir(s.dir())
				if errors.Is(err, fs.ErrNotExist) {
					r.Owner = Vanished
					continue
				}
				if err != nil {
					return failures, fmt.Errorf("reading owners: %w", err)
				}
			}
			if err := h.owner(r); err != nil {
				if failures == nil {
					failures = make(map[int]error)
				}
				failures[i] = fmt.Errorf("reading the owner of %s: %w", s.path(r), err)
			}
		}
	}
	return failures, nil
}

// owner fills in r from its file.
func (h *hand) owner(r *Reservation) error {
	now, content, err := h.dir.look(r.IP, h.buf)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.Owner = Vanished
	case errors.Is(err, errNotRegular):
		r.Owner = Replaced
	case err != nil:
		r.Owner = Unreadable
		return err
	case r.ino != now.ino:
		r.Owner = Replaced
	default:
		id, inside, owner := parseOwner(content)
		if owner == Owned {
			wanted := false
			if r.ContainerID, wanted = h.name(id); !wanted {
				r.ContainerID = ""
				return nil
			}
			if string(inside) != h.ifName {
				h.ifName = string(inside)
			}
			r.IfName = h.ifName
		}
		r.Owner, r.ReservedAt = owner, now.modified
		r.ino, r.changed, r.size, r.settled = now.ino, now.changed, now.size, now.settled(h.since)
	}
	return nil
}

// seen is what look found: the file's identity and its modification time.
type seen struct {
	ino      uint64
	changed  int64
	size     uint32
	modified time.Time
}

// errNotRegular says that a name leads to something else than a regular file.
var errNotRegular = errors.New("not a regular file")
