// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// maxHangs is how many readings of a source may hang. Each keeps a thread, and a Go
// program has at most 10,000.
const maxHangs = 100

// within calls do, which reads something that may hang, such as a process. If an earlier
// reading of it hangs, or this call gave it up, do is not called, and the answer lacks it.
func (s *scan) within(what string, do func()) {
	s.mu.Lock()
	hangs := s.hangs[what] > 0 || s.gaveUp[what]
	s.mu.Unlock()
	if hangs {
		s.late[what+" can't be read in time"] = true
		return
	}
	outer := s.last
	s.step(&what)
	do()
	s.step(outer)
}

// step notes what the thread of the scan reads next. If the thread was given up, it ends.
func (s *scan) step(next *string) {
	if next != nil {
		what := *next // another address, which shows that the scan goes on
		next = &what
	}
	if !s.reads.CompareAndSwap(s.last, next) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hangs[*s.last]--; s.hangs[*s.last] == 0 {
			delete(s.hangs, *s.last)
		}
		runtime.Goexit() //nolint:forbidigo // the node is read by another thread: see watch
	}
	s.last = next
}

// abandon gives up the thread that reads this.
func (s *scan) abandon(what *string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what == nil || !s.reads.CompareAndSwap(what, nil) {
		return false
	}
	s.hangs[*what]++
	s.gaveUp[*what] = true
	return true
}

// watch calls do on a thread of its own. If that reads one thing for longer than patience, it
// is left to it, and watch reports that it hangs.
func (s *scan) watch(ctx context.Context, patience time.Duration, do func() error) (hangs bool, err error) {
	s.mu.Lock()
	n := len(s.hangs)
	s.mu.Unlock()
	if n >= maxHangs {
		return false, fmt.Errorf("%d processes hang when they are read; does a network file system not answer?", n)
	}
	ended := make(chan error, 1)
	onThread(func() { ended <- s.run(do) })
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for last := (*string)(nil); ; {
		select {
		case err := <-ended:
			return false, err
		case <-ctx.Done():
			s.abandon(s.reads.Load())
			return false, ctx.Err()
		case <-tick.C:
			what := s.reads.Load()
			if what == last && s.abandon(what) {
				return true, nil
			}
			last = what
		}
	}
}

// onThread calls do on a thread that ends with it, so that nothing else runs on a thread
// that was in another namespace. It is not the main thread, which stands for the process in
// procfs.
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
			s.step(nil) // this thread may have been given up
			err = fmt.Errorf("panicked: %v\n%s", p, debug.Stack())
		}
	}()
	s.home, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening this process's network namespace: %w", err)
	}
	defer func() { _ = unix.Close(s.home) }() // it was only read
	return do()
}
