// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
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

// names calls found with the addresses of all reservations, in parts. The kernel
// tells the type beside each name, so this needs no stat.
func (d *dir) names(found func([]netip.Addr)) error {
	buf := make([]byte, 16<<10)
	ips := make([]netip.Addr, 0, len(buf)/32) // as many as fit with short names
	for {
		n, err := retry(func() (int, error) { return syscall.ReadDirent(d.fd, buf) })
		if err != nil {
			return os.NewSyscallError("getdents", err)
		}
		if n <= 0 {
			return nil
		}
		ips = ips[:0]
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
				ips = append(ips, ip)
			}
		}
		found(slices.Clone(ips)) // no larger than it has to be
	}
}

// read fills in r's identity and time, and returns what its file holds, as far as
// that fits buf.
func (d *dir) read(r *Reservation, buf []byte) ([]byte, error) {
	since := time.Now() // by the wall clock
	var st syscall.Stat_t
	fd, err := d.openFile(d.nameOf(r.IP), syscall.O_RDONLY, &st)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }() // only read from
	r.setStatus(&st)
	r.ctimeStable = ctimeStable(r.changed, since)
	n, err := retry(func() (int, error) { return syscall.Read(fd, buf) })
	if err != nil {
		return nil, os.NewSyscallError("read", err)
	}
	return buf[:n], nil
}

// stat fills in r's identity and time alone, with a single system call.
func (d *dir) stat(r *Reservation) error {
	var st syscall.Stat_t
	if err := d.fstatat(d.nameOf(r.IP), &st); err != nil {
		return err
	}
	r.setStatus(&st)
	return nil
}

func (r *Reservation) setStatus(st *syscall.Stat_t) {
	r.ino, r.changed, r.size = st.Ino, st.Ctim.Nano(), uint32(min(st.Size, maxOwner+1))
	r.ReservedAt = time.Unix(st.Mtim.Unix())
}

func isRegular(st *syscall.Stat_t) bool { return st.Mode&syscall.S_IFMT == syscall.S_IFREG }

// ctimeStable reports whether a file that was read after the time since can't
// change any more without its change time moving, because that is well before
// since. The kernel counts change times in ticks of up to 10 ms (before Linux
// 6.13), and some file systems keep whole seconds only: what looks like those
// never counts as stable.
func ctimeStable(changed int64, since time.Time) bool {
	const ticks = 100 * time.Millisecond
	return changed%int64(time.Second) != 0 && changed < since.Add(-ticks).UnixNano()
}

// nameOf returns the name of an address's file with a NUL at its end, in a buffer
// that d holds: as a string it would be allocated for each system call.
func (d *dir) nameOf(ip netip.Addr) []byte { return append(ip.AppendTo(d.name[:0]), 0) }

// openFile opens a regular file of the directory, and reads its status. No link
// is followed, and no pipe blocks.
func (d *dir) openFile(name []byte, flags int, st *syscall.Stat_t) (int, error) {
	flags |= syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	fd, err := d.openat(name, flags|d.noatime)
	if d.noatime != 0 && errors.Is(err, syscall.EPERM) {
		d.noatime = 0
		fd, err = d.openat(name, flags)
	}
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link; a socket
		return -1, errNotRegular
	}
	if err != nil {
		return -1, os.NewSyscallError("openat", err)
	}
	err = os.NewSyscallError("fstat", syscall.Fstat(fd, st))
	if err == nil && !isRegular(st) {
		err = errNotRegular
	}
	if err != nil {
		_ = syscall.Close(fd) // nothing was written through it
		return -1, err
	}
	return fd, nil
}

// openat is syscall.Openat without an allocation for the name.
func (d *dir) openat(name []byte, flags int) (int, error) {
	return retry(func() (int, error) {
		fd, _, errno := syscall.Syscall6(syscall.SYS_OPENAT, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), uintptr(flags), 0o750, 0, 0)
		return int(fd), asError(errno)
	})
}

// sysFstatat is the number of fstatat(2), for which package syscall has no name
// that all architectures share. It has none for these flags either.
var sysFstatat = map[string]uintptr{"amd64": 262, "arm64": 79, "riscv64": 79, "loong64": 79}[runtime.GOARCH]

const (
	symlinkNofollow = 0x100
	oPath           = 0x200000
)

// fstatat reads the status of a regular file. It follows no link. Where the number
// of the system call is not known a descriptor is opened that can't read.
func (d *dir) fstatat(name []byte, st *syscall.Stat_t) error {
	_, err := retry(func() (int, error) {
		if sysFstatat == 0 {
			fd, err := d.openat(name, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC)
			if err == nil {
				err = syscall.Fstat(fd, st)
				_ = syscall.Close(fd) // nothing was written through it
			}
			return 0, err
		}
		_, _, errno := syscall.Syscall6(sysFstatat, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(st)), symlinkNofollow, 0, 0)
		return 0, asError(errno)
	})
	if err == nil && !isRegular(st) {
		return errNotRegular
	}
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
