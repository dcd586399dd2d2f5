// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// One call reads all processes at least minScans times, since between two plugins of
// its chain an ADD has no process (hazard 72), and at most maxScans times while new
// namespaces appear.
const minScans, maxScans = 2, 5

// A scan reads all processes of a node, several times. Its methods that read something
// report whether they could. If not, it has ended, or err or late says why.
type scan struct {
	*Source
	ended func() error    // of the context of the call
	err   error           // the first error: nothing more is read
	late  map[string]bool // messages about processes that can't be read in time
	pid   string          // of the process that is read
	skip  bool            // it can't be read in time: nothing more of it is read
	home  int             // the thread's own network namespace, a descriptor
	buf   []byte          // for files of procfs

	call  atomic.Int64 // the number of the call of bounded that has not returned, or zero
	calls int64        // the number of the last one
	reads string       // what it reads, as a key of hangs

	host        uint64                   // the node's own network namespace, by inode
	found       map[uint64]podsource.Pod // the network namespaces that were read, by inode
	addressed   int                      // those with an address
	withProcess map[uint64]bool          // those with a process
	unaddressed map[uint64]string        // those with an interface without address, and a message; nil: not asked for
	mountedAt   map[string][]uint64      // the network namespaces mounted at a path, below any root
	unchanged   map[processRoot]int      // descriptors of mountinfo files without a network namespace
	adds        []cniADD
	claims      map[string]string // by container ID, the process that runs the ADD

	// The fields below are those of the last reading of all processes.

	round      int                      // its number
	todo       []task                   // what is left to read; nil: it has not begun
	before     int                      // addressed when it began
	readRoots  map[processRoot]bool     // the roots whose mounts were read
	unreadable map[uint64]podsource.Pod // the network namespaces that exist and could not be read, with the addresses found
	mountText  int                      // bytes of mountinfo files
	truncated  bool                     // some mounts were not read

	maxMountText int // the limit of mountText: a tenant may make any number of roots
	maxUnchanged int // the limit of unchanged: the program needs descriptors, too
}

// A task is to read a process with a method of scan.
type task struct {
	pid  string
	read func(s *scan, dir string)
}

// scan reads all processes of the node until it finds nothing new, at most maxScans
// times, on one thread.
func (s *Source) scan(ctx context.Context) (*scan, error) {
	sc := s.newScan(ctx)
	return sc, sc.watch(ctx, sc.readNode)
}

func (s *Source) newScan(ctx context.Context) *scan {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // after an error zero
	sc := &scan{Source: s, ended: ctx.Err, maxMountText: 8 * maxProcfs, maxUnchanged: int(min(limit.Cur/4, 1<<16)),
		found: make(map[uint64]podsource.Pod), unreadable: make(map[uint64]podsource.Pod), withProcess: make(map[uint64]bool),
		mountedAt: make(map[string][]uint64), readRoots: make(map[processRoot]bool), unchanged: make(map[processRoot]int),
		late: make(map[string]bool), claims: make(map[string]string)}
	if len(s.opts.Networks) > 0 {
		sc.unaddressed = make(map[uint64]string)
	}
	return sc
}

// close closes what the scan has kept open.
func (s *scan) close() {
	for _, fd := range s.unchanged {
		_ = unix.Close(fd) // it was only read
	}
	clear(s.unchanged)
}

// readNode reads all processes several times, or goes on with that.
func (s *scan) readNode() error {
	if s.host == 0 {
		var err error
		if s.host, err = s.checkNode(); err != nil {
			return err
		}
	}
	// A process may start with a PID that was already passed, and the last other
	// process of its namespace may end before it is read. So the last scan is one
	// that finds nothing new.
	for s.round < minScans || s.round < maxScans && s.foundNew() {
		if err := s.processes(); err != nil {
			return err
		}
		s.round++
	}
	return s.noteClaims()
}

// foundNew reports whether the last reading found new network namespaces. Those that have
// no address don't count.
func (s *scan) foundNew() bool { return s.addressed > s.before }

// processes reads every process, or goes on with that: its environment, its threads and
// its mounts.
func (s *scan) processes() error {
	if s.todo == nil {
		pids, err := s.pids()
		if err != nil {
			return err
		}
		clear(s.readRoots)
		clear(s.unreadable)
		s.truncated, s.mountText, s.before = false, 0, s.addressed
		s.todo = make([]task, 0, 2*len(pids))
		// Environments first, of the youngest processes first: a plugin may run for
		// milliseconds, and the rest takes longer.
		for _, pid := range slices.Backward(pids) {
			s.todo = append(s.todo, task{pid, (*scan).readEnvironment})
		}
		for _, pid := range pids {
			s.todo = append(s.todo, task{pid, (*scan).process})
		}
	}
	for ; len(s.todo) > 0; s.todo = s.todo[1:] {
		s.pid, s.skip = s.todo[0].pid, false
		s.todo[0].read(s, s.opts.Proc+"/"+s.pid)
		if s.err != nil {
			return fmt.Errorf("reading process %s: %w", s.pid, s.err)
		}
	}
	s.todo = nil
	return nil
}

// pids lists the node's processes.
func (s *scan) pids() ([]string, error) {
	s.pid, s.skip = "", false
	pids, _ := s.numericEntries(s.opts.Proc, "")
	if len(pids) == 0 && s.err == nil {
		s.err = errors.New("none can be read")
	}
	if s.err != nil {
		return nil, fmt.Errorf("listing the node's processes: %w", s.err)
	}
	return pids, nil
}

// process reads the network namespaces of a process's threads, and its mounts. It
// reads all threads: the first one, which stands for the process in procfs, may end
// before the others.
func (s *scan) process(dir string) {
	threads := []string{dir}
	if s.round > 0 { // this costs time, and the last reading finds nothing new
		threads = s.threads(dir)
	}
	s.eachNetNS(threads, func(thread string, inode uint64) {
		s.withProcess[inode] = true
		if _, ok := s.found[inode]; !ok {
			s.readThreadNetNS(thread)
		}
	})
	s.anyThread(dir, s.readMounts)
}

// eachNetNS calls do with the network namespace of each of these threads.
func (s *scan) eachNetNS(threads []string, do func(thread string, inode uint64)) {
	for _, thread := range threads {
		if inode, ok := s.nsInode(thread, "/ns/net"); ok {
			do(thread, inode)
		}
	}
}

// threads returns the directories of a process's threads. With three links the directory
// task has one entry (proc_task_getattr in the kernel's fs/proc/base.c), which is the first
// thread, since the others end before it. It is shown by the directory of the process, too.
func (s *scan) threads(dir string) []string {
	var stat unix.Stat_t
	if s.bounded(dir, "/task", func(file string) error { return unix.Stat(file, &stat) }) && stat.Nlink == 3 {
		return []string{dir}
	}
	threads, _ := s.numericEntries(dir, "/task")
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
func (s *scan) anyThread(dir string, read func(dir string) bool) (running bool) {
	tried, threads := make(map[string]bool), []string{dir}
	for range maxListings {
		before := len(tried)
		for _, thread := range threads {
			if tid := path.Base(thread); !tried[tid] {
				tried[tid] = true
				if read(thread) || s.err != nil || s.skip {
					return true
				}
			}
		}
		if len(tried) == before { // all threads have ended
			return false
		}
		threads = s.threads(dir)
	}
	s.tooLate("its threads start and end all the time")
	return true
}

// numericEntries returns the entries of a directory that are numbers: processes, or
// threads.
func (s *scan) numericEntries(dir, name string) (numbers []string, ok bool) {
	ok = s.bounded(dir, name, func(file string) error {
		d, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = d.Close() }() // it was only read
		numbers, err = d.Readdirnames(-1)
		return err
	})
	return slices.DeleteFunc(numbers, func(name string) bool { return name[0] < '0' || name[0] > '9' }), ok
}

// nsInode returns the inode number of the namespace that a link of procfs leads to.
func (s *scan) nsInode(dir, name string) (inode uint64, ok bool) {
	ok = s.bounded(dir, name, func(file string) error {
		var text [64]byte
		n, err := unix.Readlink(file, text[:])
		if err == nil {
			inode, err = inodeIn(string(text[:n]))
		} else {
			err = &os.PathError{Op: "readlink", Path: file, Err: err}
		}
		return err
	})
	return inode, ok
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
