// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/ipam/internal/front"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// run prints the result of a command that host-local could not execute, or of an ADD that failed.
func run() int {
	runtime.LockOSThread() // for front.ADD.Try
	add, err := front.Failed, front.Err
	if add == nil {
		if err == nil {
			err = front.Become()
		}
		add = &front.ADD{Out: errorOf(err.Error()), Code: 1}
	} else if why, _ := failureIn(add); why != other {
		retry(add)
	}
	if _, err := os.Stdout.Write(add.Out); err != nil { // it ends by SIGPIPE where host-local does
		fmt.Fprintf(os.Stderr, "%s Error writing error JSON to stdout: %v\n", time.Now().Format("2006/01/02 15:04:05"), err)
		return 1
	}
	return add.Code
}

// files returns how many files the network's directory has.
func (r *request) files() int {
	entries, _ := os.ReadDir(filepath.Join(r.conf.dataDir, r.conf.network)) // none is as good as an error
	return len(entries)
}

// retry repeats an ADD as long as its cause can be removed, and its time is not over. Once it
// can't, a last try follows, since an address may be free by now. The last failure has the results
// of the passes in its details.
func retry(add *front.ADD) {
	r := &request{began: time.Now(), add: add}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else a log that nobody reads would end the program
	defer signal.Reset(syscall.SIGPIPE)
	var err error
	if r.conf, err = parseConfig(add.Stdin); err == nil {
		r.own, r.store = ownADD(r.conf.network), hostlocal.New(r.conf.dataDir)
		r.source, err = newSource(r.conf)
	}
	for again := true; err == nil; {
		why, ip := failureIn(add)
		if why == other || !again {
			break
		}
		var cause error
		before := r.files()
		if again, cause = r.removeCause(why, ip); cause != nil {
			r.said = append(r.said, r.explain(cause))
		}
		// A last try that fails leaves nothing in the first range, but another last_reserved_ip of it in others.
		if first := strings.Contains(errorMessage(add.Out), "for range 0:"); !again && !first && r.files() >= before {
			break
		}
		if time.Since(r.began) > r.conf.timeout {
			err = fmt.Errorf("the time of this ADD, %v, is over", r.conf.timeout)
			break
		}
		if os.Getppid() != add.Parent {
			// Nobody reads an orphan's result, so its reservation would be a new leak.
			add.Out = errorOf("the plugin that asked for an address has ended, so none was reserved")
			break
		}
		if err := add.Try(); err != nil {
			add.Out, add.Code = errorOf(err.Error()), 1
		}
	}
	if err != nil {
		r.said = append(r.said, r.explain(err))
	}
	if add.Code != 0 {
		add.Out = withDetails(add.Out, r.said)
	}
}

// A request is an ADD that failed.
type request struct {
	add    *front.ADD
	began  time.Time
	own    podsource.Attachment
	conf   *config
	store  *hostlocal.Store
	source podsource.Source
	said   []string // for the details of the error
}

// removeCause removes the cause of a failure if it can, and reports whether another try is
// worthwhile.
func (r *request) removeCause(why failure, ip netip.Addr) (again bool, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), r.began.Add(r.conf.timeout))
	defer cancel()
	list, err := r.store.List(ctx)
	if err != nil {
		return false, err
	}
	mine := func(res hostlocal.Reservation) bool { return res.IP == ip && res.ContainerID == r.own.ContainerID }
	if why == exhausted || why == taken && !slices.ContainsFunc(list.Reservations, mine) {
		return r.sharedPass(ctx, why, ip)
	}
	p, err := r.pass() // for this container alone, so no other ADD waits for it
	return err == nil && r.answer(&p, duplicate, ip), err
}

// A failure is the reason why host-local failed.
type failure int

const (
	other     failure = iota // none that this plugin can do something about
	exhausted                // no address is left
	duplicate                // the container has an address already
	taken                    // the requested address is not free
)

// failures are what host-local says. All of its errors have the same code, so only their text tells them
// apart (plugins, ipam/host-local/backend/allocator, Get).
var failures = regexp.MustCompile(`(no IP addresses|requested IP address (\S+) is not) available in range set|duplicate allocation`)

// failureIn returns the failure in a result, and the requested address it concerns.
func failureIn(add *front.ADD) (failure, netip.Addr) {
	m := failures.FindStringSubmatch(errorMessage(add.Out))
	switch {
	case add.Code == 0 || m == nil:
		return other, netip.Addr{}
	case m[1] == "":
		return duplicate, netip.Addr{}
	case m[2] == "":
		return exhausted, netip.Addr{}
	}
	ip, err := netip.ParseAddr(m[2])
	if err != nil {
		return other, netip.Addr{}
	}
	return taken, ip.Unmap()
}
