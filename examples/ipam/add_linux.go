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
	// maxTries is how often the delegate is executed for one ADD at most.
	maxTries = 3
	// sourceTime is how long one question to the sources may take.
	sourceTime = 2 * time.Second
	// healTime is how long all that is done between the tries of one ADD may take:
	// once the sources' time, and ten seconds for the locks.
	healTime = sourceTime + 10*time.Second
	// endTime is how long after that what is under way may take to end. What has not
	// ended then hangs, as a read does in a file system that does not answer.
	endTime = time.Second
)

// An attempt is one ADD, until it has succeeded or is given up.
type attempt struct {
	delegate string
	stdin    []byte
	parent   int
	ctx      context.Context // ends with healTime, which begins when the first try has failed

	node *node // nil before the first failure that is treated

	mu       sync.Mutex
	findings []string
}

// add executes the delegate, and prints what it printed. Where that is a failure
// which can be treated, it is, and the delegate is executed again. The last failure
// is printed with what was found in its details.
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
		// Nobody waits for an orphan's result, so what it reserved would be a new leak.
		if os.Getppid() != a.parent || nobodyReads(os.Stdout) {
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
			ctx, cancel := context.WithTimeout(context.Background(), healTime)
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

// nobodyReads reports whether a file is a pipe whose readers are all gone. That shows an
// orphan also where the parent ended before this process could look at it.
func nobodyReads(file *os.File) bool {
	pipe := []unix.PollFd{{Fd: int32(file.Fd())}}
	_, err := unix.Poll(pipe, 0)
	return err == nil && pipe[0].Revents&unix.POLLERR != 0
}

// A failure is what the delegate failed for.
type failure int

const (
	untreatable failure = iota // whatever else, and success
	exhausted                  // no address is left
	duplicate                  // the container has an address already
	taken                      // the requested address is not free
)

// treatable says what a result is a failure of, and for which requested address.
// host-local's errors all have one code, so their text tells them apart (plugins,
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

// treatInTime is treat, but for what hangs: then it is an error, and the process ends.
// Nothing that treat does is wrong to end at any moment.
func (a *attempt) treatInTime(why failure, ip netip.Addr, began time.Duration) (again bool, err error) {
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
		return false, fmt.Errorf("looking for leaks has not ended after %v: does a file system hang?", healTime+endTime)
	}
}

// treat removes what a failure comes from, if it can, and reports whether another try
// is worth it. began is when the try that failed began.
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

// found notes something for the details of an error.
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

// sinceBoot returns for how long the node has been up, sleep included: a time that
// all processes of a boot share and that is never set.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil { // it has one since Linux 2.6.39
		return 0
	}
	return time.Duration(ts.Nano())
}
