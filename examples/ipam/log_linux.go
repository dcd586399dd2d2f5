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

// logTime is how long a finished ADD waits for its lines to be read.
const logTime = 2 * time.Second

// A logger writes lines to stderr, which may be a pipe without a reader or with a slow one. It
// neither ends nor delays an ADD, which may hold a lock that others wait for. Lines that are not
// read in time are lost.
type logger struct {
	mu    sync.Mutex
	lines []string
	idle  chan struct{} // closed when all lines are written; nil before the first line
}

var log logger //nolint:gochecknoglobals // there is one stderr

// logf writes a line to stderr. libcni passes the stderr of a successful plugin on to the
// runtime's.
func logf(format string, args ...any) {
	log.mu.Lock()
	defer log.mu.Unlock()
	if log.idle == nil {
		// Without this a write to a closed pipe would end the program. The delegate would inherit
		// an ignored signal.
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
			_, _ = os.Stderr.WriteString(line) // an error can't be reported
		}
	}
}

// flushLog waits until all lines are written, for logTime at most.
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
