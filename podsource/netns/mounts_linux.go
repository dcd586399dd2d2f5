// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A namespaceMount is the mount of a network namespace.
type namespaceMount struct {
	inode uint64
	point string // absolute
}

// unescape decodes the kernel's escapes in a mount point (show_mountinfo in its
// fs/proc_namespace.c).
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// namespaceMounts returns all mounts of network namespaces in a mountinfo file
// (proc(5)), or an error (R2). A line may have any length. Package mountinfo of moby
// fails for one of more than 64 KiB (bufio.Scanner), which a tenant can make.
//
//	36 24 0:4 net:[4026532255] /run/netns/web rw shared:9 - nsfs nsfs rw
func namespaceMounts(text []byte) (mounts []namespaceMount, err error) {
	for line := range bytes.Lines(text) {
		before, after, ok := bytes.Cut(line, []byte(" - "))
		if ok && !bytes.HasPrefix(after, []byte("nsfs ")) {
			continue
		}
		fields := strings.Split(string(before), " ") // a mount point may contain other white space
		if !ok || len(fields) < 5 {
			return nil, fmt.Errorf("%q is not a mount", line)
		}
		if !strings.HasPrefix(fields[3], "net:[") {
			continue
		}
		inode, err := inodeIn(fields[3])
		point := unescape(fields[4])
		if err != nil || !strings.HasPrefix(point, "/") {
			return nil, fmt.Errorf("%q is not the mount of a network namespace", line)
		}
		mounts = append(mounts, namespaceMount{inode, point})
	}
	return mounts, nil
}

// A processRoot is the root directory of a process. The process sees the mounts of
// its mount namespace that are below its root, so two processes of one mount namespace
// may see different mounts (hazard 60).
type processRoot struct {
	mount, inode uint64
}

// rootOf identifies a thread's root. On a file system that refuses this call, such as
// FUSE, and before Linux 5.8 its mount is 0, which none is: its mounts are always read.
func (s *scan) rootOf(dir string) (id processRoot) {
	var stat unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir+"/root", unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &stat) == nil {
		id = processRoot{stat.Mnt_id, stat.Ino}
	}
	s.step(s.last)
	return id
}

// readMounts reads the network namespaces that are mounted below a thread's root.
func (s *scan) readMounts(dir string) bool {
	id := s.rootOf(dir)
	if _, read := s.readRoots[id]; read || s.mountText > s.maxMountText {
		return true
	}
	what := fmt.Sprintf("the mounts below root %d:%d", id.mount, id.inode) // that other processes see, too
	late, text := true, []byte(nil)
	s.within(what, func() { late, text = false, s.read(dir, "/mountinfo") })
	if len(text) == 0 {
		return late
	}
	s.mountText += len(text)
	whole := len(text) < maxProcfs && s.mountText <= s.maxMountText // after that others are not read
	if !whole {
		s.truncated = true
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may not be whole
	mounts, err := namespaceMounts(text)
	if err != nil {
		s.err = fmt.Errorf("%s/mountinfo: %w", dir, err)
	}
	// A root in another mount namespace, as after nsenter --root, is not among the mounts:
	// other processes with this root see others. If it is among them, so are all below it.
	mount := strconv.FormatUint(id.mount, 10) + " "
	isOwn := bytes.HasPrefix(text, []byte(mount)) || bytes.Contains(text, []byte("\n"+mount))
	if len(mounts) > 0 {
		root, ok := s.open(dir, "/root", unix.O_PATH|unix.O_DIRECTORY)
		if !ok {
			return false
		}
		defer func() { _ = unix.Close(root) }() // nothing was written through it
		for _, m := range mounts {
			name, inode := path.Base(m.point), m.inode
			if as, ok := s.mountedAs[name]; ok && as != inode {
				inode = 0
			}
			s.mountedAs[name] = inode
			if !s.whole[m.inode] {
				s.readMountedNetNS(root, m)
			}
		}
	}
	if isOwn && (len(mounts) == 0 || s.rootOf(dir) == id) { // else they were looked for below another root
		s.readRoots[id] = whole && len(mounts) == 0
	}
	return true
}

// readMountedNetNS reads a namespace at its mount point below a process's root. If a file
// system in its path refuses that, such as FUSE, with any error, it notes that the namespace
// exists. It may still be found elsewhere.
func (s *scan) readMountedNetNS(root int, m namespaceMount) {
	where := "mounted at " + printable(m.point)
	s.within(fmt.Sprintf("network namespace %d, %s,", m.inode, where), func() {
		ns, err := openMount(root, m)
		switch {
		case err == nil:
			s.readNetNS(ns, where)
		case !errors.Is(err, errHidden):
			s.note(m.inode, where, nil, err)
		}
	})
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
	err = errors.Join(unix.Fstatfs(fd, &statfs), unix.Fstat(fd, &stat))
	if err == nil && (statfs.Type != unix.NSFS_MAGIC || stat.Ino != m.inode) {
		err = errHidden
	}
	if err != nil {
		return -1, err
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}
