// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// DefaultDataDir is where host-local keeps its reservations unless its
// configuration says otherwise (plugins, backend/disk). An agent may see it
// mounted elsewhere.
const DefaultDataDir = "/var/lib/cni/networks"

// A Store is one network's folder of reservations. Its methods may be called
// from several goroutines at once, and other processes may be at work in the
// folder all the while (R12).
type Store struct {
	dataDir string
	network string
	turn    chan struct{} // holds a token while this process waits for, or holds, the lock
}

// New returns the store of one network. It checks the names and touches no
// disk: a folder that is missing now may come later.
//
// An empty dataDir stands for [DefaultDataDir]. The network's name must be one
// that the CNI spec allows, so it can't lead out of dataDir.
func New(dataDir, network string) (*Store, error) {
	if dataDir == "" {
		dataDir = DefaultDataDir
	}
	if !validName(network) {
		return nil, fmt.Errorf("network name %q: the CNI spec wants a letter or digit, "+
			"then letters, digits, '_', '.' or '-'", network)
	}
	return &Store{dataDir: filepath.Clean(dataDir), network: network, turn: make(chan struct{}, 1)}, nil
}

// Network returns the network's name.
func (s *Store) Network() string { return s.network }

// DataDir returns the folder that holds the network's folder.
func (s *Store) DataDir() string { return s.dataDir }

func (s *Store) dir() string { return filepath.Join(s.dataDir, s.network) }

// Networks returns the names of the networks that have a folder under dataDir,
// sorted. An empty dataDir stands for [DefaultDataDir]; a missing one has no
// networks.
func Networks(dataDir string) ([]string, error) {
	if dataDir == "" {
		dataDir = DefaultDataDir
	}
	entries, err := os.ReadDir(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing networks: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && validName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Scan returns the network's reservations by name alone, sorted by address:
// who holds them is Unread. It costs one read of the directory and takes no
// lock. A missing folder means that nothing is reserved, and nothing is
// created. Names that host-local would not have given are not reservations
// (R7), nor is anything that the directory says is no regular file.
func (s *Store) Scan(ctx context.Context) ([]Reservation, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listing reservations in %s: %w", s.dir(), err)
	}
	d, err := openDir(s.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing reservations: %w", err)
	}
	defer d.close()
	rs, err := d.names()
	if err != nil {
		return nil, fmt.Errorf("listing reservations in %s: %w", s.dir(), err)
	}
	slices.SortFunc(rs, func(a, b Reservation) int { return a.IP.Compare(b.IP) })
	return rs, nil
}

// List returns the network's reservations with their owners, sorted by
// address. It takes no lock and creates nothing.
//
// A reservation that went away meanwhile is left out. An error about one file
// does not hide the others: that reservation is Unreadable, and all such errors
// come joined beside the list. After any other error the list is nil.
func (s *Store) List(ctx context.Context) ([]Reservation, error) {
	rs, err := s.Scan(ctx)
	if err != nil {
		return nil, err
	}
	failures, err := s.ReadOwners(ctx, rs, func(int) bool { return true }, nil)
	if err != nil {
		return nil, err
	}
	rs = slices.DeleteFunc(rs, func(r Reservation) bool { return r.Owner == Vanished || r.Owner == Replaced })
	var errs []error
	for _, err := range failures {
		errs = append(errs, err)
	}
	return rs, errors.Join(errs...)
}

// ReadOwners reads the owner, the time and the rest of the identity of those
// reservations in rs for which wanted says so, and that are still Unread. What
// was replaced or went away since Scan is marked so and not mistaken for what
// was listed.
//
// Each costs an open, an fstat, a read and a close: of a pass's work on 65,536
// reservations the larger part, so ask only for what is needed.
//
// name may be nil. Otherwise it turns a container ID that was read into a
// string: one that the caller has at hand spares an allocation. When it returns
// false the owner is of no interest, and the reservation stays Unread.
//
// An error about one file leaves that reservation Unreadable and is returned
// under its index; err is about the folder or the context, and then owners that
// were not reached stay Unread.
func (s *Store) ReadOwners(ctx context.Context, rs []Reservation, wanted func(i int) bool,
	name func(containerID []byte) (string, bool),
) (failures map[int]error, err error) {
	var d *dir
	if name == nil {
		name = func(containerID []byte) (string, bool) { return string(containerID), true }
	}
	ifName := "" // the last one: nearly all are eth0, and share one string
	buf := make([]byte, maxOwner+1)
	for i := range rs {
		r := &rs[i]
		if r.Owner != Unread || !wanted(i) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return failures, fmt.Errorf("reading owners in %s: %w", s.dir(), err)
		}
		if d == nil {
			d, err = openDir(s.dir())
			if errors.Is(err, fs.ErrNotExist) {
				r.Owner = Vanished
				continue
			}
			if err != nil {
				return failures, fmt.Errorf("reading owners: %w", err)
			}
			defer d.close()
		}
		if err := d.readOwner(r, buf, name, &ifName); err != nil {
			if failures == nil {
				failures = make(map[int]error)
			}
			failures[i] = fmt.Errorf("reading the owner of %s: %w", s.path(r), err)
		}
	}
	return failures, nil
}

func (s *Store) path(r *Reservation) string {
	return filepath.Join(s.dir(), string(appendName(nil, r.IP, colon)))
}

// readOwner fills in r from its file.
func (d *dir) readOwner(r *Reservation, buf []byte, name func([]byte) (string, bool), ifName *string) error {
	now, content, err := d.look(r.IP, buf)
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
			if r.ContainerID, wanted = name(id); !wanted {
				r.ContainerID = ""
				return nil
			}
			if string(inside) != *ifName {
				*ifName = string(inside)
			}
			r.IfName = *ifName
		}
		r.Owner, r.ReservedAt, r.ino, r.changed, r.size = owner, now.modified, now.ino, now.changed, now.size
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
