// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
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

// dir is an open network folder. All that is done in it goes through its
// descriptor and a single name, so nothing outside of it can be reached, also
// when somebody renames the folder or swaps it for a link meanwhile (R7).
type dir struct {
	fd   int
	name [48]byte // the name that a system call works on; an IPv6 address has up to 39 characters
	// Reading a file would have its inode written, to note the time of access.
	// O_NOATIME spares the disk that, and is for the owner and for root: it is 0
	// from the first file on that is somebody else's.
	noatime int
}

func openDir(path string) (*dir, error) {
	fd, err := retry(func() (int, error) {
		return syscall.Open(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &dir{fd: fd, noatime: syscall.O_NOATIME}, nil
}

func (d *dir) close() { _ = syscall.Close(d.fd) } // nothing was written through it

// The head of linux_dirent64, getdents64(2): inode, offset, record length,
// type, and then the name, which ends with a NUL.
const (
	direntLen  = 16
	direntType = 18
	direntName = 19
)

// names returns the folder's reservations, in the order of the disk. The
// kernel tells inode and type beside each name, so this needs no stat.
func (d *dir) names() ([]Reservation, error) {
	// Collected packed, in chunks, and laid out once their number is known: a
	// slice that grows would cost several times as much. An entry is an inode,
	// the length of an address in bytes, and that address.
	const longest = 8 + 1 + 16
	var chunks [][]byte
	var chunk []byte
	total := 0
	buf := make([]byte, 16<<10)
	for {
		n, err := retry(func() (int, error) { return syscall.ReadDirent(d.fd, buf) })
		if err != nil {
			return nil, os.NewSyscallError("getdents", err)
		}
		if n <= 0 {
			break
		}
		for rest := buf[:n]; len(rest) > direntName; {
			size := int(binary.NativeEndian.Uint16(rest[direntLen:]))
			if size <= direntName || size > len(rest) {
				return nil, os.NewSyscallError("getdents", syscall.EIO)
			}
			entry := rest[:size]
			rest = rest[size:]
			if t := entry[direntType]; t != syscall.DT_REG && t != syscall.DT_UNKNOWN {
				continue
			}
			ip, ok := parseName(direntString(entry[direntName:]), colon)
			if !ok {
				continue
			}
			if cap(chunk)-len(chunk) < longest {
				chunks = append(chunks, chunk)
				chunk = make([]byte, 0, min(max(256, total), 4096)*longest)
			}
			total++
			chunk = append(chunk, entry[:8]...) // the inode
			chunk = append(chunk, byte(ip.BitLen()/8))
			chunk, _ = ip.AppendBinary(chunk) // never fails
		}
	}
	rs := make([]Reservation, 0, total)
	for _, chunk := range append(chunks, chunk) {
		for len(chunk) > 0 {
			end := 9 + int(chunk[8])
			ip, _ := netip.AddrFromSlice(chunk[9:end]) // is one: of 4 or of 16 bytes
			rs = append(rs, Reservation{IP: ip, ino: binary.NativeEndian.Uint64(chunk)})
			chunk = chunk[end:]
		}
	}
	return rs, nil
}

// direntString returns the name up to its NUL, as a string over the buffer
// itself: it is good only until the buffer is read into again, and saves an
// allocation a file.
func direntString(name []byte) string {
	for i, c := range name {
		if c == 0 {
			return unsafe.String(&name[0], i)
		}
	}
	return ""
}

// look reads a file's identity and content. No link is followed, no pipe
// blocks, and no more is read than fits buf.
func (d *dir) look(ip netip.Addr, buf []byte) (seen, []byte, error) {
	open := func() (int, error) {
		return d.openat(ip, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_CLOEXEC|d.noatime)
	}
	fd, err := retry(open)
	if d.noatime != 0 && errors.Is(err, syscall.EPERM) {
		d.noatime = 0
		fd, err = retry(open)
	}
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link; a socket
		return seen{}, nil, errNotRegular
	}
	if err != nil {
		return seen{}, nil, os.NewSyscallError("openat", err)
	}
	defer func() { _ = syscall.Close(fd) }() // only read from
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return seen{}, nil, os.NewSyscallError("fstat", err)
	}
	now, err := seenIn(&st)
	if err != nil {
		return seen{}, nil, err
	}
	n, err := retry(func() (int, error) { return syscall.Read(fd, buf) })
	if err != nil {
		return seen{}, nil, os.NewSyscallError("read", err)
	}
	return now, buf[:n], nil
}

// stat reads a file's identity alone, with a single system call.
func (d *dir) stat(ip netip.Addr) (seen, error) {
	var st syscall.Stat_t
	_, err := retry(func() (int, error) { return 0, d.fstatat(ip, &st) })
	if err != nil {
		return seen{}, os.NewSyscallError("fstatat", err)
	}
	return seenIn(&st)
}

func seenIn(st *syscall.Stat_t) (seen, error) {
	if st.Nlink == 0 { // removed since its name was looked up
		return seen{}, syscall.ENOENT
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return seen{}, errNotRegular
	}
	return seen{
		ino: st.Ino, changed: st.Ctim.Nano(), size: uint32(min(st.Size, maxOwner+1)),
		modified: time.Unix(st.Mtim.Unix()),
	}, nil
}

// settled reports whether a file that was read after a moment can't change any
// more without its change time moving, because that lies well before the moment.
// The kernel counts change times in ticks of up to 10 ms (before Linux 6.13),
// and some file systems keep whole seconds only: what looks like those never
// counts as settled.
func (s seen) settled(moment time.Time) bool {
	const ticks = 100 * time.Millisecond
	return sysFstatat != 0 && s.changed%int64(time.Second) != 0 && s.changed < moment.Add(-ticks).UnixNano()
}

// openat is syscall.Openat on a name that d holds the buffer for: that saves
// two allocations a file.
func (d *dir) openat(ip netip.Addr, flags int) (int, error) {
	name := append(appendName(d.name[:0], ip, colon), 0)
	fd, _, errno := syscall.Syscall6(syscall.SYS_OPENAT, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), uintptr(flags), 0, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// sysFstatat is the number of fstatat(2) where files need not be opened to be
// compared, and 0 elsewhere. Package syscall has no name for it that all
// architectures share, nor one for its flag.
var sysFstatat = map[string]uintptr{"amd64": 262, "arm64": 79}[runtime.GOARCH]

const symlinkNofollow = 0x100

func (d *dir) fstatat(ip netip.Addr, st *syscall.Stat_t) error {
	name := append(appendName(d.name[:0], ip, colon), 0)
	_, _, errno := syscall.Syscall6(sysFstatat, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(st)), symlinkNofollow, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// remove unlinks a file of the folder.
func (d *dir) remove(ip netip.Addr) error {
	name := append(appendName(d.name[:0], ip, colon), 0)
	_, _, errno := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), 0)
	if errno != 0 {
		return os.NewSyscallError("unlinkat", errno)
	}
	return nil
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
