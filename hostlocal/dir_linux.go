// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dir is an open network directory. Files in it are opened, created and removed by its
// descriptor and a single name. So nothing outside of it can be reached, even if the
// directory is renamed or replaced by a link in the meantime (R7).
type dir struct{ *os.File }

func openDir(path string) (dir, error) {
	f, err := os.OpenFile(path, syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	return dir{f}, err
}

// list returns the addresses of the regular files in the directory. os.File.ReadDir
// would allocate twice for each name.
func (d dir) list() (ips addresses, err error) {
	buf := make([]byte, 4<<10)
	if info, err := d.Stat(); err == nil { // most file systems use at least 20 bytes per entry
		ips.v4 = make([][4]byte, 0, min(info.Size()/20, 1<<16))
	}
	for {
		n, err := retry(func() (int, error) { return syscall.ReadDirent(int(d.Fd()), buf) })
		if n <= 0 { // -1 with an error
			return ips, os.NewSyscallError("getdents64", err)
		}
		d.addRegular(&ips, buf[:n])
	}
}

// addRegular adds the addresses of the regular files among entries, which have the
// format of getdents64(2): the length of an entry is at byte 16, its type at byte 18, and
// its name, which ends with a zero byte, begins at byte 19. Some file systems report no types.
func (d dir) addRegular(ips *addresses, entries []byte) {
	for ; len(entries) > 0; entries = entries[binary.NativeEndian.Uint16(entries[16:]):] {
		name, _, _ := bytes.Cut(entries[19:], []byte{0})
		ip, ok := parseName(unsafe.String(unsafe.SliceData(name), len(name)))
		if typ := entries[18]; ok && (typ == unix.DT_REG || typ == unix.DT_UNKNOWN && !errors.Is(d.status(&Reservation{IP: ip}), errNotRegular)) {
			ips.add(ip)
		}
	}
}

// read sets the identity and time of r, and returns the content of its file, cut to the
// length of buf, which holds it: it is valid until buf is used again.
func (d dir) read(r *Reservation, buf []byte) (string, error) {
	var name [64]byte // on the stack
	fd, err := d.openFile(append(r.IP.AppendTo(name[:0]), 0), syscall.O_RDONLY, r)
	if err != nil {
		return "", err
	}
	defer func() { _ = syscall.Close(fd) }() // only read from
	n, err := retry(func() (int, error) { return syscall.Read(fd, buf) })
	return unsafe.String(unsafe.SliceData(buf), max(0, n)), os.NewSyscallError("read", err)
}

// status sets the identity and time of r, whose file it does not open.
func (d dir) status(r *Reservation) error {
	var name [64]byte // on the stack
	return d.statusOf(string(r.IP.AppendTo(name[:0])), r)
}

// statusOf sets the identity and time of r to those of a regular file of the directory. It follows no link.
func (d dir) statusOf(name string, r *Reservation) error {
	var st unix.Stat_t
	_, err := retry(func() (int, error) { return 0, unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return r.setStatus(&st, os.NewSyscallError("fstatat", err))
}

// setStatus sets the identity and time of r to those of a regular file, whose status was read with this error.
func (r *Reservation) setStatus(st *unix.Stat_t, err error) error {
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errNotRegular
	}
	r.ino, r.changed, r.size, r.dev = st.Ino, st.Ctim.Nano(), uint16(min(st.Size, math.MaxUint16)), uint32(st.Dev)
	r.ReservedAt = time.Unix(st.Mtim.Unix())
	return nil
}

// openFile opens a regular file of the directory, and sets the identity and time of r to its own. It follows
// no link, and a pipe does not block it. The name must end with a zero byte.
func (d dir) openFile(name []byte, flags int, r *Reservation) (int, error) {
	flags |= syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC | syscall.O_LARGEFILE
	fd, err := d.at(syscall.SYS_OPENAT, name, flags, 0o750)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link; a socket
		return -1, errNotRegular
	}
	if err != nil {
		return -1, os.NewSyscallError("openat", err)
	}
	var st unix.Stat_t
	if err = r.setStatus(&st, os.NewSyscallError("fstat", unix.Fstat(fd, &st))); err != nil {
		_ = syscall.Close(fd) // nothing was written through it
	}
	return fd, err
}

// remove unlinks the file of a reservation.
func (d dir) remove(r *Reservation) error {
	var name [64]byte // on the stack
	_, err := d.at(syscall.SYS_UNLINKAT, append(r.IP.AppendTo(name[:0]), 0), 0, 0)
	return os.NewSyscallError("unlinkat", err)
}

// at makes a system call about a name in the directory, which must end with a zero byte. Package
// syscall would copy each name.
func (d dir) at(call uintptr, name []byte, flags int, mode uintptr) (int, error) {
	return retry(func() (int, error) {
		n, _, errno := syscall.Syscall6(call, d.Fd(), uintptr(unsafe.Pointer(&name[0])), uintptr(flags), mode, 0, 0)
		if errno != 0 {
			return -1, errno
		}
		return int(n), nil
	})
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
