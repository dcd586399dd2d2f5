// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// readMountedNetNS reads a namespace at its mount point below a process's root.
func (s *scan) readMountedNetNS(root int, m namespaceMount) error {
	where := "mounted at " + printable(m.point)
	ns, err := openMount(root, m)
	switch {
	case errors.Is(err, errHidden):
		return nil
	case err != nil:
		return s.noteUnreadable(m.inode, where, err)
	}
	defer func() { _ = unix.Close(ns) }() // nothing was written through it
	return s.readNetNS(ns, where)
}

var errHidden = errors.New("it is hidden by another mount")

// openMount opens a namespace at its mount point. It checks first that the namespace is
// not hidden: opening a pipe or a device there could block.
func openMount(root int, m namespaceMount) (ns int, err error) {
	fd, err := unix.Openat(root, "."+m.point, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return -1, errHidden
	}
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written through it
	var statfs unix.Statfs_t
	var stat unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &statfs), unix.Fstat(fd, &stat)); err != nil {
		return -1, err
	}
	if statfs.Type != unix.NSFS_MAGIC || stat.Ino != m.inode {
		return -1, errHidden
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// noteUnreadable notes a namespace that exists and can't be opened at its mount point,
// because a file system in its path refuses that, such as FUSE. It may still be found
// elsewhere. If this process lacks descriptors or memory, that is an error.
func (s *scan) noteUnreadable(inode uint64, where string, err error) error {
	for _, lack := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, lack) {
			return &namespaceError{inode, fmt.Errorf("opening it, %s: %w", where, err)}
		}
	}
	s.unreadable[inode] = podsource.Pod{}
	return nil
}

// readNetNSFile reads the namespace that a file of a thread opens.
func (s *scan) readNetNSFile(file, where string) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: file, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written through it
	return s.readNetNS(fd, where)
}

// readNetNS notes the addresses of a namespace, and where it was found.
func (s *scan) readNetNS(fd int, where string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("reading a network namespace %s: %w", where, err)
	}
	if s.found[stat.Ino] { // the thread has changed its namespace
		return nil
	}
	var ips []netip.Addr
	h, err := openNetlink(fd, s.setns)
	if err == nil {
		defer h.Close()
		if s.unaddressed != nil && stat.Ino != s.host {
			s.noteUnaddressed(stat.Ino, where, h.LinkList, h.AddrList)
		}
		ips, err = dump(h.AddrList)
	}
	return s.note(stat.Ino, where, ips, err)
}

func (s *scan) note(inode uint64, where string, ips []netip.Addr, err error) error {
	pod := podsource.Pod{IPs: ips, Origin: fmt.Sprintf("network namespace %d, %s", inode, where)}
	if inode == s.host {
		pod.HostNetwork, pod.Origin = true, "the node's own network namespace"
	}
	if errors.Is(err, podsource.ErrIncomplete) {
		s.unreadable[inode] = pod
		return nil
	}
	if err != nil {
		return &namespaceError{inode, err}
	}
	s.found[inode] = true
	if len(ips) > 0 {
		s.pods = append(s.pods, pod)
	}
	return nil
}

// all returns a pod for every namespace with an address, and says why that may not be
// all. Empty: it is all.
func (s *scan) all() (pods []podsource.Pod, missing string) {
	pods = s.pods
	if s.truncated {
		missing = "some process has more mounts than are read"
	}
	n := 0
	for _, inode := range slices.Sorted(maps.Keys(s.unreadable)) {
		if s.found[inode] { // elsewhere
			continue
		}
		n++
		missing = fmt.Sprintf("%d network namespaces could not be read, among them %d", n, inode)
		if p := s.unreadable[inode]; len(p.IPs) > 0 {
			pods = append(pods, p)
		}
	}
	if s.foundNew {
		missing = "new network namespaces appear faster than they are read"
	}
	return pods, missing
}

// A namespaceError is about a namespace that is open. So it exists, whatever the
// kernel's error is.
type namespaceError struct {
	inode uint64
	err   error
}

func (e *namespaceError) Error() string {
	return fmt.Sprintf("network namespace %d: %v", e.inode, e.err)
}
func (e *namespaceError) Unwrap() error { return e.err }
