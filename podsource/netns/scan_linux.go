// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A scan reads all processes of a node, several times.
type scan struct {
	proc  string
	setns func(fd, kind int) error
	buf   []byte // for files of procfs

	host        uint64              // the node's own network namespace, by inode
	found       map[uint64]bool     // the network namespaces that were read, by inode
	pods        []podsource.Pod     // one for each network namespace with an address
	mountedAt   map[string][]uint64 // the network namespaces mounted at a path, below any root
	adds        []cniADD
	inFlight    []cniADD          // the adds that claim their container
	unaddressed map[uint64]string // the network namespaces with an interface without address, and a message; nil: not asked for

	// The fields below are those of the last reading of all processes.

	readRoots  map[processRoot]bool     // the roots whose mounts were read
	unreadable map[uint64]podsource.Pod // the network namespaces that exist and could not be read, with the addresses found
	mountText  int                      // bytes of mountinfo files
	// maxMountText is the limit of mountText: a tenant may make any number of roots.
	maxMountText int
	truncated    bool // some mounts were not read
	foundNew     bool // it found network namespaces that were not found before
}

// A processRoot is the root directory of a process. The process sees the mounts of
// its mount namespace that are below its root, so two processes of one mount namespace
// may see different mounts (hazard 60).
type processRoot struct {
	mountNS, mountID, inode uint64
}

// processes reads every process: its environment, its threads and its mounts.
func (s *scan) processes(ctx context.Context) error {
	clear(s.readRoots)
	clear(s.unreadable)
	s.truncated, s.mountText = false, 0
	pids, err := numericEntries(s.proc)
	if err != nil {
		return fmt.Errorf("listing the node's processes: %w", err)
	}
	// Environments first, of the youngest processes first: a plugin may run for
	// milliseconds, and the rest takes longer.
	youngest := slices.Clone(pids)
	slices.Reverse(youngest)
	if err := each(ctx, youngest, s.readEnvironment); err != nil {
		return err
	}
	return each(ctx, pids, s.process)
}

// each calls read for each process in turn.
func each(ctx context.Context, pids []string, read func(pid string) error) error {
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := read(pid); err != nil {
			return fmt.Errorf("reading process %s: %w", pid, hint(err))
		}
	}
	return nil
}

// process reads the network namespaces of a process's threads, and its mounts. It
// reads all threads: the first one, which stands for the process in procfs, may end
// before the others.
func (s *scan) process(pid string) error {
	dir := s.proc + "/" + pid
	threads, err := numericEntries(dir + "/task")
	if err != nil {
		return ignoreExited(dir, err)
	}
	for _, tid := range threads {
		thread := dir + "/task/" + tid
		inode, err := nsInode(thread + "/ns/net")
		if err == nil && !s.found[inode] {
			err = s.readNetNSFile(thread+"/ns/net", "of process "+pid)
		}
		if err := ignoreExited(thread, err); err != nil {
			return err
		}
	}
	_, err = anyThread(dir, s.readMounts)
	return err
}

// maxListings is how often the threads of a process are listed while new ones appear.
const maxListings = 10

// errExited is returned for a thread that has ended if the kernel returns no error.
var errExited = fmt.Errorf("the thread has ended: %w", syscall.ESRCH)

// anyThread calls read with the directory of a process, which shows its first thread.
// If the first thread has ended, it calls read with the directories of the others, up
// to one that has not ended. It reports whether there was a thread that has not ended.
func anyThread(dir string, read func(dir string) error) (running bool, err error) {
	if err := read(dir); err == nil || ignoreExited(dir, err) != nil {
		return true, err
	}
	tried := map[string]bool{path.Base(dir): true}
	for range maxListings {
		threads, err := numericEntries(dir + "/task")
		if err != nil {
			return false, ignoreExited(dir, err)
		}
		before := len(tried)
		for _, tid := range threads {
			if tried[tid] {
				continue
			}
			tried[tid] = true
			thread := dir + "/task/" + tid
			if err := read(thread); err == nil || ignoreExited(thread, err) != nil {
				return true, err
			}
		}
		if len(tried) == before { // all threads have ended
			return false, nil
		}
	}
	return false, errors.New("its threads start and end faster than they can be read")
}

// readMounts reads the network namespaces that are mounted below a thread's root. It
// keeps the root open meanwhile, since the thread may end.
func (s *scan) readMounts(dir string) error {
	mountNS, err := nsInode(dir + "/ns/mnt")
	if err != nil {
		return err
	}
	root, err := unix.Open(dir+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir + "/root", Err: err}
	}
	defer func() { _ = unix.Close(root) }() // nothing was written through it
	// On a file system that refuses this call, such as FUSE, the root can't be
	// identified. Then its mounts are read in any case.
	var stat unix.Statx_t
	_ = unix.Statx(root, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &stat)
	known := stat.Mask&unix.STATX_MNT_ID != 0 // since Linux 5.8
	id := processRoot{mountNS, stat.Mnt_id, stat.Ino}
	if s.readRoots[id] {
		return nil
	}
	text, err := s.read(dir + "/mountinfo")
	if errors.Is(err, syscall.EINVAL) { // the thread has no mount namespace any more
		return errExited
	}
	if s.mountText += len(text); s.mountText > s.maxMountText {
		s.truncated = true
		return nil
	}
	if errors.Is(err, errTooLong) {
		s.truncated = true
		text, err = text[:bytes.LastIndexByte(text, '\n')+1], nil
	}
	if err != nil {
		return err
	}
	mounts, err := namespaceMounts(text)
	if err != nil {
		return fmt.Errorf("%s/mountinfo: %w", dir, err)
	}
	for _, m := range mounts {
		if at := s.mountedAt[m.point]; !slices.Contains(at, m.inode) {
			s.mountedAt[m.point] = append(at, m.inode)
		}
		if !s.found[m.inode] {
			if err := s.readMountedNetNS(root, m); err != nil {
				return err
			}
		}
	}
	s.readRoots[id] = known
	return nil
}

// numericEntries returns the entries of a directory that are numbers: processes, or
// threads.
func numericEntries(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // it was only read
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	numbers := names[:0]
	for _, name := range names {
		if name[0] >= '0' && name[0] <= '9' {
			numbers = append(numbers, name)
		}
	}
	return numbers, nil
}

// nsInode returns the inode number of the namespace that a link of procfs leads to,
// such as "net:[4026531833]".
func nsInode(file string) (uint64, error) {
	text, err := os.Readlink(file)
	if err != nil {
		return 0, err
	}
	_, number, _ := strings.Cut(text, ":[")
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is a link to %q, not to a namespace", file, text)
	}
	return inode, nil
}

// ignoreExited returns err, or nil if err means that a process, a thread or one of
// its mounts has ended. dir is the directory of the process or thread. While it ends,
// the kernel denies permission (proc_ns_get_link and others in fs/proc); then only the
// absence of dir shows that it has ended.
func ignoreExited(dir string, err error) error {
	var nsErr *namespaceError
	switch {
	case errors.As(err, &nsErr):
		return err
	case errors.Is(err, fs.ErrPermission):
		if _, statErr := os.Stat(dir); !errors.Is(statErr, fs.ErrNotExist) {
			return err
		}
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return nil
	}
	return err
}
