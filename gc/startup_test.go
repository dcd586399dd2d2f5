// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The hook returns within its time limits, whatever the source does, and says why (R13).
func TestAtStartup(t *testing.T) {
	type call = func(ctx context.Context, since time.Duration) ([]podsource.Pod, error)
	errAway := errors.New("server is away")
	fails := func(err error) call {
		return func(context.Context, time.Duration) ([]podsource.Pod, error) { return nil, err }
	}
	none := fails(nil)
	ready := func(context.Context, time.Duration) ([]podsource.Pod, error) { return []podsource.Pod{other}, nil }
	hangs := func(ctx context.Context, _ time.Duration) ([]podsource.Pod, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ignores := func(context.Context, time.Duration) ([]podsource.Pod, error) { time.Sleep(time.Hour); return nil, nil }
	firstFor := func(d time.Duration, first, then call) call {
		return func(ctx context.Context, since time.Duration) ([]podsource.Pod, error) {
			if since < d {
				return first(ctx, since)
			}
			return then(ctx, since)
		}
	}
	const limit, never = DefaultStartupTimeout, time.Hour
	for _, c := range []struct {
		reason  string
		source  call
		allow   bool
		opts    Options
		ends    time.Duration // the caller's context
		atMost  time.Duration
		wantErr error // in the chain
	}{
		{"ready at once", ready, false, Options{}, never, 0, nil},
		{"not ready for 10 s", firstFor(10*time.Second, fails(podsource.ErrIncomplete), ready), false, Options{}, never, 18 * time.Second, nil},
		{"fails every time", fails(errAway), false, Options{}, never, limit, errAway},
		{"lists no pod yet", none, false, Options{}, never, limit, ErrNoPods},
		{"lists no pod, which is normal here", none, true, Options{}, never, 0, nil},
		{"hangs until its context ends", hangs, false, Options{}, never, limit, ErrSourceTimeout},
		{"hangs, and ignores its context", ignores, false, Options{}, never, limit, ErrSourceTimeout},
		{"hangs once, and answers the next call", firstFor(time.Second, hangs, ready), false, Options{}, never, 16 * time.Second, nil},
		{"fails at first, and then hangs", firstFor(time.Second, fails(errAway), hangs), false, Options{}, never, limit, ErrSourceTimeout},
		{"a short limit", ignores, false, Options{StartupTimeout: 3 * time.Second}, never, 3 * time.Second, context.DeadlineExceeded},
		{"the caller's context ends before", ignores, false, Options{}, time.Second, time.Second, context.DeadlineExceeded},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			n.reserve("10.0.0.3", "coming", DefaultMinAge-19*time.Second) // must not grow old while the hook waits
			begun, asked := time.Now(), 0
			var source podsource.Source = podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
				asked++
				return c.source(ctx, time.Since(begun))
			})
			if c.allow {
				source = podsource.AllowEmpty(source)
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.ends)
			defer cancel()
			report, err := n.reconciler(source, c.opts).AtStartup(ctx)
			if took := time.Since(begun); took > c.atMost || c.wantErr == context.DeadlineExceeded && took != c.atMost {
				t.Errorf("took %v, want at most %v", took, c.atMost)
			}
			if c.wantErr == nil {
				must(t, err)
				n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Young})
			} else {
				// The pauses are 200 ms at first, twice as long each time, 5 s at most, and up to a half more.
				tries := ""
				if c.wantErr == errAway || c.wantErr == ErrNoPods {
					if tries = fmt.Sprintf("after 30s and %d tries", asked); asked < 8 || asked > 10 {
						t.Errorf("asked %d times, want 8 to 10", asked)
					}
				}
				if !errors.Is(err, c.wantErr) || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tries) {
					t.Errorf("got error %v, want %v", err, c.wantErr)
				}
				n.check(report, map[string]Verdict{"10.0.0.2": Failed, "10.0.0.3": Failed})
			}
			time.Sleep(2 * time.Hour) // until a source that hangs returns
		}))
	}
}

// The hook returns at once after a permanent error.
func TestAtStartupGivesUpOnPermanentErrors(t *testing.T) {
	for _, c := range []struct {
		reason string
		err    error
		asked  int
	}{
		{"no such node", fmt.Errorf("no such Node: %w", podsource.ErrPermanent), 1},
		{"not ready at first", podsource.ErrIncomplete, 2},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			asked := 0
			source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
				if asked++; asked == 1 {
					return nil, c.err
				}
				return []podsource.Pod{other}, nil
			})
			begun, logs := time.Now(), newLogs(0)
			report, err := n.reconciler(podsource.Union(source), Options{Logger: logs.logger()}).AtStartup(t.Context())
			if got := logs.with("No answer of the pod sources counts yet", "error"); got != 1 {
				t.Errorf("%d lines say why the hook waits or gives up: %v", got, logs.lines)
			}
			if c.asked == 2 {
				if err != nil || asked != 2 {
					t.Errorf("asked %d times, %v", asked, err)
				}
				return
			}
			if asked != 1 || time.Since(begun) != 0 || !errors.Is(err, ErrRefused) || !errors.Is(err, podsource.ErrPermanent) {
				t.Errorf("asked %d times in %v, %v", asked, time.Since(begun), err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Failed})
		}))
	}
}

// The hook asks no source if nothing is reserved: on a new node kubelet may itself wait for the
// agent.
func TestAtStartupAsksNobodyWhereNothingIsReserved(t *testing.T) {
	for _, c := range []struct {
		reason string
		make   func(n *node)
		asks   bool
	}{
		{"no data directory", func(n *node) { n.store = hostlocal.New(n.path("none")) }, false},
		{"an empty directory", func(*node) {}, false},
		{"files that are no reservations", func(n *node) { n.file("lock", "", old); n.file("last_reserved_ip.0", "10.0.0.2", old) }, false},
		{"a reservation in a network that is only read", func(n *node) { n.network("second"); n.reserveIn("second", "10.9.0.2", "x", old) }, false},
		{"... and one in a network to release in", func(n *node) {
			n.network("a")
			n.reserveIn("a", "10.9.0.2", "x", old)
			n.reserve("10.0.0.2", "new", young)
		}, true},
		{"a young reservation", func(n *node) { n.reserve("10.0.0.2", "new", young) }, true},
		{"garbage", func(n *node) { n.file("10.0.0.2", "a b c", old) }, true},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			c.make(n)
			s := inTurn([]podsource.Answer{{Networks: every}})
			begun := time.Now()
			r := n.reconcilerOf([]string{"absent", network1}, s, Options{})
			report, err := r.AtStartup(t.Context(), NoADDInFlight)
			if c.asks {
				if !errors.Is(err, ErrNoPods) || len(s.times()) == 0 {
					t.Errorf("asked %d times, error %v", len(s.times()), err)
				}
				return
			}
			if err != nil || len(s.times()) != 0 || time.Since(begun) != 0 || len(report.Sources) != 0 || report.Looks != 0 {
				t.Errorf("asked %d times in %v, error %v", len(s.times()), time.Since(begun), err)
			}
			// Reconcile asks: live addresses may have no reservation.
			if _, err := r.Reconcile(t.Context()); !errors.Is(err, ErrNoPods) || len(s.times()) != 1 {
				t.Errorf("Reconcile asked %d times, error %v", len(s.times()), err)
			}
		}))
	}
}

// The hook's assertion ends the claim of an unproven entry by the age that the timestamp shows.
func TestAssertedAwayTrustsTheStamp(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", hex64("dead"), 2*time.Hour) // from before the boot
	clk := &clocks{uptime: time.Hour}
	c := cacheAnswer(nil, stale(network1, hex64("dead")))
	c.Pods = append(c.Pods, podsource.Pod{ContainerIDs: []string{hex64("dead")}, Unproven: true, StartedAt: time.Now().Add(-2 * time.Hour), Origin: "cache file"})
	r := newReconciler(t, n.store, []string{network1}, answers(netnsAnswer(), c, recordAnswer([]string{network1})), Options{}, clk)
	report := n.atStartup(r, NoADDInFlight)
	n.check(report, map[string]Verdict{"10.0.0.2": Released})
}
