// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxHangs is how many readings of a source may hang. Each keeps a thread, and a Go
// program has at most 10,000.
const maxHangs = 100

// hangs are the processes and other things whose reading has not returned.
type hangs struct {
	mu  sync.Mutex
	all map[string]int // the number of threads, by what is read
}

// within calls do, which reads something that may hang, such as a process. If an earlier
// reading of it hangs, do is not called, and the answer lacks it.
func (s *scan) within(what string, do func()) {
	s.hangs.mu.Lock()
	hangs := s.hangs.all[what] > 0
	s.hangs.mu.Unlock()
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
		s.hangs.mu.Lock()
		defer s.hangs.mu.Unlock()
		if s.hangs.all[*s.last]--; s.hangs.all[*s.last] == 0 {
			delete(s.hangs.all, *s.last)
		}
		runtime.Goexit() //nolint:forbidigo // the node is read by another thread: see watch
	}
	s.last = next
}

// abandon gives up the thread that reads this.
func (s *scan) abandon(what *string) bool {
	s.hangs.mu.Lock()
	defer s.hangs.mu.Unlock()
	if what == nil || !s.reads.CompareAndSwap(what, nil) {
		return false
	}
	s.hangs.all[*what]++
	return true
}

// watch calls do on a thread of its own. If that reads one thing for longer than patience, it
// is left to it, and watch reports that it hangs.
func (s *scan) watch(ctx context.Context, patience time.Duration, do func() error) (hangs bool, err error) {
	s.hangs.mu.Lock()
	n := len(s.hangs.all)
	s.hangs.mu.Unlock()
	if n >= maxHangs {
		return false, fmt.Errorf("%d processes hang when they are read; does a network file system not answer?", n)
	}
	s.ended = ctx.Err
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
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("opening this process's network namespace: %w", err)
	}
	defer func() { _ = home.Close() }() // it was only read
	s.home = int(home.Fd())
	return do()
}
