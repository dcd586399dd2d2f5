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
	"syscall"
	"time"
)

// colon is what host-local writes for ':' in a file's name here.
var colon = map[bool]byte{true: '_', false: ':'}[runtime.GOOS == "windows"]

// dir is an open network directory. An os.Root lets nothing lead out of it (R7).
// Here a file's identity is its size, its modification time and its owner: the
// standard library has no portable inode.
type dir struct {
	path string
	root *os.Root
}

func openDir(path string) (*dir, error) {
	before, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	now, err := root.Stat(".")
	if err != nil || !os.SameFile(before, now) { // it is a link, or was replaced
		_ = root.Close() // nothing was written through it
		return nil, errors.Join(&fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}, err)
	}
	return &dir{path: path, root: root}, nil
}

func (d *dir) close() {
	if d != nil {
		_ = d.root.Close() // nothing was written through it
	}
}

// names calls found for each reservation, in the order of the disk.
func (d *dir) names(found func(netip.Addr)) error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read from
	entries, err := f.ReadDir(-1)
	for _, e := range entries {
		if ip, ok := parseName(e.Name(), colon); ok && e.Type().IsRegular() {
			found(ip)
		}
	}
	return err
}

// read reads a file's identity and content. What is no regular file is not
// opened, and what was opened must be what was looked at before.
func (d *dir) read(ip netip.Addr, buf []byte) (fileState, []byte, error) {
	name := string(appendName(nil, ip, colon))
	before, err := d.root.Lstat(name)
	if err == nil && !before.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return fileState{}, nil, err
	}
	f, err := d.root.Open(name)
	if err != nil {
		return fileState{}, nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	now, err := f.Stat()
	if err == nil && !os.SameFile(before, now) {
		err = fs.ErrNotExist // the one that was looked at is gone
	}
	if err != nil {
		return fileState{}, nil, err
	}
	n, err := io.ReadFull(f, buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return fileState{
		Identity: Identity{changed: now.ModTime().UnixNano(), size: uint32(min(now.Size(), maxOwner+1))},
		modified: now.ModTime(),
	}, buf[:n], err
}

// stat reads a file's identity alone.
func (d *dir) stat(ip netip.Addr) (fileState, error) {
	file, _, err := d.read(ip, nil)
	return file, err
}

// ctimeStable is never so here: without inode and change time the owner has to
// be read again.
func (Identity) ctimeStable(time.Time) bool { return false }

// remove unlinks a reservation's file.
func (d *dir) remove(ip netip.Addr) error { return d.root.Remove(string(appendName(nil, ip, colon))) }
