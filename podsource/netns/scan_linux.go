// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// One call reads all processes at least minScans times, since between two plugins of
// its chain an ADD has no process (hazard 72), and at most maxScans times while new
// namespaces appear.
const minScans, maxScans = 2, 5

// A scan reads all processes of a node, several times, on one thread. Its methods that read
// something report whether they could. If not, it has ended, or err or late says why.
type scan struct {
	*Source
	ended func() error    // of the context of the call
	err   error           // the first error
	late  map[string]bool // messages about what can't be read in time
	home  int             // the thread's own network namespace, a descriptor
	buf   []byte          // for what the kernel says

	// The fields below are guarded by mu. Only the thread of the scan changes the first two.

	reads   string          // what is read; empty if nothing is
	steps   int             // of the reading
	givenUp bool            // the thread reads one thing for too long: its answer does not count
	gaveUp  map[string]bool // what this call gave up

	pidNS, host uint64                   // the PID and the network namespace of process 1, by inode
	found       map[uint64]podsource.Pod // the network namespaces, by inode
	whole       map[uint64]bool          // those that were read, and zero; the others exist, and may have other addresses
	withProcess map[uint64]bool          // those with a process
	unaddressed map[uint64]string        // those with an interface without address, and a message
	mountedAs   map[string]uint64        // the network namespace mounted under a name, the last element of its path; 0: several
	adds        []cniADD
	claims      map[string]string // by container ID, the process that runs the ADD

	// The fields below are those of the last reading of all processes.

	foundNew  bool                 // whether it found new network namespaces; those without an address don't count
	readRoots map[processRoot]bool // the roots whose mounts were read, and whether no namespace is among them
	mountText int                  // bytes of mountinfo files
	missing   string               // why other namespaces may not be found

	maxMountText int // the limit of mountText: a tenant may make any number of roots
}

// scan reads the node, and begins again without what hangs.
func (s *Source) scan(ctx context.Context) (*scan, error) {
	gaveUp := make(map[string]bool)
	for patience := s.opts.Patience; ; patience = s.opts.Patience / 4 { // others may hang for the same reason
		sc := s.newScan(ctx)
		sc.gaveUp = gaveUp
		if hangs, err := sc.watch(ctx, patience, sc.readNode); !hangs {
			return sc, err
		}
	}
}

func (s *Source) newScan(ctx context.Context) *scan {
	return &scan{Source: s, ended: ctx.Err, maxMountText: 8 * maxProcfs,
		late: make(map[string]bool), gaveUp: make(map[string]bool), claims: make(map[string]string),
		found: make(map[uint64]podsource.Pod), whole: map[uint64]bool{0: true}, withProcess: make(map[uint64]bool),
		unaddressed: make(map[uint64]string), mountedAs: make(map[string]uint64), readRoots: make(map[processRoot]bool)}
}

func (s *scan) readNode() error {
	s.within("the namespaces of process 1", s.checkNode)
	if s.err == nil && s.host == 0 {
		s.err = errors.New("the namespaces of process 1 can't be read in time")
	}
	// A process may start with a PID that was already passed, and the last other
	// process of its namespace may end before it is read. So the last scan is one
	// that finds nothing new.
	for n := 0; s.err == nil && (n < minScans || n < maxScans && s.foundNew); n++ {
		s.processes()
	}
	if s.foundNew {
		s.missing = "new network namespaces appear faster than they are read"
	}
	s.noteClaims()
	if errors.Is(s.err, fs.ErrPermission) {
		s.err = fmt.Errorf("%w; this needs CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN and CAP_SYS_PTRACE over the node, "+
			"as a privileged container with hostPID has them, and a procfs without hidepid", s.err)
	}
	return s.err
}

// processes reads every process: first all environments, since a plugin may run for milliseconds,
// and the rest takes longer. It lists the processes anew each time, since those of a container may
// start others and end all the time. Mounts are read last: if the last process of a namespace ends before
// it is read, the namespace may have been mounted instead.
func (s *scan) processes() {
	// What was not read whole is read again. Where no namespace was mounted, none is looked for
	// again, unless one in which a process was could not be read, as it may be mounted there since.
	// Any other is new and has no address yet, or the next call finds it. A release takes two
	// calls (R5).
	moved := slices.ContainsFunc(slices.Collect(maps.Keys(s.withProcess)), func(inode uint64) bool { return !s.whole[inode] })
	maps.DeleteFunc(s.readRoots, func(_ processRoot, none bool) bool { return !none || moved })
	maps.DeleteFunc(s.found, func(inode uint64, _ podsource.Pod) bool { return !s.whole[inode] })
	s.missing, s.mountText, s.foundNew = "", 0, false
	readMounts := func(pid, dir string) { s.anyThread(pid, dir, s.readMounts) }
	for _, read := range []func(pid, dir string){s.readEnvironment, s.readNamespaces, readMounts} {
		for _, pid := range slices.Backward(s.pids()) { // the youngest first
			s.process(pid, read)
		}
	}
}

func (s *scan) pids() []string {
	pids := s.numericEntries(s.opts.Proc, "")
	if s.err == nil && len(pids) == 0 {
		s.err = fmt.Errorf("listing the node's processes: %w", fs.ErrNotExist)
	}
	return pids
}

// process reads a process, unless there is an error.
func (s *scan) process(pid string, read func(pid, dir string)) {
	if s.err = cmp.Or(s.err, s.ended()); s.err == nil {
		s.within("process "+pid, func() { read(pid, s.opts.Proc+"/"+pid) })
	}
}

// readNamespaces reads the network namespaces of all threads of a process.
func (s *scan) readNamespaces(pid, dir string) {
	for _, thread := range s.threads(dir) {
		inode := s.nsInode(thread, "/ns/net")
		s.withProcess[inode] = true
		if s.whole[inode] {
			continue
		}
		if ns, ok := s.open(thread, "/ns/net", unix.O_RDONLY); ok {
			s.readNetNS(ns, "of process "+pid)
		}
	}
}

// threads returns the directories of a process's threads. With three links the directory
// task has one entry (proc_task_getattr in the kernel's fs/proc/base.c), which is the first
// thread, since the others end before it. It is shown by the directory of the process, too.
func (s *scan) threads(dir string) []string {
	var stat unix.Stat_t
	if s.could(dir, "/task", unix.Stat(dir+"/task", &stat)) && stat.Nlink == 3 {
		return []string{dir}
	}
	threads := s.numericEntries(dir, "/task")
	for i, tid := range threads {
		threads[i] = dir + "/task/" + tid
	}
	return threads
}

// maxListings is how often the threads of a process are listed while new ones appear.
const maxListings = 10

// anyThread calls read with the directory of a process, which shows its first thread, and if that
// has ended with those of the others, up to one that has not.
func (s *scan) anyThread(pid, dir string, read func(dir string) bool) (running bool) {
	tried, threads := make(map[string]bool), []string{dir}
	for n := 0; len(threads) > 0; n++ {
		if n == maxListings {
			s.late["process "+pid+" can't be read in time: its threads start and end all the time"] = true
			return true
		}
		for _, thread := range threads {
			if read(thread) || s.err != nil {
				return true
			}
			tried[path.Base(thread)] = true
		}
		threads = slices.DeleteFunc(s.threads(dir), func(thread string) bool { return tried[path.Base(thread)] })
	}
	return false // all have ended
}

// numericEntries returns the processes or threads in a directory.
func (s *scan) numericEntries(dir, name string) (numbers []string) {
	d, err := os.Open(dir + name)
	if err == nil {
		numbers, err = d.Readdirnames(-1)
		_ = d.Close() // it was only read
	}
	s.could(dir, name, err)
	return slices.DeleteFunc(numbers, func(name string) bool { return name[0] < '0' || name[0] > '9' })
}

// nsInode returns the inode number of the namespace that a link of procfs leads to. It is zero,
// which no namespace has, if the link could not be read.
func (s *scan) nsInode(dir, name string) (inode uint64) {
	var link [64]byte
	n, err := unix.Readlink(dir+name, link[:])
	if err == nil {
		_, number, _ := strings.Cut(string(link[:n]), ":[") // net:[4026531833]
		inode, err = strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	}
	s.could(dir, name, err)
	return inode
}

// open opens a file of a process or thread.
func (s *scan) open(dir, name string, flags int) (fd int, ok bool) {
	fd, err := unix.Open(dir+name, flags|unix.O_CLOEXEC, 0)
	if errors.Is(err, syscall.EINVAL) { // of mountinfo: the thread has no mount namespace any more
		err = syscall.ESRCH
	}
	return fd, err == nil || s.could(dir, name, err) // if it is open, the caller closes it first
}

// could reports whether a file in the directory of a process or thread could be read. An
// error that does not mean that the thread has ended is noted.
func (s *scan) could(dir, name string, err error) bool {
	s.step(s.reads)
	if err != nil && s.err == nil && !hasExited(dir, err) {
		s.err = fmt.Errorf("reading %s%s: %w", dir, name, err)
	}
	return err == nil
}

// hasExited reports whether err means that a process, a thread or one of its mounts has
// ended. dir is the directory of the process or thread. While it ends, the kernel denies
// permission (proc_ns_get_link and others in fs/proc); then only the absence of dir shows
// that it has ended.
func hasExited(dir string, err error) bool {
	if errors.Is(err, fs.ErrPermission) {
		_, err = os.Stat(dir)
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

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
		if ok && !(bytes.HasPrefix(after, []byte("nsfs ")) && bytes.Contains(before, []byte(" net:["))) {
			continue
		}
		m := netNSMount.FindSubmatch(before)
		if !ok || m == nil {
			return nil, fmt.Errorf("%q is not a mount", line)
		}
		inode, _ := strconv.ParseUint(string(m[1]), 10, 64) // it has at most 18 digits
		mounts = append(mounts, namespaceMount{inode, unescape(string(m[2]))})
	}
	return mounts, nil
}

// netNSMount matches the beginning of a line. A mount point may contain white space other than " ".
var netNSMount = regexp.MustCompile(`^[^ ]+ [^ ]+ [^ ]+ net:\[([0-9]{1,18})\] (/[^ ]*) `)

// A processRoot is the root directory of a process, which sees the mounts of its mount namespace
// that are below it (hazard 60).
type processRoot struct {
	mount, inode uint64
}

// rootOf identifies a thread's root. On a file system that refuses this call, such as
// FUSE, and before Linux 5.8 its mount is 0, which none is: its mounts are always read.
func (s *scan) rootOf(dir string) processRoot {
	var stat unix.Statx_t // after an error it is zero
	_ = unix.Statx(unix.AT_FDCWD, dir+"/root", unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MNT_ID, &stat)
	s.step(s.reads)
	return processRoot{stat.Mnt_id, stat.Ino}
}

// readMounts reads the network namespaces that are mounted below a thread's root.
func (s *scan) readMounts(dir string) bool {
	id := s.rootOf(dir)
	if _, read := s.readRoots[id]; read || s.mountText > s.maxMountText {
		return true
	}
	var text []byte // as other processes see it, too
	s.within(fmt.Sprintf("the mounts below root %d:%d", id.mount, id.inode), func() { text = s.read(dir, "/mountinfo", maxProcfs) })
	if len(text) == 0 {
		return false
	}
	s.mountText += len(text)
	whole := len(text) < maxProcfs && s.mountText <= s.maxMountText // after that others are not read
	if !whole {
		s.missing = "some process has more mounts than are read"
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may not be whole
	mounts, err := namespaceMounts(text)
	s.could(dir, "/mountinfo", err)
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
		if ns, err := openMount(root, m); err != nil {
			s.note(m.inode, where, nil, err)
		} else if ns >= 0 {
			s.readNetNS(ns, where)
		}
	})
}

// openMount opens a namespace at its mount point. If another mount hides it, the result is
// negative. That is checked first: opening a pipe or a device there could block.
func openMount(root int, m namespaceMount) (ns int, err error) {
	fd, err := unix.Openat(root, "."+m.point, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written through it
	var statfs unix.Statfs_t
	var stat unix.Stat_t
	err = errors.Join(unix.Fstatfs(fd, &statfs), unix.Fstat(fd, &stat))
	if err != nil || statfs.Type != unix.NSFS_MAGIC || stat.Ino != m.inode {
		return -1, err
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}
