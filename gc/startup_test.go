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

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The hook returns within its time limits, whatever the source does, and says why (R13).
func TestAtStartup(t *testing.T) {
	type call = func(ctx context.Context, since time.Duration) ([]podsource.Pod, error)
	errAway := errors.New("server is away")
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
	const limit, never = DefaultStartupTimeout, time.Hour
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
