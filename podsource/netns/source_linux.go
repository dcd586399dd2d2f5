// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

// New returns a source and touches nothing. It refuses a LongestADD or a Timeout
// that is negative. On other systems than Linux it is an error.
func New(opts Options) (*Source, error) {
	if opts.Proc == "" {
		opts.Proc = "/proc"
	}
	if opts.HostNetNS == "" {
		opts.HostNetNS = filepath.Join(opts.Proc, "1", "ns", "net")
	}
	if opts.LongestADD < 0 || opts.Timeout < 0 {
		return nil, fmt.Errorf("LongestADD is %v and Timeout %v; neither may be negative", opts.LongestADD, opts.Timeout)
	}
	opts.LongestADD = cmp.Or(opts.LongestADD, DefaultLongestADD)
	opts.Timeout = cmp.Or(opts.Timeout, DefaultTimeout)
	s := &Source{opts: opts, setns: unix.Setns}
	s.booted() // the clock is watched from here on
	return s, nil
}

// Pods returns two parts. The first has one pod for each CNI ADD under way, with
// its container ID. The second has one for each network namespace with an address,
// with its addresses. Both say where they were seen, and neither has names: a name
// would set it apart from what other sources say of the same pod, as a conflict.
//
// The answer is supplementary, so it may be empty. It declares that every ADD
// under way is in it, and every address in a network namespace. The latter it does
// not declare, and has but what was found, where a namespace is known to be there
// and was not seen: namespaces came faster than they could be looked at, the
// addresses of one changed faster than they could be listed, one is mounted where
// a file system does not let it be opened (FUSE) and was not found elsewhere, or
// the mounts that a process sees are more than 8 MiB of text. All else that can't
// be looked into is an error, also any environment: an ADD that is not seen would
// lose its reservation.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "netns"}
	s.last.Store(nil)
	var claims map[string]string
	sc, err := s.boundedScan(ctx)
	if err == nil {
		claims, err = sc.claims(s.opts.LongestADD)
	}
	if err != nil {
		return a, err
	}
	adds := podsource.Answer{Source: "netns ADDs", Supplementary: true, SeesADDs: true}
	for _, id := range slices.Sorted(maps.Keys(claims)) {
		adds.Pods = append(adds.Pods, podsource.Pod{ContainerIDs: []string{id}, Origin: "CNI ADD by " + claims[id]})
	}
	pods, missing := sc.all()
	seen := podsource.Answer{Source: "netns", Supplementary: true, SeesAddresses: missing == "", Pods: pods}
	if missing != "" {
		seen.Note = "not all addresses are seen: " + missing
	} else {
		seen.Networks, seen.Note = sc.speaks(s.opts.Networks)
	}
	a.Parts = []podsource.Answer{adds, seen}
	s.last.Store(sc)
	return a, nil
}

// boundedScan is scan within Options.Timeout.
func (s *Source) boundedScan(ctx context.Context) (*scan, error) {
	bounded, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	sc, err := s.scan(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = fmt.Errorf("%w: the node could not be looked at within %v: %w", podsource.ErrIncomplete, s.opts.Timeout, err)
	}
	return sc, err
}

// scan looks at the node until a look finds nothing new, or often enough.
func (s *Source) scan(ctx context.Context) (*scan, error) {
	host, err := s.checkNode()
	if err != nil {
		return nil, err
	}
	sc := &scan{restless: true, maxMountText: 8 * maxProcfs, proc: s.opts.Proc, setns: s.setns, found: map[uint64]bool{host: true}, unseen: make(map[uint64]podsource.Pod),
		views: make(map[view]bool), mountedAt: make(map[string][]uint64)}
	if len(s.opts.Networks) > 0 {
		sc.bare = make(map[uint64]string)
	}
	// A process may come where the scan has been, when the last one in its
	// namespace goes where it has not been yet. So it ends with a scan that
	// finds nothing new.
	for n := 0; n < maxScans && (n < minScans || sc.restless); n++ {
		before := len(sc.pods) // those without an address come and go as they like
		if err := sc.processes(ctx); err != nil {
			return nil, err
		}
		sc.restless = len(sc.pods) > before
	}
	return sc, nil
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
	host, err := inodeOf(s.opts.HostNetNS)
	if strings.HasPrefix(s.opts.HostNetNS, s.opts.Proc+"/") {
		err = hint(err)
	}
	if err != nil {
		return 0, fmt.Errorf("looking at the node's network namespace: %w", err)
	}
	if inode != initialPIDNamespace {
		return host, s.checkNested(inode)
	}
	return host, nil
}

// inodeOf returns the number of the namespace that a file of it shows.
func inodeOf(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return stat.Ino, nil
}

// hint adds to a refused permission what is needed. It is for what procfs and the
// kernel's namespaces refuse, and not for other file systems.
func hint(err error) error {
	var there *namespaceError
	switch {
	case !errors.Is(err, fs.ErrPermission):
		return err
	case errors.As(err, &there):
		return fmt.Errorf("%w; this needs CAP_SYS_ADMIN over the node, as a privileged container with hostPID has it", err)
	case errors.Is(err, syscall.EPERM): // what may not be traced is EACCES
		return fmt.Errorf("%w; procfs is mounted with hidepid: this needs CAP_SYS_PTRACE over the node, or Proc without hidepid", err)
	}
	return fmt.Errorf("%w; this needs CAP_SYS_PTRACE and CAP_SYS_ADMIN over the node, as a privileged container with hostPID has them", err)
}
