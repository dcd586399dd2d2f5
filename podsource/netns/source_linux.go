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
	"regexp"
	"slices"
	"strings"
	"sync"
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
	opts  Options
	setns func(fd, kind int) error
	last  atomic.Pointer[scan] // of the last call of Pods, until Living uses it
	boot  boottime.Earliest

	mu    sync.Mutex
	hangs map[string]int // the threads of which the reading of a process or another thing has not returned
}

// New returns a source. It reads nothing but the clocks. A negative LongestADD is an error.
func New(opts Options) (*Source, error) {
	if opts.LongestADD < 0 || opts.Patience < 0 {
		return nil, fmt.Errorf("LongestADD is %v and Patience %v; they must not be negative", opts.LongestADD, opts.Patience)
	}
	opts.Proc = cmp.Or(opts.Proc, "/proc")
	opts.LongestADD = cmp.Or(opts.LongestADD, DefaultLongestADD)
	opts.Patience = cmp.Or(opts.Patience, time.Second)
	s := &Source{opts: opts, setns: unix.Setns, hangs: make(map[string]int)}
	s.boot.Read() // notices when the clock is set forward from now on
	return s, nil
}

// Pods returns two parts. The first has one pod for each CNI ADD in flight, with its
// container ID. The second has one pod for each network namespace with an address, since
// without one it could own any reservation without a known owner (R4). The node's own has
// HostNetwork. One in which no process is, only a mount, is NotRunning. The pods have an
// Origin and no names: with a name a pod would conflict with the same pod of another source.
//
// It declares that every ADD in flight is in the answer, and every address in a network
// namespace. It declares neither, and has what was found, if a process can't be read in time:
// if its memory is locked by a mount that hangs (hazard 91), or its threads start and end all
// the time; if a network namespace or the mounts below a root can't; or if a process in the
// node's PID namespace has an environment of 1 MiB or more. Its Note names it.
//
// It does not declare the addresses alone if namespaces appeared faster than they could be
// read, if the addresses of one changed faster than they could be listed, if one is mounted
// where a file system does not let it be opened (FUSE) and was not found elsewhere, or if the
// mounts of a process are more than 8 MiB of text. Anything else that can't be read is an
// error (R2): an ADD that is not seen would lose its reservation. Where the node's processes
// can't be seen it wraps [podsource.ErrNotHere].
//
// One thread of its own reads all of a call. If a reading takes longer than Options.Patience,
// which is noticed before twice that time, the node is read again without it. It keeps its thread, and is not
// repeated before it has returned. With 100 of them Pods returns an error.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	s.last.Store(nil)
	sc, err := s.scan(ctx)
	if err != nil {
		return podsource.Answer{Source: "netns"}, err
	}
	adds := podsource.Answer{Source: "netns ADDs", Supplementary: true, SeesADDs: []string{podsource.EveryNetwork}}
	for _, id := range slices.Sorted(maps.Keys(sc.claims)) {
		adds.Pods = append(adds.Pods, podsource.Pod{ContainerIDs: []string{id}, Origin: "CNI ADD by " + sc.claims[id]})
	}
	pods, missing := sc.all()
	if len(sc.late) > 0 {
		adds.SeesADDs, adds.Note = nil, "not all ADDs are seen: "+missing
	}
	seen := podsource.Answer{Source: "netns", Supplementary: true, SeesAddresses: missing == "", Pods: pods}
	if missing != "" {
		seen.Note = "not all addresses are seen: " + missing
	} else if inodes := slices.Sorted(maps.Keys(sc.unaddressed)); len(inodes) > 0 {
		seen.Note = fmt.Sprintf("%s: its container may use one that is not seen, so no address is known to be free (networks %v)",
			sc.unaddressed[inodes[0]], s.opts.Networks)
	} else {
		seen.Networks = slices.Clone(s.opts.Networks)
	}
	s.last.Store(sc)
	return podsource.Answer{Source: "netns", Parts: []podsource.Answer{adds, seen}}, nil
}

// checkNode checks that all processes of the node can be read, and notes its namespaces. A
// process that may read process 1 may read all, unless process 1 is only a container's.
func (s *scan) checkNode() {
	dir := s.opts.Proc + "/1"
	s.pidNS = s.nsInode(dir, "/ns/pid")
	s.host = s.nsInode(dir, "/ns/net")
	switch {
	case s.err != nil:
	case s.host == 0:
		s.err = fmt.Errorf("reading process 1: %w; is a procfs mounted at %s, and without hidepid?", fs.ErrNotExist, s.opts.Proc)
	case s.pidNS != initialPIDNamespace && !s.opts.Nested:
		s.err = fmt.Errorf("%w: %s is process 1 of a container, not of the machine, so the node's other processes can't be seen; "+
			"the agent's pod needs hostPID (if the node is itself a container, as in kind, say so with Nested)", podsource.ErrNotHere, dir)
	case s.pidNS != initialPIDNamespace && !s.opts.StartedByRuntime:
		s.checkNested()
	}
}

var errOwnProcess1 = errors.New("process 1 is a container's, and nothing shows that this container is a node: " +
	"no process is in a child PID namespace, as of a container, and no ancestor of this process has other mounts. " +
	"The agent's pod needs hostPID, or Proc must be the path of the node's procfs. An agent directly on a nested node " +
	"without containers needs a PID namespace of its own and the node's /proc, as by unshare --pid --fork")

// checkNested checks that process 1, which is not the machine's, is a nested node's, and not
// the agent's own pod's: see Options.Nested. A process in a child PID namespace may be the agent
// itself, if it has the node's procfs and no hostPID. The ancestor must not be process 1: in a pod
// with a shared PID namespace that has mounts of its own, and adopts processes whose parent has
// ended.
func (s *scan) checkNested() {
	for _, pid := range s.pids() {
		child := false
		s.process(pid, func(_, dir string) {
			inode := s.nsInode(dir, "/ns/pid")
			child = inode != 0 && inode != s.pidNS
		})
		if child {
			return
		}
	}
	for pid, own := "self", uint64(0); s.err == nil; { // the mounts of this process
		dir := s.opts.Proc + "/" + pid
		mounts := s.nsInode(dir, "/ns/mnt")
		_, parent, _, alive := s.readStat(dir)
		own = cmp.Or(own, mounts)
		switch {
		case mounts == 0 || !alive:
			s.err = fmt.Errorf("the ancestors of this process can't be read: %w", cmp.Or(s.err, fs.ErrNotExist))
		case mounts != own:
			return
		case parent == "0" || parent == "1": // 0 is outside the PID namespace
			if s.err = errOwnProcess1; len(s.late) > 0 { // one of these may show it
				s.err = fmt.Errorf("%w (not read: %q)", s.err, slices.Sorted(maps.Keys(s.late)))
			}
		}
		pid = parent
	}
}

// Living returns a function that reports whether a network namespace that had a path
// at a time still exists, and whether that is certain. It is for package cnicache.
//
// For the path of a process, such as /proc/4711/ns/net, the process must exist and
// must have started by that time. Any other path is looked up among the mounts of all
// processes of the node, by its last element only, since its directory may have
// another path in another mount namespace. If nothing with that name is mounted, symbolic
// links are followed from process 1's root, and the same rules hold for their targets.
//
// If it can't decide, it reports whether the time is after the node's boot, since no
// namespace outlives a boot, and that this is not certain. It can't decide for an empty
// path, for one that only its writer could follow, for links that form a circle or can't be
// read, for a procfs at another path, where a process could not be read so that a mount may be missing, and for a process
// that exists and seems to have started later: it may have got the PID of another one, or
// the clock was set since (hazards 80 and 115).
//
// Living uses what Pods found if Pods was called since the last call of Living.
// Otherwise it reads the node again, with the errors of Pods.
func (s *Source) Living(ctx context.Context) (func(path string, at time.Time) (lives, sure bool), error) {
	sc := s.last.Swap(nil)
	if sc == nil {
		var err error
		if sc, err = s.scan(ctx); err != nil {
			return nil, err
		}
	}
	boot := s.boot.Read()
	return func(file string, at time.Time) (lives, sure bool) {
		thisBoot := !at.Before(boot.Add(-timestampTolerance))
		one, both := s.newScan(ctx), [2]bool{}
		one.mountedAs, one.missing, one.late = sc.mountedAs, sc.missing, maps.Clone(sc.late)
		hangs, err := one.watch(ctx, s.opts.Patience, func() error {
			both[0], both[1] = one.lives(file, at, boot, thisBoot)
			return nil
		})
		if hangs || err != nil { // then the thread may still write the result
			return thisBoot, false
		}
		return both[0], both[1]
	}, nil
}

// lives is what Living returns.
func (s *scan) lives(file string, at, boot time.Time, thisBoot bool) (lives, sure bool) {
	for range 40 { // symbolic links are followed, as in the kernel
		clean := path.Clean(file)
		if m := processPath.FindStringSubmatch(clean); m != nil {
			lives = thisBoot
			s.within("process "+m[1], func() { lives, sure = s.processLives(m[1], boot, at) })
			return lives, sure
		}
		if !path.IsAbs(file) || strings.Contains(file, "/proc/") { // no path, or one that only its writer could follow
			break
		}
		if _, ok := s.mountedAs[path.Base(clean)]; ok {
			return true, true
		}
		next, err := "", error(nil)
		s.within("the root of process 1", func() { next, err = s.follow(file) })
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			unclear := s.missing != "" || len(s.late) > 0 || otherProcfs.MatchString(clean)
			return thisBoot && unclear, !unclear
		}
		file = next // empty beside an error, and if it hangs
	}
	return thisBoot, false
}

// otherProcfs matches the path of a process's namespace, or of an open descriptor, in
// a procfs that is mounted at an unknown path.
var otherProcfs = regexp.MustCompile(`/(?:ns/net|fd/[0-9]+)$`)

// processLives reports whether a process exists, had started by a time, and has a
// thread in a network namespace, and whether that is certain: if it seems to have started
// later, it is not. It lives if something else is not known.
func (s *scan) processLives(pid string, boot, at time.Time) (lives, sure bool) {
	dir := s.opts.Proc + "/" + pid
	_, _, started, ok := s.readStat(dir)
	inNetNS := ok && s.anyThread(pid, dir, func(dir string) bool { // a zombie has no thread in one
		return s.nsInode(dir, "/ns/net") != 0
	})
	later := boot.Add(started).After(at.Add(timestampTolerance))
	return s.err != nil || inNetNS && !later, s.err != nil || !inNetNS || !later
}

// follow replaces the first symbolic link in an absolute path by its target, from
// process 1's root. If there is none, it returns fs.ErrNotExist. (The kernel would look up an
// absolute target from this process's root.)
func (s *scan) follow(file string) (string, error) {
	for done, rest := "/", file; rest != ""; { // done has no links
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next := path.Join(done, name)
		target, err := os.Readlink(s.opts.Proc + "/1/root" + next)
		switch {
		case errors.Is(err, syscall.EINVAL): // not a link
			done = next
		case err != nil:
			return "", err
		case path.IsAbs(target):
			return target + "/" + rest, nil
		default:
			return done + "/" + target + "/" + rest, nil
		}
	}
	return "", fs.ErrNotExist
}

// timestampTolerance is how far the times of files and of processes may be apart: some
// file systems keep only whole seconds.
const timestampTolerance = 2 * time.Second
