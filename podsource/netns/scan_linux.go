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

// A scan goes through all processes of a node, several times.
type scan struct {
	proc  string
	setns func(fd, kind int) error
	buf   []byte // what is read from procfs goes through it

	found     map[uint64]bool     // the network namespaces, by inode
	pods      []podsource.Pod     // one for each of those that have an address
	views     map[view]bool       // those whose mounts were looked at this time
	mountedAt map[string][]uint64 // the network namespaces that are mounted at a path, in some view
	adds      []cniADD
	underWay  []cniADD          // those that count
	bare      map[uint64]string // the network namespaces with an interface that shows no address; nil: not asked for

	// What the last look could not see, of namespaces that are there.
	unseen    map[uint64]podsource.Pod // by inode, with what was seen of each
	mountText int                      // bytes that were read of mounts
	// maxMountText is how many it may be in all: a tenant may make as many views as
	// it likes.
	maxMountText int
	truncated    bool // not all mounts of some view were read
	restless     bool // it found namespaces that no look before had found
}

// A view is what processes see of mounts: those of their mount namespace that are
// under their root. Two processes of one mount namespace may see different ones
// (hazard 60).
type view struct {
	mountNS, rootMount, root uint64
}

// processes looks at every process: its threads, its mounts and its environment.
func (s *scan) processes(ctx context.Context) error {
	clear(s.views)
	clear(s.unseen)
	s.truncated, s.mountText = false, 0
	pids, err := numericEntries(s.proc)
	if err != nil {
		return fmt.Errorf("listing the node's processes: %w", err)
	}
	// The environments come first, and the youngest first of them: a plugin may be
	// there for milliseconds, and the rest takes longer.
	youngest := slices.Clone(pids)
	slices.Reverse(youngest)
	if err := each(ctx, youngest, s.environment); err != nil {
		return err
	}
	return each(ctx, pids, s.process)
}

// each looks at one process after the other.
func each(ctx context.Context, pids []string, look func(pid string) error) error {
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := look(pid); err != nil {
			return fmt.Errorf("looking at process %s: %w", pid, hint(err))
		}
	}
	return nil
}

// process looks at one process. A thread that has ended has left the namespace,
// and the others stay: a process is shown by its first thread, which may end
// before the rest.
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
			err = s.lookAt(thread+"/ns/net", "of process "+pid)
		}
		if err := ignoreExited(thread, err); err != nil {
			return err
		}
	}
	_, err = anyThread(dir, s.mounted)
	return err
}

// A process whose threads come faster than they are listed is listed this often.
const maxListings = 10

// errExited says of a thread that it has ended, where the kernel does not.
var errExited = fmt.Errorf("the thread has ended: %w", syscall.ESRCH)

// anyThread calls look with the directory of a process, which shows the first
// thread. Where that has ended, and only then, others may live on, and show what
// it does not: look is called with each of theirs, until one has not ended either.
// It reports whether there was one.
func anyThread(dir string, look func(dir string) error) (answered bool, err error) {
	if err := look(dir); err == nil || ignoreExited(dir, err) != nil {
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
			if err := look(thread); err == nil || ignoreExited(thread, err) != nil {
				return true, err
			}
		}
		if len(tried) == before { // all that there is has ended
			return false, nil
		}
	}
	return false, errors.New("its threads come and go faster than they can be looked at")
}

// mounted looks at the network namespaces that a thread sees mounted. They are
// looked up from its root, which is held open meanwhile: the thread may end.
func (s *scan) mounted(dir string) error {
	mountNS, err := nsInode(dir + "/ns/mnt")
	if err != nil {
		return err
	}
	root, err := unix.Open(dir+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir + "/root", Err: err}
	}
	defer func() { _ = unix.Close(root) }() // nothing was written through it
	// Of a root on a file system that does not answer, or not to us, as on FUSE, it
	// is not known which one it is: then its mounts are looked at in any case.
	var stat unix.Statx_t
	_ = unix.Statx(root, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &stat)
	known := stat.Mask&unix.STATX_MNT_ID != 0 // since Linux 5.8
	v := view{mountNS, stat.Mnt_id, stat.Ino}
	if s.views[v] {
		return nil
	}
	text, err := s.read(dir + "/mountinfo")
	if errors.Is(err, syscall.EINVAL) { // that of a thread without a mount namespace
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
			if err := s.lookAtMount(root, m); err != nil {
				return err
			}
		}
	}
	s.views[v] = known
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

// nsInode returns the number of a namespace that a link such as "net:[4026531833]"
// names.
func nsInode(file string) (uint64, error) {
	text, err := os.Readlink(file)
	if err != nil {
		return 0, err
	}
	_, number, _ := strings.Cut(text, ":[")
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is a link to %q, and not to a namespace", file, text)
	}
	return inode, nil
}

// ignoreExited is err, unless it says that a process, a thread or one of its
// mounts has ended. Of one that ends just then the kernel says that permission
// is denied (proc_ns_get_link and its like in fs/proc), and only afterwards that
// nothing is there: dir, which is the directory of the process or thread.
func ignoreExited(dir string, err error) error {
	var there *namespaceError
	switch {
	case errors.As(err, &there):
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
