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
	oPath   = 0x200000   // O_PATH, fcntl.h: not in the standard library
	nsfs    = 0x6e736673 // NSFS_MAGIC, linux/magic.h
	nsGetID = 0x8008b70d // NS_GET_ID, linux/nsfs.h
)

// A directory is a directory of network namespaces, as this process sees it now.
type directory struct {
	fd int
	Directory
	err error // of opening it
}

// openDirectory opens the parent directory of a path.
func openDirectory(path string) *directory {
	d := new(directory)
	dir := filepath.Dir(filepath.Clean(path))
	if d.fd, d.err = syscall.Open(dir, oPath|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0); d.err != nil {
		d.fd = -1 // it is zero, the standard input, for a path with a zero byte
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
	// Some file systems without a device use their anonymous device number as ID. The
	// kernel gives that number to another file system later (fs/libfs.c,
	// simple_statfs).
	if major := dev >> 8 & 0xfff; major == 0 && n == dev {
		return 0
	}
	return n
}

func (d *directory) close() { _ = syscall.Close(d.fd) } // nothing was written through it; -1 is harmless

func identify(fd int) (stat syscall.Stat_t, fs syscall.Statfs_t, err error) {
	if err := syscall.Fstat(fd, &stat); err != nil {
		return stat, fs, os.NewSyscallError("fstat", err)
	}
	return stat, fs, os.NewSyscallError("fstatfs", syscall.Fstatfs(fd, &fs))
}

// readNetNS returns the identity of the network namespace that is mounted at path.
// Anything else at path is an error: a mount that is not propagated to this mount
// namespace is an empty file here, and links are not followed, since a link in /proc
// ends with its process and not with the namespace.
func readNetNS(path string) (NetNS, error) {
	d := openDirectory(path)
	defer d.close()
	return d.readNetNS(path)
}

// readNetNS is like the function readNetNS, for a path in d.
func (d *directory) readNetNS(path string) (NetNS, error) {
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

// namespaceID returns the ID of a namespace that is open with O_PATH, or zero if the
// kernel has no IDs.
func namespaceID(fd int) (id uint64) {
	again, _ := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", fd), syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	defer func() { _ = syscall.Close(again) }() // nothing was written through it
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, uintptr(again), nsGetID, uintptr(unsafe.Pointer(&id)))
	return id
}

// goneOf reports for each namespace whether it has certainly ended. That its mount is
// not seen is not enough: this process may be in another mount namespace than the
// process that recorded it. It has ended if its path does not exist, or has another
// namespace, in the recorded directory. The file system's ID confirms that a directory
// is the recorded one, and so does another recorded namespace in it.
//
// If no recorded namespace is seen and no directory is confirmed, this process may see
// none of the node's mounts, and the error is podsource.ErrIncomplete (hazard 50).
func goneOf(ctx context.Context, all []NetNS) (gone []bool, err error) {
	dirs := directories{byPath: make(map[string]*directory), confirmed: make(map[Directory]bool)}
	defer dirs.close()
	unseen := make([]error, len(all)) // why each is not seen
	gone = make([]bool, len(all))
	for i, n := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if n.Inode != 0 && n.Dir.Inode != 0 {
			gone[i], unseen[i] = dirs.check(n)
		}
	}
	var why error
	for i, n := range all {
		gone[i] = gone[i] && dirs.confirmed[n.Dir]
		if why == nil && unseen[i] != nil && !dirs.confirmed[n.Dir] {
			why = unseen[i]
		}
	}
	if why != nil && !dirs.anyConfirmed {
		return nil, fmt.Errorf("%w: this process sees none of the recorded network namespaces (%v); "+
			"mount the node's directory with the mounts in it (hostPath, mountPropagation HostToContainer), "+
			"or remove the attachments if their containers have ended", podsource.ErrIncomplete, why)
	}
	return gone, nil
}

// directories are the directories of recorded namespaces, as this process sees them.
type directories struct {
	byPath       map[string]*directory
	confirmed    map[Directory]bool // known to be the recorded ones
	anyConfirmed bool
}

func (v *directories) close() {
	for _, d := range v.byPath {
		d.close()
	}
}

// check reports whether a namespace is not at its path any more, provided that its
// directory is confirmed, and why it is not seen. unseen is nil if it is seen.
func (v *directories) check(n NetNS) (gone bool, unseen error) {
	path := filepath.Dir(filepath.Clean(n.Path))
	d, ok := v.byPath[path]
	if !ok {
		d = openDirectory(n.Path)
		v.byPath[path] = d
	}
	now, err := d.readNetNS(n.Path)
	if n.is(now) { // after an error now is zero
		v.confirmed[d.Directory], v.anyConfirmed = true, true
		return false, nil
	}
	switch {
	case d.err != nil:
		return false, d.err
	case d.Directory != n.Dir:
		return false, fmt.Errorf("%s is another directory than the recorded one", path)
	case d.FS != 0:
		v.confirmed[d.Directory], v.anyConfirmed = true, true
	}
	if err == nil {
		return true, fmt.Errorf("another namespace is mounted at %s", n.Path)
	}
	return errors.Is(err, syscall.ENOENT), err
}
