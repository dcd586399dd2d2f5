// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// colon is what host-local writes for ':' in a file's name here.
var colon = map[bool]byte{true: '_', false: ':'}[runtime.GOOS == "windows"]

// dir is a network directory. Here a file's identity is its size, its
// modification time and its owner: the standard library has no portable inode.
type dir struct{ path string }

func openDir(path string) (*dir, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}
	return &dir{path}, err
}

func (d *dir) close() {}

// names calls found with the addresses of all reservations.
func (d *dir) names(found func([]netip.Addr)) error {
	entries, err := os.ReadDir(d.path)
	var ips []netip.Addr
	for _, e := range entries {
		if ip, ok := parseName(e.Name(), colon); ok && e.Type().IsRegular() {
			ips = append(ips, ip)
		}
	}
	found(ips)
	return err
}

func (d *dir) file(ip netip.Addr) string { return filepath.Join(d.path, fileName(ip, colon)) }

// read fills in r's identity and time, and returns what its file holds, as far as
// that fits buf. What is no regular file is not opened, and what was opened must
// be what was looked at before. r's change time is never stable: without inode
// and change time the owner has to be read again.
func (d *dir) read(r *Reservation, buf []byte) ([]byte, error) {
	before, err := os.Lstat(d.file(r.IP))
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, errNotRegular
	}
	r.changed, r.size, r.ReservedAt = before.ModTime().UnixNano(), uint32(min(before.Size(), maxOwner+1)), before.ModTime()
	f, err := os.Open(d.file(r.IP))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	now, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(before, now) {
		return nil, fs.ErrNotExist // the one that was looked at is gone
	}
	return io.ReadAll(io.LimitReader(f, int64(len(buf))))
}

// stat fills in r's identity and time alone.
func (d *dir) stat(r *Reservation) error {
	_, err := d.read(r, nil)
	return err
}

// remove removes a file of the directory.
func (d *dir) remove(ip netip.Addr) error { return os.Remove(d.file(ip)) }
