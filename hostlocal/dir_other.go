// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hostlocal

import (
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
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

// names calls found for each reservation, in the order of the disk.
func (d *dir) names(found func(netip.Addr)) error {
	entries, err := os.ReadDir(d.path)
	for _, e := range entries {
		if ip, ok := parseName(e.Name(), colon); ok && e.Type().IsRegular() {
			found(ip)
		}
	}
	return err
}

func (d *dir) file(ip netip.Addr) string {
	return filepath.Join(d.path, string(appendName(nil, ip, colon)))
}

// read reads a file's identity and content. What is no regular file is not
// opened, and what was opened must be what was looked at before.
func (d *dir) read(ip netip.Addr, buf []byte) (state fileState, content []byte, err error) {
	before, err := os.Lstat(d.file(ip))
	if err == nil && !before.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return state, nil, err
	}
	f, err := os.Open(d.file(ip))
	if err != nil {
		return state, nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	now, err := f.Stat()
	if err == nil && !os.SameFile(before, now) {
		err = fs.ErrNotExist // the one that was looked at is gone
	}
	if err != nil {
		return state, nil, err
	}
	n, err := io.ReadFull(f, buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	state.changed, state.size = now.ModTime().UnixNano(), uint32(min(now.Size(), maxOwner+1))
	state.modified = now.ModTime()
	return state, buf[:n], err
}

// stat reads a file's identity alone.
func (d *dir) stat(ip netip.Addr) (fileState, error) {
	state, _, err := d.read(ip, nil)
	return state, err
}

// ctimeStable is never so here: without inode and change time the owner has to
// be read again.
func (Identity) ctimeStable(time.Time) bool { return false }

// remove removes a file of the directory.
func (d *dir) remove(ip netip.Addr) error { return os.Remove(d.file(ip)) }
