// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"io/fs"
	"math"
	"os"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// dir is a network directory. On these platforms, where no node runs, a file's identity is its size,
// modification time and owner, because the standard library has no portable inode.
type dir struct{ *os.Root }

func openDir(path string) (dir, error) {
	root, err := os.OpenRoot(path)
	return dir{root}, err
}

// list returns the addresses of the regular files in the directory.
func (d dir) list() (ips addresses, err error) {
	entries, err := fs.ReadDir(d.FS(), ".")
	for _, e := range entries {
		if ip, ok := parseName(e.Name()); ok && e.Type().IsRegular() {
			ips.add(ip)
		}
	}
	return ips, err
}

// read sets the identity and time of r, and returns the content of its file.
func (d dir) read(r *Reservation, _ []byte) (string, error) {
	if err := d.status(r); err != nil {
		return "", err
	}
	content, err := fs.ReadFile(d.FS(), r.IP.String())
	return string(content), err
}

// status sets the identity and time of r, as far as possible.
func (d dir) status(r *Reservation) error {
	info, err := d.Lstat(r.IP.String())
	if err != nil {
		return err
	}
	r.ReservedAt, r.changed, r.size = info.ModTime(), info.ModTime().UnixNano(), uint16(min(info.Size(), math.MaxUint16))
	if !info.Mode().IsRegular() {
		err = errNotRegular
	}
	return err
}

// remove removes the file of a reservation.
func (d dir) remove(r *Reservation) error { return d.Remove(r.IP.String()) }

// fileLock is the plugin's lock on a network's directory, taken by its own code.
type fileLock struct{ *disk.FileLock }

// lock takes the plugin's lock. The only way to wait is a system call that can't be
// interrupted. A caller that can't wait leaves it to a goroutine, as package gc does.
func (d dir) lock() (*fileLock, error) {
	l, err := disk.NewFileLock(d.Name())
	if err == nil {
		err = l.Lock()
	}
	return &fileLock{l}, err
}

// check does nothing: the plugin's lock does not show its file (hazard 47).
func (*fileLock) check() error { return nil }

func (l *fileLock) unlock() error { return l.Close() } // which unlocks, too
