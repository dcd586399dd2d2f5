// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"hash/maphash"
	"path/filepath"
	"sync/atomic"
	"time"
)

// DefaultDataDir is where host-local keeps its reservations unless its
// configuration says otherwise (plugins, backend/disk). An agent may see it
// mounted elsewhere.
const DefaultDataDir = "/var/lib/cni/networks"

// A Store is a data directory of host-local, with one directory for each
// network. Its methods may be called from several goroutines at once, and other
// processes may change the directories at any time (R12).
type Store struct {
	dataDir string
	// now returns the wall clock's time since 1970, and by how much that is more than the monotonic
	// clock's since the store was made: a step of the wall clock, or a sleep, changes it.
	now  func() (wall, lead time.Duration)
	last atomic.Pointer[memory] // of the last List
}

// New returns the store of a data directory. An empty dataDir is [DefaultDataDir]. New does
// not access the disk; the directory need not exist yet.
func New(dataDir string) *Store {
	made := time.Now()
	s := &Store{dataDir: filepath.Clean(cmp.Or(dataDir, DefaultDataDir)), now: func() (wall, lead time.Duration) {
		now := time.Now()
		wall = time.Duration(now.UnixNano())
		return wall, wall - now.Sub(made)
	}}
	s.last.Store(&memory{lead: time.Duration(made.UnixNano()), seed: maphash.MakeSeed()})
	return s
}

// DataDir returns the path of the data directory.
func (s *Store) DataDir() string { return s.dataDir }

// open opens a network's directory. It follows no link in its place (R7).
func (s *Store) open(network string) (dir, error) { return openDir(filepath.Join(s.dataDir, network)) }

// filePath returns the path of a reservation's file, for errors.
func (s *Store) filePath(r *Reservation) string {
	return filepath.Join(s.dataDir, r.Network, r.IP.String())
}
