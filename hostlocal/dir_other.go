// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"time"
)

// colon is what host-local writes for ':' in a file's name here.
var colon = func() byte {
	if runtime.GOOS == "windows" {
		return '_'
	}
	return ':'
}()

// dir is an open network folder. An os.Root lets nothing lead out of it (R7).
// Here a file's identity is its size, its modification time and its owner: the
// standard library has no portable inode.
type dir struct {
	root *os.Root
}

func openDir(path string) (*dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &dir{root: root}, nil
}

func (d *dir) close() { _ = d.root.Close() } // nothing was written through it

// names returns the folder's reservations, in the order of the disk.
func (d *dir) names() (rs []Reservation, err error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if ip, ok := parseName(e.Name(), colon); ok && e.Type().IsRegular() {
			rs = append(rs, Reservation{IP: ip})
		}
	}
	return rs, nil
}

// look reads a file's identity and content. What is no regular file is not
// opened, and what was opened must be what was looked at before.
func (d *dir) look(ip netip.Addr, buf []byte) (seen, []byte, error) {
	name := string(appendName(nil, ip, colon))
	before, err := d.root.Lstat(name)
	if err != nil {
		return seen{}, nil, err
	}
	if !before.Mode().IsRegular() {
		return seen{}, nil, errNotRegular
	}
	f, err := d.root.Open(name)
	if err != nil {
		return seen{}, nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	now, err := f.Stat()
	if err != nil {
		return seen{}, nil, err
	}
	if !os.SameFile(before, now) {
		return seen{}, nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist} // the one looked at is gone
	}
	n, err := io.ReadFull(f, buf)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return seen{}, nil, err
	}
	return seen{
		changed: now.ModTime().UnixNano(), size: uint32(min(now.Size(), maxOwner+1)),
		modified: now.ModTime(),
	}, buf[:n], nil
}

// stat reads a file's identity alone.
func (d *dir) stat(ip netip.Addr) (seen, error) {
	now, _, err := d.look(ip, nil)
	return now, err
}

// settled is never so here: without inode and change time the owner has to be
// read again.
func (seen) settled(time.Time) bool { return false }

// remove unlinks a file of the folder.
func (d *dir) remove(ip netip.Addr) error { return d.root.Remove(string(appendName(nil, ip, colon))) }
