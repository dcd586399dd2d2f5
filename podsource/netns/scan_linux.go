// SPDX-License-Identifier: Apache-2.0

package netns

import (
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
	ended func() error           // of the context of the call
	reads atomic.Pointer[string] // what is read; nil if nothing is, or the thread was given up
	last  *string                // the same, as the thread knows it
	err   error                  // the first error
	late  map[string]bool        // messages about what can't be read in time
	home  int                    // the thread's own network namespace, a descriptor
	buf   []byte                 // for files of procfs

	host        uint64                   // the node's own network namespace, by inode
	found       map[uint64]podsource.Pod // the network namespaces that were read, by inode
	addressed   int                      // those with an address
	withProcess map[uint64]bool          // those with a process
	unaddressed map[uint64]string        // those with an interface without address, and a message; nil: not asked for
	mountedAt   map[string][]uint64      // the network namespaces mounted at a path, below any root
	adds        []cniADD
	claims      map[string]string // by container ID, the process that runs the ADD

	// The fields below are those of the last reading of all processes.

	before     int                      // addressed when it began
	readRoots  map[processRoot]bool     // the roots whose mounts were read, and whether no namespace is among them
	unreadable map[uint64]podsource.Pod // the network namespaces that exist and could not be read, with the addresses found
	mountText  int                      // bytes of mountinfo files
	truncated  bool                     // some mounts were not read

	maxMountText int // the limit of mountText: a tenant may make any number of roots
}

// scan reads all processes of the node until it finds nothing new, at most maxScans
// times. It begins again without what hangs.
func (s *Source) scan(ctx context.Context) (*scan, error) {
	for patience := s.patience; ; patience = s.patience / 4 { // others may hang for the same reason
		sc := s.newScan(ctx)
		if hangs, err := sc.watch(ctx, patience, sc.readNode); !hangs {
			return sc, err
		}
	}
}

func (s *Source) newScan(ctx context.Context) *scan {
	sc := &scan{Source: s, ended: ctx.Err, maxMountText: 8 * maxProcfs,
		found: make(map[uint64]podsource.Pod), unreadable: make(map[uint64]podsource.Pod), withProcess: make(map[uint64]bool),
		mountedAt: make(map[string][]uint64), readRoots: make(map[processRoot]bool), late: make(map[string]bool), claims: make(map[string]string)}
	if len(s.opts.Networks) > 0 {
		sc.unaddressed = make(map[uint64]string)
	}
	return sc
}

// readNode reads all processes several times.
func (s *scan) readNode() (err error) {
	const first = "the namespaces of process 1"
	s.within(first, func() { s.host, err = s.checkNode() })
	if err == nil && s.host == 0 {
		err = errors.New(first + " can't be read in time")
	}
	// A process may start with a PID that was already passed, and the last other
	// process of its namespace may end before it is read. So the last scan is one
	// that finds nothing new.
	for n := 0; err == nil && (n < minScans || n < maxScans && s.foundNew()); n++ {
		err = s.processes()
	}
	if err == nil {
		err = s.noteClaims()
	}
	return err
}

// foundNew reports whether the last reading found new network namespaces. Those that have
// no address don't count.
func (s *scan) foundNew() bool { return s.addressed > s.before }

// processes reads every process: its environment, its threads and its mounts.
func (s *scan) processes() error {
	pids, err := s.pids()
	if err != nil {
		return err
	}
	// Where no namespace was mounted, none is looked for again: one that is mounted there now is
	// new, and so has no address, or the next call finds it. A release takes two calls (R5).
	maps.DeleteFunc(s.readRoots, func(_ processRoot, none bool) bool { return !none })
	clear(s.unreadable)
	s.truncated, s.mountText, s.before = false, 0, s.addressed
	// Environments first, of the youngest processes first: a plugin may run for
	// milliseconds, and the rest takes longer.
	for _, pid := range slices.Backward(pids) {
		if err := s.process(pid, s.readEnvironment); err != nil {
			return err
		}
	}
	for _, pid := range pids {
		if err := s.process(pid, s.readNamespaces); err != nil {
			return err
		}
	}
	return nil
}

// process reads a process.
func (s *scan) process(pid string, read func(pid, dir string)) error {
	if err := s.ended(); err != nil {
		return err
	}
	if s.within("process "+pid, func() { read(pid, s.opts.Proc+"/"+pid) }); s.err != nil {
		return fmt.Errorf("reading process %s: %w", pid, s.err)
	}
	return nil
}

// pids lists the node's processes.
func (s *scan) pids() ([]string, error) {
	pids, _ := s.numericEntries(s.opts.Proc, "")
	if len(pids) == 0 && s.err == nil {
		s.err = errors.New("none can be read")
	}
	if s.err != nil {
		return nil, fmt.Errorf("listing the node's processes: %w", s.err)
	}
	return pids, nil
}

// readNamespaces reads the network namespaces of a process's threads, and its mounts. It
// reads all threads: the first one, which stands for the process in procfs, may end
// before the others.
func (s *scan) readNamespaces(pid, dir string) {
	s.eachNetNS(s.threads(dir), func(thread string, inode uint64) {
		s.withProcess[inode] = true
		if _, ok := s.found[inode]; !ok {
			s.readThreadNetNS(pid, thread)
		}
	})
	s.anyThread(pid, dir, s.readMounts)
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
	if s.could(dir, unix.Stat(dir+"/task", &stat)) && stat.Nlink == 3 {
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
func (s *scan) anyThread(pid, dir string, read func(dir string) bool) (running bool) {
	tried, threads := make(map[string]bool), []string{dir}
	for range maxListings {
		before := len(tried)
		for _, thread := range threads {
			if tid := path.Base(thread); !tried[tid] {
				tried[tid] = true
				if read(thread) || s.err != nil {
					return true
				}
			}
		}
		if len(tried) == before { // all threads have ended
			return false
		}
		threads = s.threads(dir)
	}
	s.late["process "+pid+" can't be read in time: its threads start and end all the time"] = true
	return true
}

// numericEntries returns the entries of a directory that are numbers: processes, or
// threads.
func (s *scan) numericEntries(dir, name string) (numbers []string, ok bool) {
	d, err := os.Open(dir + name)
	if err == nil {
		numbers, err = d.Readdirnames(-1)
		_ = d.Close() // it was only read
	}
	return slices.DeleteFunc(numbers, func(name string) bool { return name[0] < '0' || name[0] > '9' }), s.could(dir, err)
}

// nsInode returns the inode number of the namespace that a link of procfs leads to.
func (s *scan) nsInode(dir, name string) (inode uint64, ok bool) {
	var text [64]byte
	n, err := unix.Readlink(dir+name, text[:])
	if err == nil {
		inode, err = inodeIn(string(text[:n]))
	} else {
		err = &os.PathError{Op: "readlink", Path: dir + name, Err: err}
	}
	return inode, s.could(dir, err)
}

// could reports whether a file in the directory of a process or thread could be read. An
// error that does not mean that the thread has ended is noted.
func (s *scan) could(dir string, err error) bool {
	s.step(s.last)
	if err != nil && s.err == nil && !hasExited(dir, err) {
		s.err = procfsError(err)
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
