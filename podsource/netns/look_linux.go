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

// lookAtMount looks at the namespace that should be mounted there, as seen from a
// process's root.
func (s *scan) lookAtMount(root int, m namespaceMount) error {
	where := "mounted at " + printable(m.point)
	ns, err := openMount(root, m)
	switch {
	case errors.Is(err, errHidden):
		return nil
	case err != nil:
		return s.notSeen(m.inode, where, err)
	}
	defer func() { _ = unix.Close(ns) }() // nothing was written through it
	return s.lookInto(ns, where)
}

var errHidden = errors.New("something else is in its place")

// openMount opens a namespace where it should be mounted. It is opened only after it is
// known not to be hidden: others could have put a pipe there, or a device.
func openMount(root int, m namespaceMount) (ns int, err error) {
	fd, err := unix.Openat(root, "."+m.point, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return -1, errHidden
	}
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written through it
	var on unix.Statfs_t
	var stat unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &on), unix.Fstat(fd, &stat)); err != nil {
		return -1, err
	}
	if on.Type != unix.NSFS_MAGIC || stat.Ino != m.inode {
		return -1, errHidden
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// notSeen notes a namespace that is there, and that can't be reached where it is
// mounted: the file system on the way does not answer, or not to us, as on FUSE.
// It may yet be found elsewhere. An error is returned if this process lacks what
// it takes.
func (s *scan) notSeen(inode uint64, where string, err error) error {
	for _, lack := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, lack) {
			return &namespaceError{inode, fmt.Errorf("opening it, %s: %w", where, err)}
		}
	}
	s.unseen[inode] = podsource.Pod{}
	return nil
}

// lookAt looks into the namespace that a file of a thread shows.
func (s *scan) lookAt(file, where string) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: file, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written through it
	return s.lookInto(fd, where)
}

// lookInto notes the addresses of a namespace, and where it was found.
func (s *scan) lookInto(fd int, where string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("looking at a namespace %s: %w", where, err)
	}
	if s.found[stat.Ino] { // the thread went elsewhere meanwhile
		return nil
	}
	var ips []netip.Addr
	h, err := inside(fd, s.setns)
	if err == nil {
		defer h.Close()
		if s.bare != nil {
			s.noteBare(stat.Ino, where, h.LinkList, h.AddrList)
		}
		ips, err = dump(h.AddrList)
	}
	return s.note(stat.Ino, where, ips, err)
}

func (s *scan) note(inode uint64, where string, ips []netip.Addr, err error) error {
	pod := podsource.Pod{IPs: ips, Origin: fmt.Sprintf("network namespace %d, %s", inode, where)}
	if errors.Is(err, podsource.ErrIncomplete) {
		s.unseen[inode] = pod
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

// all returns every namespace with an address, and what is missing in that: empty
// is nothing.
func (s *scan) all() (pods []podsource.Pod, missing string) {
	pods = s.pods
	if s.truncated {
		missing = "some process has more mounts than are read"
	}
	unseen := 0
	for _, inode := range slices.Sorted(maps.Keys(s.unseen)) {
		if s.found[inode] { // elsewhere
			continue
		}
		unseen++
		missing = fmt.Sprintf("%d network namespaces could not be looked into, among them %d", unseen, inode)
		if p := s.unseen[inode]; len(p.IPs) > 0 {
			pods = append(pods, p)
		}
	}
	if s.restless {
		missing = "network namespaces come faster than they are looked at"
	}
	return pods, missing
}

// A namespaceError is about a namespace that is there: it is open. No error of
// the kernel's, whichever, means then that it is gone.
type namespaceError struct {
	inode uint64
	err   error
}

func (e *namespaceError) Error() string {
	return fmt.Sprintf("network namespace %d: %v", e.inode, e.err)
}
func (e *namespaceError) Unwrap() error { return e.err }
