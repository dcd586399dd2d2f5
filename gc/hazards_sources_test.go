// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the hazards about answers that do not count, as far as a script can not (R2, R5, R13).

// R2: if a source fails in any way, nothing is released, the error and the report say why, and the
// next pass is not blocked.
func TestHazard64SourceFails(t *testing.T) {
	fails := podsource.Func(func(context.Context) ([]podsource.Pod, error) { return []podsource.Pod{other}, errAway })
	for _, c := range []struct {
		reason string
		source podsource.Source
		err    error // nil is any
		says   string
	}{
		{"an error", fails, errAway, "server is away"},
		{"one of two fails, and the other has no pod", podsource.Union(podsource.Static{}, fails), errAway, "source 2: "},
		{"its error is only in a part", answers(plain(other)[0], podsource.Answer{Supplementary: true, Err: errAway}), errAway, "source 2: "},
		{"it has a list of parts, which is empty", inTurn([]podsource.Answer{}), nil, "no parts"},
		{"it lists no pod (hazard 06)", podsource.Static{}, ErrNoPods, "source 1, with 0 entries"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			logs := newLogs(0)
			r := n.reconciler(c.source, Options{Logger: logs.logger()})
			for range 2 {
				report, err := r.Reconcile(t.Context())
				ours := errors.Is(err, ErrRefused) && (c.err == nil || errors.Is(err, c.err)) && strings.Contains(err.Error(), c.says)
				if !ours || report.Err != err {
					t.Errorf("got error %v, and %v in the report; want one with %q", err, report.Err, c.says)
				}
				n.checkReasons(report, map[string]Reason{"10.0.0.2": SourceFailed})
				for i, s := range report.Sources {
					if failed := i == len(report.Sources)-1 && c.err == errAway; (s.Error != "") != failed {
						t.Errorf("source %d failed: %t; its error in the report is %q", i+1, failed, s.Error)
					}
				}
			}
			if len(logs.lines) != 0 { // its caller has the error
				t.Errorf("a pass that compared nothing logs %v", logs.lines)
			}
		})
	}
}

// R13: a call of the source ends after SourceTimeout, or with the caller's context before. The
// error and the report say so.
func TestHazard64SourceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		hangs := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) { <-ctx.Done(); return nil, ctx.Err() })
		r := n.reconciler(hangs, Options{SourceTimeout: 7 * time.Second})
		report, err := r.Reconcile(t.Context())
		if !errors.Is(err, ErrRefused) || !errors.Is(err, ErrSourceTimeout) || errors.Is(err, ErrNoPods) {
			t.Errorf("got error %v, want %v", err, ErrSourceTimeout)
		}
		s := report.Sources
		if len(s) != 1 || s[0].Name != "source 1" || s[0].Took != 7*time.Second || !strings.Contains(s[0].Error, "within 7s") {
			t.Errorf("the report has %+v", s)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Failed})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Reconcile(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrSourceTimeout) {
			t.Errorf("got error %v, want the context's, which ends first", err)
		}
	})
}

// In a loop an answer older than two intervals is an error of its own; the hook takes it (R5).
func TestHazard62OldListInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.3", hex64("proxy"), 24*time.Hour)
		var age time.Duration
		source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			a := criAnswer()
			a.AsOf = time.Now().Add(-age)
			return a, nil
		})
		var errs []error
		r := n.reconciler(source, Options{Interval: 10 * time.Minute, OnReport: func(_ Report, err error) { errs = append(errs, err) }})
		for _, age = range []time.Duration{20 * time.Minute, 21 * time.Minute, -time.Hour} { // a date in the future has no age
			errs = nil
			ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
			_ = r.Start(ctx)
			cancel()
			if len(errs) < 2 {
				t.Fatalf("%d passes", len(errs))
			}
			for i, err := range errs {
				ours := errors.Is(err, ErrRefused) && !errors.Is(err, ErrNoPods) && !errors.Is(err, ErrSourceTimeout) &&
					strings.Contains(err.Error(), "cri was last known to be true 21m0s ago, which is more than two intervals of 10m0s")
				if want := i > 0 && age == 21*time.Minute; ours != want || err != nil && !want {
					t.Errorf("pass %d of %d: got error %v", i+1, len(errs), err)
				}
			}
		}
	})
}

// The hook returns within its time limits, whatever the source does, and says why (R13).
func TestAtStartup(t *testing.T) {
	type call = func(ctx context.Context, since time.Duration) ([]podsource.Pod, error)
	fails := func(err error) call {
		return func(context.Context, time.Duration) ([]podsource.Pod, error) { return nil, err }
	}
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
	const limit, never = 30 * time.Second, time.Hour
	for _, c := range []struct {
		reason  string
		source  call
		opts    Options
		ends    time.Duration // the caller's context
		atMost  time.Duration
		wantErr error // in the chain
	}{
		{"ready at once", ready, Options{}, never, 0, nil},
		{"not ready for 10 s", firstFor(10*time.Second, fails(podsource.ErrIncomplete), ready), Options{}, never, 18 * time.Second, nil},
		{"fails every time", fails(errAway), Options{}, never, limit, errAway},
		{"no such node", fails(fmt.Errorf("no such Node: %w", podsource.ErrPermanent)), Options{}, never, 0, podsource.ErrPermanent},
		{"lists no pod yet", fails(nil), Options{}, never, limit, ErrNoPods},
		{"hangs until its context ends", hangs, Options{}, never, limit, ErrSourceTimeout},
		{"hangs, and ignores its context", ignores, Options{}, never, limit, ErrSourceTimeout},
		{"hangs once, and answers the next call", firstFor(time.Second, hangs, ready), Options{}, never, 16 * time.Second, nil},
		{"fails at first, and then hangs", firstFor(time.Second, fails(errAway), hangs), Options{}, never, limit, ErrSourceTimeout},
		{"a short limit", ignores, Options{StartupTimeout: 3 * time.Second}, never, 3 * time.Second, context.DeadlineExceeded},
		{"the caller's context ends before", ignores, Options{}, time.Second, time.Second, context.DeadlineExceeded},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			n.reserve("10.0.0.3", "coming", DefaultMinAge-19*time.Second) // must not grow old while the hook waits
			begun, asked := time.Now(), 0
			source := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
				asked++
				return c.source(ctx, time.Since(begun))
			})
			ctx, cancel := context.WithTimeout(t.Context(), c.ends)
			defer cancel()
			logs := newLogs(0)
			c.opts.Logger = logs.logger()
			report, err := n.reconciler(source, c.opts).AtStartup(ctx)
			if took := time.Since(begun); took > c.atMost || c.wantErr == context.DeadlineExceeded && took != c.atMost {
				t.Errorf("took %v, want at most %v", took, c.atMost)
			}
			logged := logs.with("No answer of the pod sources counts yet", "error")
			if c.wantErr == nil {
				must(t, err)
				if logged != asked-1 {
					t.Errorf("%d lines say why the hook waits, and %d answers did not count", logged, asked-1)
				}
				n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Young})
			} else {
				// The pauses are 200 ms at first, twice as long each time, 5 s at most, and up to a half more.
				tries := ""
				if c.wantErr == errAway || c.wantErr == ErrNoPods {
					if tries = fmt.Sprintf("after 30s and %d tries", asked); asked < 8 || asked > 10 || logged < asked {
						t.Errorf("asked %d times, want 8 to 10; %d lines say why the hook waits", asked, logged)
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
