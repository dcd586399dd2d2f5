// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A loop runs Start and records the times of its passes.
type loop struct {
	*Reconciler
	begun  time.Time
	away   atomic.Bool // the source
	mu     sync.Mutex  // guards what follows
	passes []time.Duration
}

// startLoop runs Start until the test ends. The bubble fails if it leaves a goroutine.
func startLoop(t *testing.T, n *node, opts Options) *loop {
	l := &loop{begun: time.Now()}
	opts.OnReport = func(Report, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.passes = append(l.passes, time.Since(l.begun))
	}
	l.Reconciler = n.reconciler(podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		if l.away.Load() {
			return nil, errAway
		}
		return []podsource.Pod{other}, nil
	}), opts)
	go func() { _ = l.Start(t.Context()) }()
	synctest.Wait()
	return l
}

// sinceLast waits, and returns the times of the passes meanwhile, counted from the call.
func (l *loop) sinceLast(d time.Duration) []time.Duration {
	before, from := len(l.all()), time.Since(l.begun)
	time.Sleep(d)
	var out []time.Duration
	for _, at := range l.all()[before:] {
		out = append(out, at-from)
	}
	return out
}

// all returns the times of all passes until now.
func (l *loop) all() []time.Duration {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.passes)
}

const interval = 10 * time.Minute // the default of Options.Interval

// nodeInUse is a node on which no pass is due before the interval.
func nodeInUse(t *testing.T) *node {
	n := newNode(t)
	n.reserve("10.0.0.9", "other", old)
	return n
}

func gaps(passes []time.Duration) (out []time.Duration) {
	for i := 1; i < len(passes); i++ {
		out = append(out, passes[i]-passes[i-1])
	}
	return out
}

// Pauses after passes, one after the other: each is at least so long, and so many percent longer at
// most, and Trigger does not shorten it below its floor.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errFile := errors.New("one file can't be read")
		due := func(in time.Duration, v Verdict) Report {
			return Report{Reservations: []Entry{{Verdict: v}}, NextCheck: time.Now().Add(in)}
		}
		listed := Report{Reservations: []Entry{{}}}
		var p pauses
		for _, c := range []struct {
			reason         string
			report         Report
			err            error
			times          int // the last one is checked
			pause, percent time.Duration
			floor          time.Duration // 0: the whole pause
		}{
			{"nothing is due", Report{}, nil, 1, interval, 10, 5 * time.Second},
			{"no answer counts", listed, ErrRefused, 1, time.Second, 50, 0},
			{"... again", listed, ErrRefused, 1, 2 * time.Second, 50, 0},
			{"... and again", listed, ErrRefused, 3, 16 * time.Second, 50, 0},
			{"... for hours", listed, ErrRefused, 100, interval, 10, 0},
			{"another pass is to follow, which ends the row of failures", due(time.Minute, Young), nil, 1, time.Minute, 10, 5 * time.Second},
			{"a file can't be read", listed, errFile, 1, time.Second, 50, 0},
			{"there is no list", Report{}, errFile, 4, 16 * time.Second, 50, 0},
			{"a file can't be read again: Trigger helps the others", listed, errFile, 1, 32 * time.Second, 50, 5 * time.Second},
			{"... for hours", listed, errFile, 100, interval, 10, 5 * time.Second},
			{"... and others are due", due(40*time.Second, Young), errFile, 1, 40 * time.Second, 10, 5 * time.Second},
			{"a check that releases something", due(time.Second, Released), nil, 20, 15 * time.Second, 10, 5 * time.Second},
			{"one that does not", due(time.Second, Young), nil, 1, 30 * time.Second, 10, 5 * time.Second},
			{"... again", due(time.Second, Young), nil, 2, 120 * time.Second, 10, 5 * time.Second},
			{"... for hours", due(time.Second, Young), nil, 100, interval, 10, 5 * time.Second},
			{"nothing is due any more", Report{}, nil, 1, interval, 10, 5 * time.Second},
			{"a check again", due(time.Second, Young), nil, 1, 15 * time.Second, 10, 5 * time.Second},
		} {
			var pause, floor time.Duration
			for range c.times {
				pause, floor = p.after(&c.report, c.err, interval)
			}
			if floor == pause {
				floor = 0
			}
			if pause < c.pause || pause > c.pause+c.pause*c.percent/100 || floor != c.floor {
				t.Errorf("%s: %v, with Trigger %v; want %v and up to %d%% more, with Trigger %v", c.reason, pause, floor, c.pause, c.percent, c.floor)
			}
		}
	})
}

// Passes follow Report.NextCheck, the interval and its jitter, errors, and Trigger, which has a floor of
// five seconds, and many calls of which lead to one pass.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, logs := nodeInUse(t), newLogs(0)
		n.reserve("10.0.0.2", "leaked", DefaultMinAge-3*time.Minute)
		l := startLoop(t, n, Options{Logger: logs.logger()})
		if got := l.sinceLast(198 * time.Second); len(got) != 1 || got[0] < 3*time.Minute || n.exists("10.0.0.2") { // up to a tenth more
			t.Errorf("passes at %v, want one after 3 minutes, which releases", got)
		}
		healthy := gaps(l.sinceLast(60 * interval))
		first, last := slices.Min(healthy), slices.Max(healthy)
		if first < interval || last > interval*11/10 || last-first < interval/100 {
			t.Errorf("passes of a healthy node %v to %v apart", first, last)
		}
		l.away.Store(true)
		passes := l.sinceLast(8 * time.Hour)
		logged := logs.with("Releasing leaked addresses; trying again later", "error")
		if len(passes) < 40 || len(passes) > 60 || logged != len(passes) || passes[1]-passes[0] > 1500*time.Millisecond {
			t.Errorf("passes in 8 hours of errors, of which %d were logged: %v", logged, passes)
		}
		l.away.Store(false)
		if passes := l.sinceLast(time.Hour); len(passes) < 5 || len(passes) > 7 {
			t.Errorf("%d passes in the hour after the errors ended", len(passes))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := startLoop(t, nodeInUse(t), Options{})
		for range 100 { // AtStartup's pass has just ended
			l.Trigger()
		}
		if passes := l.sinceLast(time.Minute); len(passes) != 1 || passes[0] != 5*time.Second {
			t.Errorf("100 triggers at once led to passes at %v, want one after 5 s", passes)
		}
		before := len(l.all())
		l.Trigger()
		if got := len(l.all()) - before; got != 1 {
			t.Errorf("a trigger a minute after a pass led to %d passes at once, want one", got)
		}
		for range 600 { // a caller that does not stop
			l.Trigger()
			time.Sleep(100 * time.Millisecond)
		}
		if least := slices.Min(gaps(l.all())); least != 5*time.Second {
			t.Errorf("two passes %v apart", least)
		}
		if got := l.sinceLast(9 * time.Minute); len(got) > 1 {
			t.Errorf("passes at %v without a trigger", got)
		}
	})
}

// Start ends with its context at any time.
func TestStartEndsWithItsContext(t *testing.T) {
	for _, c := range []struct {
		reason string
		hangs  int           // the call of the source that hangs; 0: none
		after  time.Duration // the end of the context
		passes int           // begun by then
	}{
		{"in the hook", 1, time.Second, 1},
		{"in the floor", 0, 2 * time.Second, 1},
		{"in the pause", 0, time.Minute, 1},
		{"in a pass", 2, interval*11/10 + time.Second, 2},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			asked, passes, logs := 0, 0, newLogs(0)
			r := nodeInUse(t).reconciler(podsource.Func(func(context.Context) ([]podsource.Pod, error) {
				if asked++; asked == c.hangs {
					time.Sleep(time.Hour)
				}
				return []podsource.Pod{other}, nil
			}), Options{SourceTimeout: 10 * time.Minute, Logger: logs.logger(), OnReport: func(Report, error) { passes++ }})
			ctx, cancel := context.WithTimeout(t.Context(), c.after)
			defer cancel()
			begun := time.Now()
			if err := r.Start(ctx); err != nil || time.Since(begun) != c.after {
				t.Errorf("ended after %v, error %v; want %v", time.Since(begun), err, c.after)
			}
			if again := logs.with("Releasing leaked addresses; trying again later", "in"); passes != c.passes || again != 0 {
				t.Errorf("%d passes, want %d; logged %d times that there will be another", passes, c.passes, again)
			}
			time.Sleep(time.Hour) // the source returns
		}))
	}
}

// A leaving context counts what package context has left behind in it.
type leaving struct {
	context.Context
	left atomic.Int32
}

func (c *leaving) Done() <-chan struct{} { return make(chan struct{}) }

func (c *leaving) AfterFunc(func()) (stop func() bool) {
	c.left.Add(1)
	return func() bool { c.left.Add(-1); return true }
}

// A pass of the loop that waits too long for another pass ends, and leaves nothing behind.
func TestLoopGivesUpAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := newLogs(0)
		r := nodeInUse(t).reconciler(podsource.Static{other}, Options{Interval: time.Second, Logger: logs.logger()})
		parent, cancel := context.WithCancel(t.Context())
		ctx := &leaving{Context: parent}
		_, _ = r.Reconcile(ctx)
		_, _ = r.AtStartup(ctx)
		left := ctx.left.Load() // later, their time limits end them
		go func() { _ = r.Start(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if left += ctx.left.Load(); left != 0 {
			t.Errorf("%d contexts are left in that of the caller", left)
		}
		r.sem <- struct{}{}                                                     // another pass, which never ends
		for want, wait := range []time.Duration{time.Minute, 4 * time.Second} { // an interval and a minute
			time.Sleep(wait)
			synctest.Wait()
			if got := logs.with("Releasing leaked addresses; trying again later", "error"); got != want {
				t.Errorf("%v later %d passes are given up, want %d", wait, got, want)
			}
		}
		cancel()
		time.Sleep(2 * time.Minute) // it ends
	})
}

// Start after AtStartup does not run the hook again.
func TestStartAfterAtStartup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "other", old)
		source := inTurn(plain(other))
		r := n.reconciler(source, Options{})
		n.atStartup(r, NoADDInFlight)
		for i, want := range []int{1, 2, 3} { // a second Start begins anew, and so does a third
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_ = r.Start(ctx)
			if cancel(); len(source.times()) != want {
				t.Errorf("Start %d: asked %d times, want %d", i+1, len(source.times()), want)
			}
		}
	})
}

// A panic of OnReport, of the context or of the logger is an error of the pass, and ends neither the
// hook nor the loop.
func TestHazard64PanicInAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		asked, looks := 0, 0
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			asked++
			return nil, nil
		})
		logger := funcr.New(func(string, string) { panic("in the logger") }, funcr.Options{Verbosity: 4})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := n.reconciler(source, Options{Logger: logger}).Start(ctx); err != nil || asked < 10 {
			t.Errorf("asked %d times, error %v", asked, err)
		}
		callback := &callbackContext{t.Context(), func() { // in the listing, after the wait for another pass
			if looks++; looks == 3 {
				panic("in the context")
			}
		}}
		r := n.reconciler(podsource.Static{other}, Options{})
		report, err := r.Reconcile(callback)
		if !strings.Contains(fmt.Sprint(err), "panicked: in the context") || report.Networks != nil {
			t.Errorf("got error %v and %v, want the panic before the report has networks", err, report.Networks)
		}
		if _, err := r.Reconcile(t.Context()); err != nil {
			t.Errorf("the pass after a panic: %v", err)
		}
		r = n.reconciler(podsource.Static{}, Options{OnReport: func(Report, error) { panic("no") }})
		for range 2 { // the next pass is not blocked
			if _, err := r.Reconcile(t.Context()); !strings.Contains(fmt.Sprint(err), "panicked: no") || !errors.Is(err, ErrRefused) {
				t.Errorf("got error %v, want the panic beside the error of the pass", err)
			}
		}
		if r.NeedLeaderElection() {
			t.Error("only the leader would release")
		}
	})
}
