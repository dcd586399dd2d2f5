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
	sortByIP(rs)
	return rs, nil
}

// sortByIP sorts by address. Reservations are large and mostly far from their
// place, so their order is found first, and then each is moved once.
func sortByIP(rs []Reservation) {
	order := make([]int32, len(rs))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return rs[a].IP.Compare(rs[b].IP) })
	for start := range order {
		if order[start] < 0 { // moved already
			continue
		}
		first := rs[start]
		at := start
		for {
			from := int(order[at])
			order[at] = -1
			if from == start {
				break
			}
			rs[at] = rs[from]
			at = from
		}
		rs[at] = first
	}
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
	failures, err := s.ReadOwners(ctx, rs, nil, nil)
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

func (s *Store) path(r *Reservation) string {
	return filepath.Join(s.dir(), string(appendName(nil, r.IP, colon)))
}
