// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"math"
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
	outer := s.reads
	s.step(what)
	do()
	s.step(outer)
}

// step notes what the thread of the scan reads next, or that it goes on with the same. If the
// thread was given up, it ends.
func (s *scan) step(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.givenUp {
		if s.hangs[s.reads]--; s.hangs[s.reads] == 0 {
			delete(s.hangs, s.reads)
		}
		runtime.Goexit() //nolint:forbidigo // the node is read by another thread: see watch
	}
	s.reads = what
	s.steps++
}

// giveUp gives up the thread of the scan if it reads something, and only that since it had taken
// so many steps. It returns how many it has taken.
func (s *scan) giveUp(since int) (steps int, givenUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.givenUp = s.reads != "" && s.steps <= since; s.givenUp {
		s.hangs[s.reads]++
		s.gaveUp[s.reads] = true
	}
	return s.steps, s.givenUp
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
	for steps := 0; !hangs; {
		select {
		case err := <-ended:
			return false, err
		case <-ctx.Done():
			s.giveUp(math.MaxInt)
			return false, ctx.Err()
		case <-tick.C:
			steps, hangs = s.giveUp(steps)
		}
	}
	return true, nil
}

// onThread calls do on a thread that ends with it, so that nothing else runs on a thread
// that was in another namespace. It is not the main thread, which stands for the process in
// procfs.
func onThread(do func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			do()
			return
		}
		defer runtime.UnlockOSThread()
		ended := make(chan struct{})
		onThread(func() { defer close(ended); do() })
		<-ended // until then this goroutine keeps the main thread
	}()
}

// run calls do with an open descriptor of the thread's own network namespace. A panic is an
// error, so that the agent goes on (R13).
func (s *scan) run(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.step("") // this thread may have been given up
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
