// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	ended  func() error           // of the context of the call
	reads  atomic.Pointer[string] // what is read; nil if nothing is, or the thread was given up
	last   *string                // the same, as the thread knows it
	err    error                  // the first error
	late   map[string]bool        // messages about what can't be read in time
	gaveUp map[string]bool        // what this call gave up; guarded by mu
	home   int                    // the thread's own network namespace, a descriptor
	buf    []byte                 // for files of procfs

	pidNS, host uint64                   // the PID and the network namespace of process 1, by inode
	found       map[uint64]podsource.Pod // the network namespaces, by inode
	whole       map[uint64]bool          // those that were read; the others exist, and may have other addresses
	withProcess map[uint64]bool          // those with a process
	unaddressed map[uint64]string        // those with an interface without address, and a message
	mountedAs   map[string]uint64        // the network namespace mounted under a name, the last element of its path; 0: several
	adds        []cniADD
	claims      map[string]string // by container ID, the process that runs the ADD

	// The fields below are those of the last reading of all processes.

	foundNew  bool                 // whether it found new network namespaces; those without an address don't count
	readRoots map[processRoot]bool // the roots whose mounts were read, and whether no namespace is among them
	mountText int                  // bytes of mountinfo files
	truncated bool                 // some mounts were not read

	maxMountText int // the limit of mountText: a tenant may make any number of roots
}

// scan reads all processes of the node until it finds nothing new, at most maxScans
// times. It begins again without what hangs.
func (s *Source) scan(ctx context.Context) (*scan, error) {
	gaveUp := make(map[string]bool)
	for patience := s.patience; ; patience = s.patience / 4 { // others may hang for the same reason
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
		found: make(map[uint64]podsource.Pod), whole: make(map[uint64]bool), withProcess: make(map[uint64]bool),
		unaddressed: make(map[uint64]string), mountedAs: make(map[string]uint64), readRoots: make(map[processRoot]bool)}
}

// readNode reads all processes several times.
func (s *scan) readNode() error {
	const first = "the namespaces of process 1"
	s.within(first, s.checkNode)
	if s.err == nil && s.host == 0 {
		s.err = errors.New(first + " can't be read in time")
	}
	// A process may start with a PID that was already passed, and the last other
	// process of its namespace may end before it is read. So the last scan is one
	// that finds nothing new.
	for n := 0; s.err == nil && (n < minScans || n < maxScans && s.foundNew); n++ {
		s.processes()
	}
	s.noteClaims()
	return s.err
}

// processes reads every process: its environment, its threads and its mounts.
func (s *scan) processes() {
	pids := s.pids()
	// What was not read whole is read again. Where no namespace was mounted, none is looked for
	// again, unless the last process of one has ended before the namespace was read: it may have
	// been mounted there instead. Another one that is mounted there now has no address yet, or the
	// next call finds it. A release takes two calls (R5).
	moved := false
	for inode := range s.withProcess {
		_, found := s.found[inode]
		moved = moved || !found && inode != 0 // 0 could not be read
	}
	maps.DeleteFunc(s.readRoots, func(_ processRoot, none bool) bool { return !none || moved })
	maps.DeleteFunc(s.found, func(inode uint64, _ podsource.Pod) bool { return !s.whole[inode] })
	s.truncated, s.mountText, s.foundNew = false, 0, false
	// Environments first, of the youngest processes first: a plugin may run for
	// milliseconds, and the rest takes longer.
	for _, pid := range slices.Backward(pids) {
		s.process(pid, s.readEnvironment)
	}
	for _, pid := range pids {
		s.process(pid, s.readNamespaces)
	}
}

// process reads a process, unless there is an error.
func (s *scan) process(pid string, read func(pid, dir string)) {
	if s.err = cmp.Or(s.err, s.ended()); s.err != nil {
		return
	}
	if s.within("process "+pid, func() { read(pid, s.opts.Proc+"/"+pid) }); s.err != nil {
		s.err = fmt.Errorf("reading process %s: %w", pid, s.err)
	}
}

// pids lists the node's processes.
func (s *scan) pids() []string {
	pids := s.numericEntries(s.opts.Proc, "")
	if s.err != nil || len(pids) == 0 {
		s.err = fmt.Errorf("listing the node's processes: %w", cmp.Or(s.err, fs.ErrNotExist))
	}
	return pids
}

// readNamespaces reads the network namespaces of a process's threads, and its mounts. It
// reads all threads: the first one, which stands for the process in procfs, may end
// before the others.
func (s *scan) readNamespaces(pid, dir string) {
	for _, thread := range s.threads(dir) {
		inode, _ := s.nsInode(thread, "/ns/net")
		s.withProcess[inode] = true
		if s.whole[inode] {
			continue
		}
		if ns, ok := s.open(thread, "/ns/net", unix.O_RDONLY); ok {
			s.readNetNS(ns, "of process "+pid)
		}
	}
	s.anyThread(pid, dir, s.readMounts)
}

// threads returns the directories of a process's threads. With three links the directory
// task has one entry (proc_task_getattr in the kernel's fs/proc/base.c), which is the first
// thread, since the others end before it. It is shown by the directory of the process, too.
func (s *scan) threads(dir string) []string {
	var stat unix.Stat_t
	if s.could(dir, unix.Stat(dir+"/task", &stat)) && stat.Nlink == 3 {
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

// anyThread calls read with the directory of a process, which shows its first thread.
// If the first thread has ended, it calls read with the directories of the others, up
// to one that has not ended.
func (s *scan) anyThread(pid, dir string, read func(dir string) bool) (running bool) {
	tried, threads := make(map[string]bool), []string{dir}
	for range maxListings {
		for _, thread := range threads {
			tried[path.Base(thread)] = true
			if read(thread) || s.err != nil {
				return true
			}
		}
		threads = slices.DeleteFunc(s.threads(dir), func(thread string) bool { return tried[path.Base(thread)] })
		if len(threads) == 0 { // all have ended
			return false
		}
	}
	s.late["process "+pid+" can't be read in time: its threads start and end all the time"] = true
	return true
}

// numericEntries returns the entries of a directory that are numbers: processes, or
// threads.
func (s *scan) numericEntries(dir, name string) (numbers []string) {
	d, err := os.Open(dir + name)
	if err == nil {
		numbers, err = d.Readdirnames(-1)
		_ = d.Close() // it was only read
	}
	s.could(dir, err)
	return slices.DeleteFunc(numbers, func(name string) bool { return name[0] < '0' || name[0] > '9' })
}

// nsInode returns the inode number of the namespace that a link of procfs leads to. It is zero,
// which no namespace has, if the link could not be read.
func (s *scan) nsInode(dir, name string) (inode uint64, ok bool) {
	link, err := os.Readlink(dir + name)
	if err == nil {
		inode, err = inodeIn(link)
	}
	return inode, s.could(dir, err)
}

// open opens a file of a process or thread.
func (s *scan) open(dir, name string, flags int) (fd int, ok bool) {
	fd, err := unix.Open(dir+name, flags|unix.O_CLOEXEC, 0)
	if errors.Is(err, syscall.EINVAL) { // of mountinfo: the thread has no mount namespace any more
		err = syscall.ESRCH
	}
	return fd, err == nil || s.could(dir, os.NewSyscallError("open "+dir+name, err)) // if it is open, the caller closes it first
}

// could reports whether a file in the directory of a process or thread could be read. An
// error that does not mean that the thread has ended is noted.
func (s *scan) could(dir string, err error) bool {
	s.step(s.last)
	if err != nil && s.err == nil && !hasExited(dir, err) {
		s.err = hint(err)
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

// inodeIn returns the inode number in the name of a namespace, such as
// "net:[4026531833]".
func inodeIn(name string) (uint64, error) {
	_, number, _ := strings.Cut(name, ":[")
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a namespace", name)
	}
	return inode, nil
}
