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

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// Living returns a function that reports whether the network namespace lives that
// somebody called by a path at a time, and whether that is sure. It is for package
// cnicache.
//
// A path of a process, as /proc/4711/ns/net, lives if the process is there and had
// started by then. Any other is looked for among the mounts of all processes of
// the node, never as this process sees the path, and by its name alone: the
// directory may be another one in another view. Where nothing of that name is
// mounted, symbolic links are followed as process 1 sees them, and what they lead
// to counts in the same way.
//
// Of an empty path, and of one that nobody but its writer could follow, it reports
// whether the time is since the node's boot, since nothing older lives, and that
// this is not sure. That holds wherever it can't be decided: links that lead in a
// circle or can't be read, a procfs by another name, and mounts that are too many
// to be read.
//
// A clock that was set forward between that time and the start of this process
// makes processes look younger than they are.
//
// Living looks at the node anew, unless Pods was called since the last time: then
// it has what that saw.
func (s *Source) Living(ctx context.Context) (func(path string, at time.Time) (lives, sure bool), error) {
	sc := s.last.Swap(nil)
	if sc == nil {
		var err error
		if sc, err = s.boundedScan(ctx); err != nil {
			return nil, err
		}
	}
	boot := s.booted()
	names := make(map[string]bool, len(sc.mountedAt))
	for point := range sc.mountedAt {
		names[path.Base(point)] = true
	}
	return func(file string, at time.Time) (lives, sure bool) {
		thisBoot := !at.Before(boot.Add(-timeSlack))
		for range maxLinks {
			if pid, ok := processOf(file); ok {
				return sc.processLives(pid, boot, at), true
			}
			if !path.IsAbs(file) || strings.Contains(file, "/proc/") { // none, or as only its writer saw it
				return thisBoot, false
			}
			if names[path.Base(path.Clean(file))] {
				return true, true
			}
			next, err := sc.follow(file)
			switch {
			case errors.Is(err, errNoLink), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
				unclear := sc.truncated || otherProcfs.MatchString(path.Clean(file))
				return thisBoot && unclear, !unclear
			}
			file = next // empty beside an error
		}
		return thisBoot, false
	}, nil
}

// maxLinks is how many symbolic links are followed, as in the kernel.
const maxLinks = 40

// otherProcfs is a path of a process's namespace, or of one that it has open,
// where procfs is mounted by a name that is not known.
var otherProcfs = regexp.MustCompile(`/(?:ns/net|fd/[0-9]+)$`)

// processLives reports whether a process is there that had started by a time, and
// some thread of it is in a network namespace. In doubt it is.
func (s *scan) processLives(pid string, boot, at time.Time) bool {
	dir := s.proc + "/" + pid
	since, _, err := startOf(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	inside, threadErr := anyThread(dir, func(dir string) error {
		_, err := nsInode(dir + "/ns/net")
		return err
	})
	if err = errors.Join(err, threadErr); err != nil {
		return true
	}
	// Of one that has ended, and for which nobody waited yet, no thread is in it.
	return inside && !boot.Add(since).After(at.Add(timeSlack))
}

var errNoLink = errors.New("there is no symbolic link in it")

// follow returns what an absolute path leads to by its first symbolic link, as
// process 1 sees it. (The kernel would look up an absolute link from the root of
// this process.)
func (s *scan) follow(file string) (string, error) {
	done, rest := "/", file // no link is left in what is done
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		dir := done
		done = path.Join(dir, name)
		target, err := os.Readlink(s.proc + "/1/root" + done)
		switch {
		case errors.Is(err, syscall.EINVAL): // it is no link
		case err != nil:
			return "", err
		case path.IsAbs(target):
			return target + "/" + rest, nil
		default:
			return dir + "/" + target + "/" + rest, nil
		}
	}
	return "", errNoLink
}

// booted returns when the node booted, by the wall clock as it was earliest: zero where
// the kernel tells no time, and then all may be of this boot.
func (s *Source) booted() time.Time {
	up := boottime.Since()
	if up == 0 {
		return time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if boot := time.Now().Add(-up).Round(0); s.boot.IsZero() || boot.Before(s.boot) {
		s.boot = boot
	}
	return s.boot
}

// timeSlack is by how much the times of files and of processes may be apart: some
// file systems keep whole seconds only.
const timeSlack = 2 * time.Second
