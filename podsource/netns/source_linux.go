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
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// initialPIDNamespace is the inode of the machine's own PID namespace:
// PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h.
const initialPIDNamespace = 0xEFFFFFFC

// A Source asks the kernel which ADDs are in flight and which addresses are in use.
// It keeps nothing open between calls.
type Source struct {
	opts     Options
	setns    func(fd, kind int) error
	patience time.Duration        // how long a call of the kernel may take
	last     atomic.Pointer[scan] // of the last call of Pods, until Living uses it
	hangs    hangs

	boot boottime.Earliest
}

// New returns a source. It reads nothing but the clocks. A negative LongestADD is an error.
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
	s := &Source{opts: opts, setns: unix.Setns, patience: time.Second, hangs: hangs{all: make(map[string]int)}}
	s.boot.Read() // notices when the clock is set forward from now on
	return s, nil
}

// Pods returns two parts. The first has one pod for each CNI ADD in flight, with its
// container ID. The second has one pod for each network namespace with an address,
// with its addresses. The node's own has HostNetwork: a reserved address that is
// configured there is kept (hazard 87). One in which no process is, only a mount, is
// NotRunning. The pods have an Origin and no names: with a name a pod would conflict with
// the same pod of another source.
//
// The answer is supplementary, so it may be empty. It declares that every ADD in
// flight is in it, and every address in a network namespace. It declares neither, and
// has what was found, if a process can't be read in time: if its memory is locked by a
// mount that hangs (hazard 91), or its threads start and end all the time. Its Note names
// the process. It does not declare the addresses alone if namespaces appeared faster
// than they could be read, if the addresses of one changed faster than they could be
// listed, if one is mounted where a file system does not let it be opened (FUSE) and
// was not found elsewhere, or if the mounts of a process are more than 8 MiB of text.
// Anything else that can't be read is an error (R2). This includes any environment:
// an ADD that is not seen would lose its reservation.
//
// A reading that hangs is given up after two seconds at most, and the node is read again
// without it. It keeps its thread, and is not repeated before it has returned. With 100 of
// them Pods returns an error. On a node whose processes can't be seen the error wraps
// [podsource.ErrNotHere].
//
// A call on a node with 1,000 processes takes some 0.05 s.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "netns"}
	s.last.Store(nil)
	sc, err := s.scan(ctx)
	if err != nil {
		return a, err
	}
	adds := podsource.Answer{Source: "netns ADDs", Supplementary: true}
	for _, id := range slices.Sorted(maps.Keys(sc.claims)) {
		adds.Pods = append(adds.Pods, podsource.Pod{ContainerIDs: []string{id}, Origin: "CNI ADD by " + sc.claims[id]})
	}
	if late := sc.lateProcesses(); late != "" {
		adds.Note = "not all ADDs are seen: " + late
	} else {
		adds.SeesADDs = []string{podsource.EveryNetwork}
	}
	pods, missing := sc.all()
	seen := podsource.Answer{Source: "netns", Supplementary: true, SeesAddresses: missing == "", Pods: pods}
	if missing != "" {
		seen.Note = "not all addresses are seen: " + missing
	} else {
		seen.Networks, seen.Note = sc.answerNetworks()
	}
	a.Parts = []podsource.Answer{adds, seen}
	s.last.Store(sc)
	return a, nil
}

// checkNode checks that all processes of the node can be read, and returns the inode
// of the node's network namespace. A process that may read process 1 may read all,
// unless process 1 is only a container's.
func (s *scan) checkNode() (uint64, error) {
	dir := s.opts.Proc + "/1"
	pidNS, err := inodeOf(dir + "/ns/pid")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("reading process 1: %w; is a procfs mounted at %s, and without hidepid?", err, s.opts.Proc)
	}
	if err != nil {
		return 0, fmt.Errorf("reading process 1: %w", procfsError(err))
	}
	if pidNS != initialPIDNamespace && !s.opts.Nested {
		return 0, fmt.Errorf("%w: %s is process 1 of a container, not of the machine, so the node's other processes can't be seen; "+
			"the agent's pod needs hostPID (if the node is itself a container, as in kind, say so with Nested)", podsource.ErrNotHere, dir)
	}
	host, err := inodeOf(s.opts.HostNetNS)
	if strings.HasPrefix(s.opts.HostNetNS, s.opts.Proc+"/") {
		err = procfsError(err)
	}
	if err != nil {
		return 0, fmt.Errorf("reading the node's network namespace: %w", err)
	}
	if pidNS != initialPIDNamespace {
		return host, s.checkNested(pidNS)
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

// procfsError adds what to do to a permission error of procfs.
func procfsError(err error) error {
	if errors.Is(err, syscall.EPERM) { // a process that may not be traced is EACCES
		err = fmt.Errorf("%w; procfs is mounted with hidepid", err)
	}
	return hint(err)
}

// hint adds the missing privileges to a permission error.
func hint(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	var effective [2]unix.CapUserData
	_ = unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &effective[0]) // after an error all are missing
	names := map[int]string{unix.CAP_DAC_READ_SEARCH: "CAP_DAC_READ_SEARCH", unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN"}
	all := slices.Sorted(maps.Values(names))
	maps.DeleteFunc(names, func(n int, _ string) bool { return effective[0].Effective&(1<<n) != 0 })
	missing := slices.Sorted(maps.Values(names))
	if len(missing) == 0 { // it has them over a user namespace of its own
		missing = all
	}
	return fmt.Errorf("%w; this needs %s over the node, as a privileged container with hostPID has them", err, strings.Join(missing, ", "))
}

var errOwnProcess1 = errors.New("process 1 is a container's, and nothing shows that this container is a node: " +
	"no process is in a child PID namespace, as of a container, and no ancestor of this process has other mounts. " +
	"The agent's pod needs hostPID, or Proc must be the path of the node's procfs. An agent directly on a nested node " +
	"without containers needs a PID namespace of its own and the node's /proc, as by unshare --pid --fork")

// checkNested checks that process 1, which is not the machine's, is a nested node's,
// and not the agent's own pod's. Both look alike to the kernel, but a node runs
// containers. One of these shows it:
//
//   - a process in a child PID namespace is in another container than process 1. It
//     may be the agent itself, if it has the node's procfs and no hostPID.
//   - an ancestor of the agent with other mounts has started the agent's container
//     (with hostPID). It must not be process 1: in a pod with a shared PID namespace
//     process 1 has mounts of its own, and adopts processes whose parent has ended.
func (s *scan) checkNested(pidNS uint64) error {
	pids, err := s.pids()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		child := false
		s.within("process "+pid, func() {
			inode, ok := s.nsInode(s.opts.Proc+"/"+pid, "/ns/pid")
			child = ok && inode != pidNS
		})
		if child {
			return nil
		}
		if s.err != nil {
			return fmt.Errorf("reading process %s: %w", pid, s.err)
		}
	}
	pid, err := os.Readlink(s.opts.Proc + "/self")
	if err != nil {
		return fmt.Errorf("finding this process in procfs: %w", err)
	}
	mounts, ok := s.nsInode(s.opts.Proc+"/"+pid, "/ns/mnt")
	for ok && pid != "0" && pid != "1" { // the parent of a process whose parent is outside the PID namespace is 0
		inode, _ := s.nsInode(s.opts.Proc+"/"+pid, "/ns/mnt")
		if inode != 0 && inode != mounts {
			return nil
		}
		var fields []string
		if _, fields, ok = s.readStat(s.opts.Proc + "/" + pid); ok {
			pid = fields[1]
		}
	}
	if !ok {
		return fmt.Errorf("the ancestors of this process can't be read: %w", cmp.Or(s.err, fs.ErrNotExist))
	}
	return errOwnProcess1
}
