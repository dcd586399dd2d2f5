// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const (
	oPath   = 0x200000   // O_PATH, fcntl.h: the standard library does not name it
	nsfs    = 0x6e736673 // NSFS_MAGIC, linux/magic.h
	nsGetID = 0x8008b70d // NS_GET_ID, linux/nsfs.h
)

// A directory is one with network namespaces, as this process sees it now.
type directory struct {
	fd int
	Directory
	err error // it can't be opened
}

// openDirectory opens the directory of a path.
func openDirectory(path string) *directory {
	d := &directory{fd: -1}
	dir := filepath.Dir(filepath.Clean(path))
	if d.fd, d.err = syscall.Open(dir, oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0); d.err != nil {
		d.err = &os.PathError{Op: "open", Path: dir, Err: d.err}
		return d
	}
	stat, fs, err := identify(d.fd)
	d.err = err
	d.Directory = Directory{uint64(stat.Dev), stat.Ino, fsID(uint64(stat.Dev), fs.Fsid)}
	return d
}

// fsID returns the ID of a file system that is on a device.
func fsID(dev uint64, id syscall.Fsid) uint64 {
	n := uint64(uint32(id.X__val[1]))<<32 | uint64(uint32(id.X__val[0]))
	// Some file systems without a device make their ID of the number that stands for
	// one, which the next file system gets (fs/libfs.c, simple_statfs).
	if major := dev >> 8 & 0xfff; major == 0 && n == dev {
		return 0
	}
	return n
}

func (d *directory) close() { _ = syscall.Close(d.fd) } // nothing was written through it, and -1 is nobody's

func identify(fd int) (stat syscall.Stat_t, fs syscall.Statfs_t, err error) {
	if err := syscall.Fstat(fd, &stat); err != nil {
		return stat, fs, os.NewSyscallError("fstat", err)
	}
	return stat, fs, os.NewSyscallError("fstatfs", syscall.Fstatfs(fd, &fs))
}

// look returns the identity of the namespace that is mounted at path itself.
// There is none to be taken of anything else. A mount that is not passed on to
// this mount namespace is an empty file here. A link is not followed: those in
// /proc end with a process, and not with its namespace.
func look(path string) (NetNS, error) {
	d := openDirectory(path)
	defer d.close()
	return d.look(path)
}

// look is look of a path in d.
func (d *directory) look(path string) (NetNS, error) {
	fd, err := syscall.Openat(d.fd, filepath.Base(path), oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return NetNS{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = syscall.Close(fd) }() // nothing was written through it
	stat, fs, err := identify(fd)
	if err != nil {
		return NetNS{}, err
	}
	if int64(fs.Type) != nsfs {
		return NetNS{}, fmt.Errorf("no namespace is mounted at %s", path)
	}
	return NetNS{Path: path, Dev: uint64(stat.Dev), Inode: stat.Ino, ID: namespaceID(fd), Dir: d.Directory}, nil
}

// namespaceID returns the ID of a namespace that is open with O_PATH, or zero
// where the kernel does not tell.
func namespaceID(fd int) (id uint64) {
	again, _ := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", fd), syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	defer func() { _ = syscall.Close(again) }() // nothing was written through it
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, uintptr(again), nsGetID, uintptr(unsafe.Pointer(&id)))
	return id
}

// goneOf reports of each namespace whether it is surely gone. That it can't be
// seen here is not enough: this process may not see what the one saw that recorded
// it. It is gone if nothing is at its path, or another namespace, in the very
// directory in which it was recorded. A directory is shown to be that one by its
// file system's ID, or by another recorded namespace that is in it.
//
// Where none of them can be seen, and no directory is shown to be the one that was
// recorded, nothing here need be the node's, and it is podsource.ErrIncomplete
// (hazard 50).
func goneOf(ctx context.Context, all []NetNS) (gone []bool, err error) {
	v := view{make(map[string]*directory), make(map[Directory]bool), false}
	defer v.close()
	unseen := make([]error, len(all)) // why
	gone = make([]bool, len(all))
	for i, n := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if n.Inode != 0 && n.Dir.Inode != 0 {
			gone[i], unseen[i] = v.look(n)
		}
	}
	var why error
	for i, n := range all {
		gone[i] = gone[i] && v.shown[n.Dir]
		if why == nil && unseen[i] != nil && !v.shown[n.Dir] {
			why = unseen[i]
		}
	}
	if why != nil && !v.right {
		return nil, fmt.Errorf("%w: none of the recorded network namespaces is seen here (%v); "+
			"mount the node's directory with all that is mounted in it (hostPath, mountPropagation HostToContainer), "+
			"or remove the attachments if their containers have ended", podsource.ErrIncomplete, why)
	}
	return gone, nil
}

// A view is what this process sees of the directories that were recorded.
type view struct {
	dirs  map[string]*directory // by path
	shown map[Directory]bool    // to be those that were recorded
	right bool                  // something recorded is seen
}

func (v *view) close() {
	for _, d := range v.dirs {
		d.close()
	}
}

// look reports whether a namespace is not at its path any more, if the directory is
// shown to be the one that was recorded; and else why it is not seen, if it is not.
func (v *view) look(n NetNS) (gone bool, unseen error) {
	path := filepath.Dir(filepath.Clean(n.Path))
	d, ok := v.dirs[path]
	if !ok {
		d = openDirectory(n.Path)
		v.dirs[path] = d
	}
	now, err := d.look(n.Path)
	if n.is(now) { // which is zero beside an error
		v.shown[d.Directory], v.right = true, true
		return false, nil
	}
	switch {
	case d.err != nil:
		return false, d.err
	case d.Directory != n.Dir:
		return false, fmt.Errorf("%s is not the directory that was recorded, but another one", path)
	case d.FS != 0:
		v.shown[d.Directory], v.right = true, true
	}
	if err == nil {
		return true, fmt.Errorf("%s holds another namespace", n.Path)
	}
	return errors.Is(err, syscall.ENOENT), err
}
