// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
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
	if dataDir == "" {
		dataDir = DefaultDataDir
	}
	made := time.Now()
	s := &Store{dataDir: filepath.Clean(dataDir), now: func() (wall, lead time.Duration) {
		now := time.Now()
		wall = time.Duration(now.UnixNano())
		return wall, wall - now.Sub(made)
	}}
	s.last.Store(&memory{lead: time.Duration(made.UnixNano())})
	return s
}

// DataDir returns the path of the data directory.
func (s *Store) DataDir() string { return s.dataDir }

// open opens a network's directory. It follows no link in its place (R7).
func (s *Store) open(network string) (dir, error) {
	path := filepath.Join(s.dataDir, network)
	d, err := openDir(path)
	if err != nil {
		if info, e := os.Lstat(path); e == nil && info.Mode()&fs.ModeSymlink != 0 {
			return dir{}, linkError(path)
		}
	}
	return d, err
}

func linkError(path string) error {
	return fmt.Errorf("%s is a link to a directory, and links are not followed, so its reservations can't be read: "+
		"put the directory itself in its place (a bind mount will do), or remove the link", path)
}

// isMissing reports whether an error means that there is no such directory.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// filePath returns the path of a reservation's file, for errors.
func (s *Store) filePath(r *Reservation) string {
	return filepath.Join(s.dataDir, r.Network, r.IP.String())
}
