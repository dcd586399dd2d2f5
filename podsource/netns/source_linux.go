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
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// initialPIDNamespace is the inode of the machine's own PID namespace:
// PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h.
const initialPIDNamespace = 0xEFFFFFFC

// One call reads all processes at least minScans times, since between two plugins of
// its chain an ADD has no process (hazard 72), and at most maxScans times while new
// namespaces appear.
const minScans, maxScans = 2, 5

// A Source asks the kernel which ADDs are in flight and which addresses are in use.
// It keeps nothing open between calls.
type Source struct {
	opts  Options
	setns func(fd, kind int) error
	last  atomic.Pointer[scan] // of the last call of Pods, until Living uses it

	boot boottime.Earliest
}

// New returns a source. It reads nothing but the clocks. A negative LongestADD
// is an error, and so is any system other than Linux.
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
	s.boot.Read() // notices when the clock is set forward from now on
	return s, nil
}

// Pods returns two parts. The first has one pod for each CNI ADD in flight, with its
// container ID. The second has one pod for each network namespace with an address,
// with its addresses. The node's own has HostNetwork: a reserved address that is
// configured there is kept (hazard 87). The pods have an Origin and no names: with a
// name a pod would conflict with the same pod of another source.
//
// The answer is supplementary, so it may be empty. It declares that every ADD in
// flight is in it, and every address in a network namespace. It does not declare the
// latter, and has only the addresses that were found, if namespaces appeared faster
// than they could be read, if the addresses of one changed faster than they could be
// listed, if one is mounted where a file system does not let it be opened (FUSE) and
// was not found elsewhere, or if the mounts of a process are more than 8 MiB of text.
// Anything else that can't be read is an error (R2). This includes any environment:
// an ADD that is not seen would lose its reservation.
//
// A call on a node with 1,000 processes takes some 0.1 s.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "netns"}
	s.last.Store(nil)
	var claims map[string]string
	sc, err := s.scan(ctx)
	if err == nil {
		claims, err = sc.claims(s.opts.LongestADD)
	}
	if err != nil {
		return a, err
	}
	adds := podsource.Answer{Source: "netns ADDs", Supplementary: true, SeesADDs: []string{podsource.EveryNetwork}}
	for _, id := range slices.Sorted(maps.Keys(claims)) {
		adds.Pods = append(adds.Pods, podsource.Pod{ContainerIDs: []string{id}, Origin: "CNI ADD by " + claims[id]})
	}
	pods, missing := sc.all()
	seen := podsource.Answer{Source: "netns", Supplementary: true, SeesAddresses: missing == "", Pods: pods}
	if missing != "" {
		seen.Note = "not all addresses are seen: " + missing
	} else {
		seen.Networks, seen.Note = sc.answerNetworks(s.opts.Networks)
	}
	a.Parts = []podsource.Answer{adds, seen}
	s.last.Store(sc)
	return a, nil
}

// scan reads all processes of the node until it finds nothing new, at most maxScans
// times.
func (s *Source) scan(ctx context.Context) (*scan, error) {
	host, err := s.checkNode()
	if err != nil {
		return nil, err
	}
	sc := &scan{foundNew: true, maxMountText: 8 * maxProcfs, proc: s.opts.Proc, setns: s.setns, host: host, found: make(map[uint64]bool), unreadable: make(map[uint64]podsource.Pod),
		readRoots: make(map[processRoot]bool), mountedAt: make(map[string][]uint64)}
	if len(s.opts.Networks) > 0 {
		sc.unaddressed = make(map[uint64]string)
	}
	// A process may start with a PID that was already passed, and the last other
	// process of its namespace may end before it is read. So the last scan is one
	// that finds nothing new.
	for n := 0; n < maxScans && (n < minScans || sc.foundNew); n++ {
		before := len(sc.pods) // without namespaces that have no address: those don't count
		if err := sc.processes(ctx); err != nil {
			return nil, err
		}
		sc.foundNew = len(sc.pods) > before
	}
	return sc, nil
}

// checkNode checks that all processes of the node can be read, and returns the inode
// of the node's network namespace. A process that may read process 1 may read all,
// unless process 1 is only a container's.
func (s *Source) checkNode() (uint64, error) {
	first := filepath.Join(s.opts.Proc, "1", "ns", "pid")
	inode, err := inodeOf(first)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("reading process 1: %w; is a procfs mounted at %s, and without hidepid?", err, s.opts.Proc)
	}
	if err != nil {
		return 0, fmt.Errorf("reading process 1: %w", hint(err))
	}
	if inode != initialPIDNamespace && !s.opts.Nested {
		return 0, fmt.Errorf("%s is process 1 of a container, not of the machine, so the node's other processes can't be seen; "+
			"the agent's pod needs hostPID (if the node is itself a container, as in kind, say so with Nested)",
			filepath.Dir(filepath.Dir(first)))
	}
	host, err := inodeOf(s.opts.HostNetNS)
	if strings.HasPrefix(s.opts.HostNetNS, s.opts.Proc+"/") {
		err = hint(err)
	}
	if err != nil {
		return 0, fmt.Errorf("reading the node's network namespace: %w", err)
	}
	if inode != initialPIDNamespace {
		return host, s.checkNested(inode)
	}
	return host, nil
}

// inodeOf returns the inode number of a namespace, given a file that opens it.
func inodeOf(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return stat.Ino, nil
}

// hint adds the missing privilege to a permission error. It is for errors of procfs
// and of namespaces, not of other file systems.
func hint(err error) error {
	var nsErr *namespaceError
	switch {
	case !errors.Is(err, fs.ErrPermission):
		return err
	case errors.As(err, &nsErr):
		return fmt.Errorf("%w; this needs CAP_SYS_ADMIN over the node, as a privileged container with hostPID has it", err)
	case errors.Is(err, syscall.EPERM): // a process that may not be traced is EACCES
		return fmt.Errorf("%w; procfs is mounted with hidepid: this needs CAP_SYS_PTRACE over the node, or Proc without hidepid", err)
	}
	return fmt.Errorf("%w; this needs CAP_SYS_PTRACE and CAP_SYS_ADMIN over the node, as a privileged container with hostPID has them", err)
}
