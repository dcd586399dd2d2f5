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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The machine's own PID namespace has this inode: PROC_PID_INIT_INO in the
// kernel's include/linux/proc_ns.h.
const initialPIDNamespace = 0xEFFFFFFC

// How often the node is looked at in one question: at least twice, since an ADD
// whose chain is between two plugins runs in no process for a moment (hazard 72),
// and no more than the other, where namespaces come all the time.
const minScans, maxScans = 2, 5

// A Source asks the kernel which ADDs are under way and which addresses are in
// use. It holds nothing open between two calls of its methods.
type Source struct {
	opts  Options
	setns func(fd, kind int) error
	last  atomic.Pointer[scan] // that of the last question, until Living has used it

	// The earliest wall time at which the node can have booted, by any reading of
	// this process. A clock that is set forward makes it look later.
	mu   sync.Mutex
	boot time.Time
}

// New returns a source and touches nothing. It refuses a LongestADD that is
// negative. On other systems than Linux it is an error.
func New(opts Options) (*Source, error) {
	if opts.Proc == "" {
		opts.Proc = "/proc"
	}
	if opts.HostNetNS == "" {
		opts.HostNetNS = filepath.Join(opts.Proc, "1", "ns", "net")
	}
	if opts.LongestADD < 0 {
		return nil, fmt.Errorf("LongestADD is %v; it must not be negative", opts.LongestADD)
	}
	opts.LongestADD = cmp.Or(opts.LongestADD, DefaultLongestADD)
	s := &Source{opts: opts, setns: unix.Setns}
	_, err := s.booted() // the clock is watched from here on
	return s, err
}

// Pods returns two parts. The first has one pod for each CNI ADD under way, with
// its container ID. The second has one for each network namespace with an address,
// with its addresses. Both say where they were seen, and neither has names: a name
// would set it apart from what other sources say of the same pod, as a conflict.
//
// The answer is supplementary, so it may be empty. It declares that every ADD
// under way is in it, and every address in a network namespace, the latter unless
// namespaces came faster than they could be looked at.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "netns"}
	s.last.Store(nil)
	sc, stable, err := s.scan(ctx)
	if err != nil {
		return a, err
	}
	claims, err := sc.claims(s.opts.LongestADD)
	if err != nil {
		return a, err
	}
	adds := podsource.Answer{Source: "netns ADDs", Supplementary: true, SeesADDs: true}
	for _, id := range slices.Sorted(maps.Keys(claims)) {
		adds.Pods = append(adds.Pods, podsource.Pod{ContainerIDs: []string{id}, Origin: "CNI ADD by " + claims[id]})
	}
	a.Parts = []podsource.Answer{adds, {Source: "netns", Supplementary: true, SeesAddresses: stable, Pods: sc.pods}}
	s.last.Store(sc)
	return a, nil
}

// Living returns a function that reports whether the network namespace lives that
// somebody called by a path at a time. One at any other path is looked for among
// the mounts of all processes of the node, never as this process sees the path,
// and by its name alone: the directory may be another one in another view. One of
// a process, as /proc/4711/ns/net, lives if the process is there and had started
// by then. Of an empty path, and of one that only its writer could follow, it
// reports whether the time is since the node's boot, since nothing older lives.
//
// It looks at the node anew, unless Pods was called since the last time: then it
// has what that saw. The function is for package cnicache.
func (s *Source) Living(ctx context.Context) (func(path string, at time.Time) bool, error) {
	sc := s.last.Swap(nil)
	if sc == nil {
		var err error
		if sc, _, err = s.scan(ctx); err != nil {
			return nil, err
		}
	}
	boot, err := s.booted()
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool, len(sc.mountedAt))
	for point := range sc.mountedAt {
		names[filepath.Base(point)] = true
	}
	return func(path string, at time.Time) bool {
		pid, ok := processOf(path)
		switch {
		case ok:
		case !filepath.IsAbs(path), strings.Contains(path, "/proc/"): // none, or as only its writer saw it
			return !at.Before(boot.Add(-timeSlack))
		default:
			return names[filepath.Base(path)]
		}
		dir := sc.proc + "/" + pid
		since, _, err := startOf(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return false
		}
		if err == nil { // of a process that has ended, and for which nobody waited yet, no thread is in it
			var inside bool
			inside, err = anyThread(dir, func(dir string) error {
				_, err := nsInode(dir + "/ns/net")
				return err
			})
			if err == nil && !inside {
				return false
			}
		}
		return err != nil || !boot.Add(since).After(at.Add(timeSlack)) // in doubt it lives
	}, nil
}

// booted returns when the node booted, by the wall clock as it was earliest.
func (s *Source) booted() (time.Time, error) {
	up, err := sinceBoot()
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if boot := time.Now().Add(-up).Round(0); s.boot.IsZero() || boot.Before(s.boot) {
		s.boot = boot
	}
	return s.boot, nil
}

// timeSlack is by how much the times of files and of processes may be apart: some
// file systems keep whole seconds only.
const timeSlack = 2 * time.Second

// scan looks at the node until a look finds nothing new. stable is false if it
// gave up before.
func (s *Source) scan(ctx context.Context) (sc *scan, stable bool, err error) {
	host, err := s.checkNode()
	if err != nil {
		return nil, false, err
	}
	sc = &scan{proc: s.opts.Proc, setns: s.setns, found: map[uint64]bool{host: true},
		views: make(map[view]bool), mountedAt: make(map[string][]uint64)}
	// A process may come where the scan has been, when the last one in its
	// namespace goes where it has not been yet. So it ends with a scan that
	// finds nothing new.
	for n := 0; n < maxScans && (n < minScans || !stable); n++ {
		before := len(sc.pods) // those without an address come and go as they like
		if err := sc.processes(ctx); err != nil {
			return nil, false, err
		}
		stable = len(sc.pods) == before
	}
	return sc, stable, nil
}

// checkNode makes sure that all processes of the node can be seen, and returns
// the inode of the node's network namespace. Process 1 tells: who may look into
// it may look into all, unless it is just a container's.
func (s *Source) checkNode() (uint64, error) {
	first := filepath.Join(s.opts.Proc, "1", "ns", "pid")
	inode, err := inodeOf(first)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("looking at process 1: %w; is a procfs mounted at %s, and without hidepid?", err, s.opts.Proc)
	}
	if err != nil {
		return 0, fmt.Errorf("looking at process 1: %w", hint(err))
	}
	if inode != initialPIDNamespace && !s.opts.Nested {
		return 0, fmt.Errorf("%s is not the machine's process 1, but that of a container, and others' processes can't be seen; "+
			"the agent's pod needs hostPID (where the node is itself a container, as in kind, say so with Nested)",
			filepath.Dir(filepath.Dir(first)))
	}
	if inode != initialPIDNamespace {
		if err := s.checkNested(inode); err != nil {
			return 0, err
		}
	}
	host, err := inodeOf(s.opts.HostNetNS)
	if err != nil {
		return 0, fmt.Errorf("looking at the node's network namespace: %w", hint(err))
	}
	return host, nil
}

// inodeOf returns the number of the namespace that a file of it shows.
func inodeOf(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: its inode is not known", path)
	}
	return stat.Ino, nil
}

// hint adds to a refused permission what is needed.
func hint(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; this needs CAP_SYS_PTRACE and CAP_SYS_ADMIN over the node, as a privileged container with hostPID has them", err)
	}
	return err
}
