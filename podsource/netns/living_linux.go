// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Living returns a function that reports whether a network namespace that had a path
// at a time still exists, and whether that is certain. It is for package cnicache.
//
// For the path of a process, such as /proc/4711/ns/net, the process must exist and
// must have started by that time. Any other path is looked up among the mounts of all
// processes of the node, by its last element only, since its directory may have
// another path in another mount namespace. The path is never looked up in this
// process's own mount namespace. If nothing with that name is mounted, symbolic links
// are followed from process 1's root, and the same rules hold for their targets.
//
// If it can't decide, it reports whether the time is after the node's boot, since no
// namespace outlives a boot, and that this is not certain. It can't decide for an
// empty path, for one that only its writer could follow, for links that form a circle
// or can't be read, for a procfs at another path, if there are too many mounts to be
// read or a process can't be read in time, and for the path of a process that exists and seems to have started later: it may
// have got the PID of another one, or the clock was set since (hazards 80 and 115).
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
		one.mountedAs, one.truncated = sc.mountedAs, sc.truncated || len(sc.late) > 0
		hangs, err := one.watch(ctx, s.patience, func() error {
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
	for range maxLinks {
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
		var next string
		var err error
		s.within("the root of process 1", func() { next, err = s.follow(file) })
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			unclear := s.truncated || otherProcfs.MatchString(clean)
			return thisBoot && unclear, !unclear
		}
		file = next // empty beside an error, and if it hangs
	}
	return thisBoot, false
}

// maxLinks is how many symbolic links are followed, as in the kernel.
const maxLinks = 40

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
		_, ok := s.nsInode(dir, "/ns/net")
		return ok
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
