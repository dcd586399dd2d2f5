// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// colon is the character that host-local writes for ':' in file names on this platform.
var colon = map[bool]byte{true: '_', false: ':'}[runtime.GOOS == "windows"]

// dir is an open network directory. On these platforms a file's identity is its size,
// modification time and owner, because the standard library has no portable inode.
type dir struct{ *os.File }

func openDir(path string) (dir, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return dir{}, err
	}
	f, err := os.Open(path)
	return dir{f}, err
}

// list returns the addresses of the regular files in the directory.
func (d dir) list() (ips []netip.Addr, err error) {
	entries, err := d.ReadDir(-1)
	for _, e := range entries {
		if ip, ok := parseName(e.Name(), colon); ok && e.Type().IsRegular() {
			ips = append(ips, ip)
		}
	}
	return ips, err
}

func (d dir) file(r *Reservation) string { return filepath.Join(d.Name(), fileName(r.IP, colon)) }

// read sets the identity and time of r, and returns the content of its file, cut to the
// length of buf. It opens only a regular file, and checks that the open file is the one
// that Lstat described.
func (d dir) read(r *Reservation, buf []byte) (string, error) {
	before, err := os.Lstat(d.file(r))
	if err != nil {
		return "", err
	}
	if !before.Mode().IsRegular() {
		return "", errNotRegular
	}
	r.identity, r.ReservedAt = identity{0, before.ModTime().UnixNano(), before.Size(), 0}, before.ModTime()
	f, err := os.Open(d.file(r))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read from
	if now, err := f.Stat(); err != nil || !os.SameFile(before, now) {
		return "", cmp.Or(err, fs.ErrNotExist) // the file that Lstat described is gone
	}
	content, err := io.ReadAll(io.LimitReader(f, int64(len(buf))))
	return string(content), err
}

// status sets the identity and time of r, as far as possible.
func (d dir) status(r *Reservation) error {
	_, err := d.read(r, nil)
	return err
}

// remove removes the file of a reservation.
func (d dir) remove(r *Reservation) error { return os.Remove(d.file(r)) }

// fileLock is the plugin's lock on a network's directory, taken by its own code.
type fileLock struct{ *disk.FileLock }

// lock takes the plugin's lock. The only way to wait is a system call that can't be
// interrupted. A caller that can't wait leaves it to a goroutine, as package gc does.
func (d dir) lock() (*fileLock, error) {
	l, err := disk.NewFileLock(d.Name())
	if err == nil {
		if err = l.Lock(); err != nil {
			err = errors.Join(err, l.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return &fileLock{l}, nil
}

// check does nothing. Windows does not remove an open file. The other systems do
// (hazard 47), but no node runs on them.
func (*fileLock) check() error { return nil }

func (l *fileLock) unlock() error { return l.Close() } // which unlocks, too
