// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// colon is what host-local writes for ':' in a file's name here.
const colon = ':'

// dir is an open network directory. All that is done in it goes through its
// descriptor and a single name, so nothing outside of it can be reached, also
// when somebody renames the directory or swaps it for a link meanwhile (R7).
type dir struct {
	fd   int
	name [48]byte // the name that a system call works on; an IPv6 address has up to 39 characters
	// Reading a file would have its inode written, to note the time of access.
	// O_NOATIME spares the disk that, and is for the owner and for root: it is 0
	// from the first file on that is somebody else's.
	noatime int
}

func openDir(path string) (*dir, error) {
	const flags = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC
	fd, err := retry(func() (int, error) { return syscall.Open(path, flags, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &dir{fd: fd, noatime: syscall.O_NOATIME}, nil
}

func (d *dir) close() {
	if d != nil {
		_ = syscall.Close(d.fd) // nothing was written through it
	}
}

// The head of linux_dirent64, getdents64(2): inode, offset, record length,
// type, and then the name, which ends with a NUL.
const (
	direntLen  = 16
	direntType = 18
	direntName = 19
)

// names calls found for each reservation, in the order of the disk. The kernel
// tells the type beside each name, so this needs no stat.
func (d *dir) names(found func(netip.Addr)) error {
	buf := make([]byte, 16<<10)
	for {
		n, err := retry(func() (int, error) { return syscall.ReadDirent(d.fd, buf) })
		if err != nil {
			return os.NewSyscallError("getdents", err)
		}
		if n <= 0 {
			return nil
		}
		for rest := buf[:n]; len(rest) > direntName; {
			size := int(binary.NativeEndian.Uint16(rest[direntLen:]))
			if size <= direntName || size > len(rest) {
				return os.NewSyscallError("getdents", syscall.EIO)
			}
			entry := rest[:size]
			rest = rest[size:]
			if t := entry[direntType]; t != syscall.DT_REG && t != syscall.DT_UNKNOWN {
				continue
			}
			// A string over the buffer itself saves an allocation a file.
			name, _, _ := bytes.Cut(entry[direntName:], []byte{0})
			if ip, ok := parseName(unsafe.String(unsafe.SliceData(name), len(name)), colon); ok {
				found(ip)
			}
		}
	}
}

// read reads a file's identity and content. No link is followed, no pipe
// blocks, and no more is read than fits buf.
func (d *dir) read(ip netip.Addr, buf []byte) (fileState, []byte, error) {
	const flags = syscall.O_RDONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	fd, err := d.openat(d.nameOf(ip), flags|d.noatime)
	if d.noatime != 0 && errors.Is(err, syscall.EPERM) {
		d.noatime = 0
		fd, err = d.openat(d.nameOf(ip), flags)
	}
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link; a socket
		return fileState{}, nil, errNotRegular
	}
	if err != nil {
		return fileState{}, nil, os.NewSyscallError("openat", err)
	}
	defer func() { _ = syscall.Close(fd) }() // only read from
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return fileState{}, nil, os.NewSyscallError("fstat", err)
	}
	file, err := stateOf(&st)
	if err != nil {
		return fileState{}, nil, err
	}
	n, err := retry(func() (int, error) { return syscall.Read(fd, buf) })
	if err != nil {
		return fileState{}, nil, os.NewSyscallError("read", err)
	}
	return file, buf[:n], nil
}

// stat reads a file's identity alone, with a single system call.
func (d *dir) stat(ip netip.Addr) (fileState, error) {
	var st syscall.Stat_t
	if err := d.fstatat(d.nameOf(ip), &st); err != nil {
		return fileState{}, err
	}
	return stateOf(&st)
}

func stateOf(st *syscall.Stat_t) (fileState, error) {
	if st.Nlink == 0 { // removed since its name was looked up
		return fileState{}, syscall.ENOENT
	}
	if !isRegular(st) {
		return fileState{}, errNotRegular
	}
	return fileState{
		Identity: Identity{ino: st.Ino, changed: st.Ctim.Nano(), size: uint32(min(st.Size, maxOwner+1))},
		modified: time.Unix(st.Mtim.Unix()),
	}, nil
}

func isRegular(st *syscall.Stat_t) bool { return st.Mode&syscall.S_IFMT == syscall.S_IFREG }

// ctimeStable reports whether a file that was read after the time since can't
// change any more without its change time moving, because that is well before
// since. The kernel counts change times in ticks of up to 10 ms (before Linux
// 6.13), and some file systems keep whole seconds only: what looks like those
// never counts as stable.
func (id Identity) ctimeStable(since time.Time) bool {
	const ticks = 100 * time.Millisecond
	return id.changed%int64(time.Second) != 0 && id.changed < since.Add(-ticks).UnixNano()
}

// nameOf returns the name of an address's file with a NUL at its end, in a
// buffer that d holds: package syscall would allocate twice for each file.
func (d *dir) nameOf(ip netip.Addr) []byte { return append(appendName(d.name[:0], ip, colon), 0) }

func (d *dir) openat(name []byte, flags int) (int, error) {
	return retry(func() (int, error) {
		fd, _, errno := syscall.Syscall6(syscall.SYS_OPENAT, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), uintptr(flags), 0, 0, 0)
		return int(fd), asError(errno)
	})
}

// sysFstatat is the number of fstatat(2) where it is known, and 0 elsewhere.
// Package syscall has no name for it that all architectures share, nor one for
// its flag, nor for O_PATH.
var sysFstatat = map[string]uintptr{"amd64": 262, "arm64": 79}[runtime.GOARCH]

const (
	symlinkNofollow = 0x100
	oPath           = 0x200000
)

// fstatat reads the status of what has a name, which ends with a NUL. It
// follows no link.
func (d *dir) fstatat(name []byte, st *syscall.Stat_t) error {
	if sysFstatat == 0 {
		fd, err := d.openat(name, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC)
		if err == nil {
			err = syscall.Fstat(fd, st)
			_ = syscall.Close(fd)
		}
		return os.NewSyscallError("fstatat", err)
	}
	_, err := retry(func() (int, error) {
		_, _, errno := syscall.Syscall6(sysFstatat, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(st)), symlinkNofollow, 0, 0)
		return 0, asError(errno)
	})
	return os.NewSyscallError("fstatat", err)
}

// remove unlinks a reservation's file.
func (d *dir) remove(ip netip.Addr) error {
	_, _, errno := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(d.fd), uintptr(unsafe.Pointer(&d.nameOf(ip)[0])), 0)
	return os.NewSyscallError("unlinkat", asError(errno))
}

// asError returns nil for 0, which as an error would not be nil.
func asError(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
