// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"cmp"
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

// dir is an open network directory. Here a file's identity is its size, its
// modification time and its owner: the standard library has no portable inode.
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

// list returns the addresses that regular files of the directory are named by.
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

// read fills in r's identity and time, and returns what its file holds, as far as
// that fits buf. What is no regular file is not opened, and what was opened must
// be what was looked at before.
func (d dir) read(r *Reservation, buf []byte) ([]byte, error) {
	before, err := os.Lstat(d.file(r))
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, errNotRegular
	}
	r.identity, r.ReservedAt = Identity{0, before.ModTime().UnixNano(), before.Size()}, before.ModTime()
	f, err := os.Open(d.file(r))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	if now, err := f.Stat(); err != nil || !os.SameFile(before, now) {
		return nil, cmp.Or(err, fs.ErrNotExist) // the one that was looked at is gone
	}
	return io.ReadAll(io.LimitReader(f, int64(len(buf))))
}

// stat fills in r's identity and time alone, as far as it can.
func (d dir) stat(r *Reservation) { _, _ = d.read(r, nil) }

// remove removes a reservation's file.
func (d dir) remove(r *Reservation) error { return os.Remove(d.file(r)) }
