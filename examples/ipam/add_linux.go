// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxTries limits the executions of the delegate for one ADD.
	maxTries = 3
	// sourceTime limits one call of the sources.
	sourceTime = 2 * time.Second
	// treatTime limits the time between the first and the last try of one ADD: the sources' time
	// once, and ten seconds for locks.
	treatTime = sourceTime + 10*time.Second
	// endTime is the time that pending work then has to end. What has not ended by then hangs, such
	// as a read in a file system that does not answer.
	endTime = time.Second
)

// An attempt is one ADD with all of its tries.
type attempt struct {
	delegate string
	stdin    []byte
	parent   int
	ctx      context.Context // ends treatTime after the first try failed

	node *node // nil before the first treatable failure

	mu       sync.Mutex
	findings []string
}

// add executes the delegate and prints its output. After a treatable failure it treats the cause
// and executes the delegate again. The last failure is printed with the findings in its details.
func add(delegate string) int {
	runtime.LockOSThread() // for runDelegate
	defer flushLog()
	if descendsFromItself() {
		return printError(ownDelegate, "")
	}
	a := &attempt{delegate: delegate, parent: os.Getppid()}
	var err error
	if a.stdin, err = io.ReadAll(os.Stdin); err != nil {
		return printError(fmt.Sprintf("reading the network configuration: %v", err), "")
	}
	var r result
	for try := 1; ; try++ {
		// Nobody reads an orphan's result, so its reservation would be a new leak.
		if os.Getppid() != a.parent || hasNoReader(os.Stdout) {
			return printError("the plugin that asked for an address has ended, so none was reserved", a.details())
		}
		began := sinceBoot()
		if r, err = runDelegate(delegate, a.stdin); err != nil {
			return printError(err.Error(), a.details())
		}
		why, ip := treatable(r)
		if why == untreatable {
			break
		}
		if try == maxTries {
			a.found(fmt.Sprintf("given up after %d tries", maxTries))
			break
		}
		if a.ctx == nil {
			ctx, cancel := context.WithTimeout(context.Background(), treatTime)
			defer cancel()
			a.ctx = ctx
		}
		if again, err := a.treatInTime(why, ip, began); err != nil {
			a.found(explain(err))
			break
		} else if !again {
			break
		}
	}
	if r.code != 0 {
		r.out = withDetails(r.out, a.details())
	}
	if _, err := os.Stdout.Write(r.out); err != nil && r.code == 0 {
		return 1
	}
	return r.code
}

// hasNoReader reports whether a file is a pipe without readers. It detects an orphan even if the
// parent ended before this process read its ID.
func hasNoReader(file *os.File) bool {
	pipe := []unix.PollFd{{Fd: int32(file.Fd())}}
	_, err := unix.Poll(pipe, 0)
	return err == nil && pipe[0].Revents&unix.POLLERR != 0
}

// A failure is the reason why the delegate failed.
type failure int

const (
	untreatable failure = iota // success, and any other failure
	exhausted                  // no address is left
	duplicate                  // the container has an address already
	taken                      // the requested address is not free
)

// treatable returns the failure in a result, and the requested address it concerns. All of
// host-local's errors have the same code, so only their text tells them apart (plugins,
// ipam/host-local/backend/allocator, Get).
func treatable(r result) (failure, netip.Addr) {
	if r.code == 0 {
		return untreatable, netip.Addr{}
	}
	msg := errorMessage(r.out)
	switch {
	case strings.Contains(msg, "no IP addresses available in range set"):
		return exhausted, netip.Addr{}
	case strings.Contains(msg, "duplicate allocation is not allowed"):
		return duplicate, netip.Addr{}
	}
	_, after, _ := strings.Cut(msg, "requested IP address ")
	text, _, ok := strings.Cut(after, " is not available in range set")
	ip, err := netip.ParseAddr(text)
	if !ok || err != nil {
		return untreatable, netip.Addr{}
	}
	return taken, ip.Unmap()
}

// treatInTime calls treat, and returns an error if that hangs. The process then ends, which is safe
// at any point of treat. If the delegate's tries took all of the time, it does not call treat.
func (a *attempt) treatInTime(why failure, ip netip.Addr, began time.Duration) (again bool, err error) {
	if err := a.ctx.Err(); err != nil {
		return false, fmt.Errorf("no time is left for another try: %w", err)
	}
	type treated struct {
		again bool
		err   error
	}
	done := make(chan treated, 1)
	go func() {
		again, err := a.treat(why, ip, began)
		done <- treated{again, err}
	}()
	deadline, _ := a.ctx.Deadline()
	select {
	case t := <-done:
		return t.again, t.err
	case <-time.After(time.Until(deadline) + endTime):
		return false, fmt.Errorf("looking for leaks has not ended %v after its time was up: does a file system hang?", endTime)
	}
}

// treat removes the cause of a failure if it can, and reports whether another try is worthwhile.
// began is when the failed try began.
func (a *attempt) treat(why failure, ip netip.Addr, began time.Duration) (again bool, err error) {
	if a.node == nil {
		conf, err := parseConfig(a.stdin)
		if err != nil {
			return false, err
		}
		if a.node, err = newNode(conf); err != nil {
			return false, err
		}
	}
	switch why {
	case duplicate:
		return a.releaseOwn()
	case taken:
		own, err := a.isOwn(ip)
		if err != nil {
			return false, err
		}
		if own {
			return a.releaseOwn()
		}
		return a.passFor(ip)
	}
	return a.passForAll(began)
}

// found adds a finding to the details of an error.
func (a *attempt) found(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.findings = append(a.findings, text)
}

func (a *attempt) details() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.findings) == 0 {
		return ""
	}
	return "hostlocal-gc-ipam: " + strings.Join(a.findings, "; ")
}

// sinceBoot returns the time since the boot, including sleep. All processes of a boot share this
// clock, and it is never set.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil { // it has one since Linux 2.6.39
		return 0
	}
	return time.Duration(ts.Nano())
}
