// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// hangs makes a call of the disk wait until a channel is closed.
func hangs(answers chan struct{}) func(call func()) { return func(call func()) { <-answers; call() } }

func directly(call func()) { call() }

// A network's directory is on a file system that never answers: the hook returns within its limit,
// and so does each pass of the loop. Later passes say since when. When the disk answers, the pass that
// hung releases nothing.
func TestHazard82DiskDoesNotAnswer(t *testing.T) {
	for _, c := range []struct {
		reason       string
		inList, hook bool
	}{{"in the listing", true, true}, {"in a release", false, true}, {"in a release of a pass whose context goes on", false, false}} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			r := n.reconciler(podsource.Static{other}, Options{})
			answers := make(chan struct{})
			r.disk = wrappedDisk{r.disk, directly, hangs(answers)}
			if c.inList {
				r.disk = wrappedDisk{r.disk, hangs(answers), directly}
			}
			begun := time.Now()
			pass := r.Reconcile
			if c.hook {
				pass = func(ctx context.Context) (Report, error) { return r.AtStartup(ctx) }
			}
			report, err := pass(t.Context())
			says := strings.Contains(fmt.Sprint(err), "file system did not answer within 16s")
			if took := time.Since(begun); !says || took != 15*time.Second+returnTime {
				t.Errorf("after %v: %v", took, err)
			}
			if n := report.Counts(); n[Released] > 0 || !c.inList && n[Failed] != 1 {
				t.Errorf("the report says %v", n)
			}
			for range 10 {
				_, err := r.Reconcile(t.Context())
				if !strings.Contains(fmt.Sprint(err), "has not answered since "+begun.Format(time.RFC3339)) {
					t.Errorf("a later pass: %v", err)
				}
			}
			close(answers)
			synctest.Wait()
			if !n.exists("10.0.0.2") {
				t.Error("released by a pass that was given up")
			}
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
		}))
	}
}

// A panic in an access to the disk, as of the context, is an error of the pass, and so is the end of its goroutine.
func TestHazard64PanicOfTheDisk(t *testing.T) {
	for want, do := range map[string]func(){"panicked: in the disk": func() { panic("in the disk") }, "ended early": runtime.Goexit} {
		r := newNode(t).reconciler(podsource.Static{other}, Options{})
		r.disk = wrappedDisk{r.disk, func(func()) { do() }, directly}
		if _, err := r.Reconcile(t.Context()); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// The loop goes on, and releases when the disk answers again. At most one call is stuck.
func TestHazard118LoopBesideADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		var errs []error
		r := n.reconciler(podsource.Static{other}, Options{OnReport: func(_ Report, err error) { errs = append(errs, err) }})
		answers := make(chan struct{})
		r.disk = wrappedDisk{r.disk, hangs(answers), directly}
		go func() { _ = r.Start(t.Context()) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(errs) < 5 || errs[0] == nil || errs[len(errs)-1] == nil {
			t.Errorf("%d passes, the last with %v", len(errs), errs[len(errs)-1])
		}
		close(answers)
		time.Sleep(r.opts.Interval + time.Minute)
		synctest.Wait()
		if n.exists("10.0.0.2") {
			t.Errorf("not released after the disk answered: %v", errs[len(errs)-1])
		}
	})
}

// A context that has ended before the call is the error, whatever else is under way.
func TestHazard98ContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := newNode(t).reconciler(podsource.Static{other}, Options{})
	r.sem <- struct{}{} // another pass
	for range 2 {
		if _, err := r.Reconcile(ctx); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "another pass") {
			t.Errorf("got error %v", err)
		}
		select {
		case <-r.sem:
		default:
		}
	}
}

// The lock of a network is held for longer than an access to the disk may take: the error says so.
func TestLockIsHeldLongerThanTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "dead", old)
		n.file("lock", "", old)
		unlock := flockOf(t, n.path("lock"))
		r := n.reconciler(podsource.Static{other}, Options{SourceTimeout: 300 * time.Millisecond})
		report, err := r.Reconcile(t.Context())
		if n.checkReasons(report, map[string]Reason{"10.0.0.2": NotTried}); !errors.Is(err, hostlocal.ErrLocked) {
			t.Errorf("not ErrLocked: %v", err)
		}
		unlock()
		synctest.Wait()
	})
}
