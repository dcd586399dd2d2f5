// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// logTime is for how long an ADD that is done waits until its lines are read.
const logTime = 2 * time.Second

// A logger writes lines to stderr. That may be a pipe which nobody reads, or whose reader
// is gone: it neither holds up an ADD, which may have a lock that others wait for, nor ends
// it. What is not read in time is lost.
type logger struct {
	mu    sync.Mutex
	lines []string
	idle  chan struct{} // closed when all lines are written; nil before the first
}

var log logger //nolint:gochecknoglobals // there is one stderr

// logf writes a line to stderr, which libcni passes on to the runtime's own where a
// plugin succeeds.
func logf(format string, args ...any) {
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.idle == nil {
		// Without this the program would end when it writes to a pipe that is closed. To
		// ignore the signal would be passed on to the delegate.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	log.lines = append(log.lines, fmt.Sprintf("hostlocal-gc-ipam: "+format+"\n", args...))
	if len(log.lines) == 1 && (log.idle == nil || isClosed(log.idle)) {
		log.idle = make(chan struct{})
		go log.write()
	}
}

// write writes lines until there are no more.
func (l *logger) write() {
	for {
		l.mu.Lock()
		lines := l.lines
		l.lines = nil
		if len(lines) == 0 {
			close(l.idle)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		for _, line := range lines {
			_, _ = os.Stderr.WriteString(line) // there is nobody else to be told
		}
	}
}

// flushLog waits until all lines are written, or for logTime.
func flushLog() {
	log.mu.Lock()
	idle := log.idle
	log.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(logTime):
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
