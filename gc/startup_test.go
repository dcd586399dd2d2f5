// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// emptyStore is the store of a folder that does not exist: what matters here is
// when passes happen.
func emptyStore(t *testing.T) *hostlocal.Store {
	t.Helper()
	s, err := hostlocal.New(t.TempDir(), "none")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The hook returns within its bound, whatever the source does, and says what it
// waited for (R13).
func TestAtStartup(t *testing.T) {
	errAway := errors.New("server is away")
	for _, c := range []struct {
		reason  string
		source  func(ctx context.Context, since time.Duration) ([]podsource.Pod, error)
		allow   bool
		atMost  time.Duration
		wantErr string
	}{
		{
			reason: "ready at once",
			source: func(context.Context, time.Duration) ([]podsource.Pod, error) { return []podsource.Pod{other}, nil },
			atMost: 0,
		},
		{
			reason: "late: not ready for 10 s",
			source: func(_ context.Context, since time.Duration) ([]podsource.Pod, error) {
				if since < 10*time.Second {
					return nil, fmt.Errorf("cache: %w", podsource.ErrIncomplete)
				}
				return []podsource.Pod{other}, nil
			},
			atMost: 18 * time.Second,
		},
		{
			reason:  "fails every time",
			source:  func(context.Context, time.Duration) ([]podsource.Pod, error) { return nil, errAway },
			atMost:  30 * time.Second,
			wantErr: "server is away",
		},
		{
			reason:  "sees nobody: perhaps not yet",
			source:  func(context.Context, time.Duration) ([]podsource.Pod, error) { return nil, nil },
			atMost:  30 * time.Second,
			wantErr: ErrNoPods.Error(),
		},
		{
			reason: "sees nobody, which is normal here",
			source: func(context.Context, time.Duration) ([]podsource.Pod, error) { return nil, nil },
			allow:  true,
			atMost: 0,
		},
		{
			reason: "hangs until its context ends",
			source: func(ctx context.Context, _ time.Duration) ([]podsource.Pod, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			atMost:  30 * time.Second,
			wantErr: context.DeadlineExceeded.Error(),
		},
		{
			reason: "hangs, and ignores its context",
			source: func(context.Context, time.Duration) ([]podsource.Pod, error) {
				time.Sleep(time.Hour)
				return []podsource.Pod{other}, nil
			},
			atMost:  30 * time.Second,
			wantErr: context.DeadlineExceeded.Error(),
		},
		{
			reason: "fails at first, and then hangs: the first is what was waited for",
			source: func(ctx context.Context, since time.Duration) ([]podsource.Pod, error) {
				if since < time.Second {
					return nil, errAway
				}
				<-ctx.Done()
				return nil, ctx.Err()
			},
			atMost:  30 * time.Second,
			wantErr: "server is away",
		},
		{
			reason:  "panics",
			source:  func(context.Context, time.Duration) ([]podsource.Pod, error) { panic("out of range") },
			atMost:  30 * time.Second,
			wantErr: "panicked: out of range",
		},
	} {
		t.Run(c.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.reserve("10.0.0.2", "leaked", old)
				n.reserve("10.0.0.3", "coming", 4*time.Minute+50*time.Second) // must not grow old while the hook waits
				begun := time.Now()
				source := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) { return c.source(ctx, time.Since(begun)) })
				report, err := New(n.store, source, Options{AllowEmpty: c.allow}).AtStartup(t.Context())
				if took := time.Since(begun); took > c.atMost {
					t.Errorf("took %v, want at most %v", took, c.atMost)
				}
				if c.wantErr == "" {
					if err != nil {
						t.Fatal(err)
					}
					if n.exists("10.0.0.2") {
						t.Error("the leak is still there")
					}
				} else {
					if err == nil || !strings.Contains(err.Error(), c.wantErr) || !strings.Contains(err.Error(), "tries") {
						t.Errorf("got error %v, want one that says %q", err, c.wantErr)
					}
					n.check(report, map[string]Verdict{"10.0.0.2": Failed, "10.0.0.3": Failed})
				}
				if !n.exists("10.0.0.3") && time.Since(begun) < 10*time.Second {
					t.Error("a young reservation was released")
				}
				time.Sleep(2 * time.Hour) // whoever hangs comes to his end
			})
		})
	}
}

// An error that waiting does not mend ends the hook at once.
func TestAtStartupWithoutAFolderToList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		if err := os.WriteFile(n.path("lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		store, err := hostlocal.New(n.path("lock"), "none") // the data dir is a file
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := New(store, podsource.Static{other}, Options{}).AtStartup(t.Context()); err == nil || time.Since(begun) > 0 {
			t.Errorf("got error %v after %v, want one at once", err, time.Since(begun))
		}
	})
}

// A loop is Start under observation: it tells when passes were.
type loop struct {
	*Reconciler
	begun  time.Time
	mu     sync.Mutex
	passes []time.Duration
	answer atomic.Pointer[error]
}

// start runs Start until the bubble's test ends, and checks that it leaves
// nothing behind.
func startLoop(t *testing.T, store *hostlocal.Store, opts Options) *loop {
	l := &loop{begun: time.Now()}
	var none error
	l.answer.Store(&none)
	opts.OnReport = func(Report, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.passes = append(l.passes, time.Since(l.begun))
	}
	l.Reconciler = New(store, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		return []podsource.Pod{other}, *l.answer.Load()
	}), opts)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- l.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start returned %v, want nil when its context ends", err)
		}
		synctest.Wait() // the bubble fails if a goroutine is left
	})
	synctest.Wait()
	return l
}

// sinceLast waits and returns when there were passes meanwhile, from now on.
func (l *loop) sinceLast(d time.Duration) []time.Duration {
	before, from := len(l.all()), time.Since(l.begun)
	time.Sleep(d)
	var out []time.Duration
	for _, at := range l.all()[before:] {
		out = append(out, at-from)
	}
	return out
}

// all returns when all passes were until now.
func (l *loop) all() []time.Duration {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.passes)
}

func TestScheduleOfAHealthyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startLoop(t, emptyStore(t), Options{})
		if diff := cmp.Diff([]time.Duration{0}, l.all()); diff != "" {
			t.Errorf("passes at the start (-want +got):\n%s", diff)
		}
		passes := l.sinceLast(10 * time.Hour)
		for i, at := range passes {
			gap := at
			if i > 0 {
				gap -= passes[i-1]
			}
			if gap < 10*time.Minute || gap > 11*time.Minute {
				t.Errorf("pass %d came after %v, want 10 minutes and up to a tenth more", i, gap)
			}
		}
		if len(passes) < 50 {
			t.Errorf("%d passes in 10 hours", len(passes))
		}
	})
}

func TestScheduleAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startLoop(t, emptyStore(t), Options{})
		err := errors.New("server is away")
		l.answer.Store(&err)
		passes := l.sinceLast(3 * time.Hour)
		// The first comes when it is due, the next ones after 1, 2, 4 ... seconds and
		// up to a half more, and never rarer than the interval.
		var gaps []time.Duration
		for i := 1; i < len(passes); i++ {
			gaps = append(gaps, passes[i]-passes[i-1])
		}
		if len(gaps) < 12 {
			t.Fatalf("gaps after an error: %v", gaps)
		}
		want := time.Second
		for i, gap := range gaps {
			if low := min(want, 10*time.Minute); gap < low || gap > min(low*3/2, 11*time.Minute) {
				t.Errorf("gap %d is %v, want %v and up to a half more", i, gap, low)
			}
			want = min(2*want, time.Hour)
		}
		var none error
		l.answer.Store(&none)
		if passes := l.sinceLast(time.Hour); len(passes) < 5 || len(passes) > 7 {
			t.Errorf("%d passes in the hour after the errors ended", len(passes))
		}
	})
}

func TestScheduleWithYoungReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", 2*time.Minute)
		l := startLoop(t, n.store, Options{})
		if diff := cmp.Diff([]time.Duration{3 * time.Minute}, l.sinceLast(4*time.Minute)); diff != "" {
			t.Errorf("passes (-want +got):\n%s", diff)
		}
		if n.exists("10.0.0.2") {
			t.Error("what was young is old now, and still there")
		}
	})
}

func TestTrigger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startLoop(t, emptyStore(t), Options{})
		time.Sleep(time.Minute)
		before := len(l.all())
		for range 100 {
			l.Trigger()
		}
		if passes := l.all()[before:]; len(passes) == 0 || len(passes) > 2 {
			t.Errorf("100 triggers at once led to passes at %v, want one at once, and one more at most", passes)
		}
		if passes := l.sinceLast(5 * time.Minute); len(passes) != 0 {
			t.Errorf("passes at %v without a trigger", passes)
		}
	})
}

// A hanging source costs its passes and no more: Start still ends with its
// context, and works again once the source does.
func TestStartWithAHangingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		passes := 0
		r := New(emptyStore(t), podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			if calls.Add(1) == 1 {
				time.Sleep(2 * time.Hour)
			}
			return []podsource.Pod{other}, nil
		}), Options{OnReport: func(_ Report, err error) {
			if err == nil {
				passes++
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Start(ctx) }()
		time.Sleep(4 * time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if passes < 10 {
			t.Errorf("%d good passes in the two hours after the source came back", passes)
		}
	})
}

// A reconciler without a store says so, pass after pass, and takes nobody down.
func TestStartWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs []error
		r := New(nil, podsource.Static{other}, Options{OnReport: func(_ Report, err error) { errs = append(errs, err) }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Start(ctx); err != nil {
			t.Error(err)
		}
		if len(errs) < 2 || errs[0] == nil {
			t.Errorf("got errors %v, want one from each pass", errs)
		}
	})
}

// A panic of what the caller has hung into a pass is an error of that pass.
func TestPanicInAPass(t *testing.T) {
	r := New(emptyStore(t), podsource.Static{other}, Options{OnReport: func(Report, error) { panic("no") }})
	for range 2 { // and the next pass is not blocked
		if _, err := r.Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), "panicked: no") {
			t.Errorf("got error %v, want the panic", err)
		}
	}
	if r.NeedLeaderElection() {
		t.Error("only the leader would collect")
	}
}
