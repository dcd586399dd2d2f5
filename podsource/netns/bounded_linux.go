// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxHangs is how many readings of a source may hang. Each keeps a thread, and a Go
// program has at most 10,000.
const maxHangs = 100

// hangs are the processes, and the other files, whose last reading has not returned. A
// process that hangs while it executes a program hangs in each of its files.
type hangs struct {
	mu  sync.Mutex
	all map[string]bool
}

// bounded calls do, which reads a file in the directory of a process or thread and may
// hang, and reports whether it could. If it takes too long, another thread goes on with the
// scan, and this one ends when do returns. So do must change nothing of s. Until then the
// process can't be read in time.
func (s *scan) bounded(dir, name string, do func(file string) error) bool {
	file := dir + name
	key := file
	if process := s.opts.Proc + "/" + s.pid; s.pid != "" && strings.HasPrefix(file, process+"/") {
		key = process
	}
	s.hangs.mu.Lock()
	hangs, n := s.hangs.all[key], len(s.hangs.all)
	s.hangs.mu.Unlock()
	switch ended := s.ended(); {
	case s.err != nil || s.skip:
		return false
	case hangs:
		s.tooLate("reading " + key + " hangs")
		return false
	case ended != nil:
		s.err = ended
		return false
	case n >= maxHangs:
		s.err = fmt.Errorf("%d processes hang when they are read; does a network file system not answer?", n)
		return false
	}
	s.calls++
	s.reads = key
	call := s.calls
	s.call.Store(call)
	err := do(file)
	if !s.call.CompareAndSwap(call, 0) {
		s.hangs.mu.Lock()
		defer s.hangs.mu.Unlock()
		delete(s.hangs.all, key)
		runtime.Goexit() //nolint:forbidigo // another thread has the scan: see watch
	}
	if err != nil && !hasExited(dir, err) {
		s.err = procfsError(err)
	}
	return err == nil
}

// tooLate notes that the process that is read can't be read in time.
func (s *scan) tooLate(why string) {
	s.late["process "+s.pid+" can't be read in time: "+why] = true
	s.skip = true
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

// open opens a file with more flags. The caller closes fd, also if open does not return.
func (s *scan) open(fd *int, dir, name string, flags int) bool {
	return s.bounded(dir, name, func(file string) (err error) {
		*fd, err = openFile(file, flags)
		return err
	})
}

func openFile(file string, flags int) (int, error) {
	fd, err := unix.Open(file, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		err = &fs.PathError{Op: "open", Path: file, Err: err}
	}
	return fd, err
}

// abandon takes the scan from its thread if that is in a call of bounded with this number.
func (s *scan) abandon(call int64) bool {
	s.hangs.mu.Lock()
	defer s.hangs.mu.Unlock()
	if call == 0 || !s.call.CompareAndSwap(call, 0) {
		return false
	}
	s.hangs.all[s.reads] = true
	s.buf = nil // the kernel may still write to it
	return true
}

// watch calls do on a thread, and goes on with another one whenever a call of bounded takes
// longer than patience. So do goes on where it was.
func (s *scan) watch(ctx context.Context, do func() error) error {
	tick := time.NewTicker(s.patience)
	defer tick.Stop()
	for {
		ended := make(chan error, 1)
		onThread(func() { ended <- s.run(do) })
		for last, abandoned := int64(0), false; !abandoned; {
			select {
			case err := <-ended:
				return err
			case <-ctx.Done():
				if s.abandon(s.call.Load()) {
					s.close()
				}
				return ctx.Err()
			case <-tick.C:
				call := s.call.Load()
				abandoned = call == last && s.abandon(call)
				last = call
			}
		}
		tick.Reset(s.patience / 4) // others may hang for the same reason
	}
}

// onThread calls do on a thread of its own that ends with it, so that nothing else runs on
// a thread that was in another namespace. It is not the main thread, which stands for the
// process in procfs.
func onThread(do func()) {
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(do) // while this goroutine keeps the main thread
			runtime.UnlockOSThread()
			close(started)
			return
		}
		close(started)
		do()
	}()
	<-started
}

// run calls do with an open descriptor of the thread's own network namespace. A panic is an
// error, so that the agent goes on (R13).
func (s *scan) run(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panicked: %v\n%s", p, debug.Stack())
		}
	}()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("opening this process's network namespace: %w", err)
	}
	defer func() { _ = home.Close() }() // it was only read
	s.home = int(home.Fd())
	err = do()
	s.close()
	return err
}
