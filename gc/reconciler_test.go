// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R2: whatever is wrong with the source, nothing is released, and the error says
// what was being done.
func TestHazard07SourceFails(t *testing.T) {
	errAway := errors.New("server is away")
	for _, c := range []struct {
		reason string
		source podsource.Source
		want   string
	}{
		{"an error", podsource.Func(func(context.Context) ([]podsource.Pod, error) { return []podsource.Pod{other}, errAway }), "server is away"},
		{"a panic", podsource.Func(func(context.Context) ([]podsource.Pod, error) { panic("out of range") }), "panicked: out of range"},
		{"one of two fails", podsource.Union(podsource.Static{other}, podsource.Func(func(context.Context) ([]podsource.Pod, error) { return nil, errAway })), "source 2 of 2"},
		{"no source", nil, "without a store or without a pod source"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			_, err := New(n.store, c.source, Options{}).Reconcile(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			if !n.exists("10.0.0.2") {
				t.Error("a reservation was released after an error of the source")
			}
		})
	}
}

// R13: a source that ignores its context does not hold a pass, and is not asked
// a second time while it hangs.
func TestHazard37SourceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		var calls atomic.Int32
		wake := make(chan struct{})
		r := New(n.store, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			calls.Add(1)
			<-wake
			return []podsource.Pod{other}, nil
		}), Options{})
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			report, err := r.Reconcile(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got error %v, want the context's", err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Failed})
		}
		if calls.Load() != 1 {
			t.Errorf("a hanging source was asked %d times", calls.Load())
		}
		close(wake)
		synctest.Wait()
		report, err := r.Reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Released})
	})
}

// An answer that comes after the end of the context may be cut short.
func TestHazard37AnswerAfterTheEnd(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	ctx, cancel := context.WithCancel(t.Context())
	report, err := New(n.store, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		cancel()
		return []podsource.Pod{other}, nil
	}), Options{}).Reconcile(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want the context's", err)
	}
	n.check(report, map[string]Verdict{"10.0.0.2": Failed})
}

// Two callers at once: one pass at a time.
func TestPassesDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var inside, most atomic.Int32
		r := New(n.store, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			most.Store(max(most.Load(), inside.Add(1)))
			time.Sleep(time.Minute)
			inside.Add(-1)
			return []podsource.Pod{other}, nil
		}), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		errs := make(chan error)
		for range 3 {
			go func() {
				_, err := r.Reconcile(ctx)
				errs <- err
			}()
		}
		var got []string
		for range 3 {
			got = append(got, fmt.Sprint(<-errs))
		}
		time.Sleep(time.Minute) // the source's, too, come to their end
		if most.Load() != 1 {
			t.Errorf("%d passes went on at once", most.Load())
		}
		if got[0] != "<nil>" || got[2] == "<nil>" {
			t.Errorf("got errors %q, want one pass to end well within 90 s, and the last to give up", got)
		}
	})
}

// DryRun writes nothing, takes no lock, and says what would be.
func TestDryRun(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	n.reserve("10.0.0.3", "live", old)
	report := n.pass(podsource.Static{{IPs: ips("10.0.0.3")}}, Options{DryRun: true})
	n.check(report, map[string]Verdict{"10.0.0.2": Leaked, "10.0.0.3": InUse})
	if n.exists("lock") {
		t.Error("a dry run made the lock's file")
	}
	if got := report.Reservations[1].ContainerID; got != "live" {
		t.Errorf("a dry run shows owner %q, want what the file says", got)
	}
}

// R12: a second pass over the same state does nothing. R8: without a leak the
// lock is not touched.
func TestSecondPassDoesNothing(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	n.reserve("10.0.0.3", "other", old)
	n.reserve("10.0.0.4", "new", young)
	r := New(n.store, podsource.Static{other}, Options{})
	report, err := r.Reconcile(t.Context())
	if err != nil || report.LockHeld == 0 {
		t.Fatalf("got error %v, lock held for %v", err, report.LockHeld)
	}
	n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": InUse, "10.0.0.4": Young})
	if err := os.Remove(n.path("lock")); err != nil {
		t.Fatal(err)
	}
	report, err = r.Reconcile(t.Context())
	if err != nil || report.LockHeld != 0 || n.exists("lock") {
		t.Errorf("got error %v, lock held for %v, want a pass without a leak to leave the lock alone", err, report.LockHeld)
	}
	n.check(report, map[string]Verdict{"10.0.0.3": InUse, "10.0.0.4": Young})
}

// R12: two collectors at once; each address is released by one of them.
func TestHazard29TwoCollectors(t *testing.T) {
	n := newNode(t)
	const leaks = 500
	for i := range leaks {
		n.reserve(fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), "leaked", old)
	}
	type result struct {
		report Report
		err    error
	}
	results := make(chan result)
	for range 2 {
		go func() {
			report, err := New(n.store, podsource.Static{other}, Options{}).Reconcile(context.Background())
			results <- result{report, err}
		}()
	}
	released := 0
	for range 2 {
		res := <-results
		if res.err != nil {
			t.Error(res.err)
		}
		counts := res.report.Counts()
		released += counts[Released]
		if counts[Released]+counts[Gone] != len(res.report.Reservations) {
			t.Errorf("got verdicts %v, want nothing but released and gone", counts)
		}
	}
	if released != leaks {
		t.Errorf("%d releases were reported for %d leaks", released, leaks)
	}
}

// Bad input gets a clear error and loses nothing.
func TestBadFolder(t *testing.T) {
	t.Run("missing: nothing is reserved, and nothing is made", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "networks")
		store, err := hostlocal.New(dir, "n")
		if err != nil {
			t.Fatal(err)
		}
		report, err := New(store, podsource.Static{other}, Options{}).Reconcile(t.Context())
		if err != nil || len(report.Reservations) != 0 {
			t.Errorf("got %v and error %v, want an empty report", report.Reservations, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the data dir was made (%v)", err)
		}
	})
	t.Run("the data dir is a file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		store, err := hostlocal.New(file, "n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(store, podsource.Static{other}, Options{}).Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("got error %v, want one that names %s", err, file)
		}
	})
	t.Run("the lock can't be opened", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		if err := os.Mkdir(n.path("lock"), 0o755); err != nil {
			t.Fatal(err)
		}
		report, err := New(n.store, podsource.Static{other}, Options{}).Reconcile(t.Context())
		if err == nil || !strings.Contains(err.Error(), "lock") {
			t.Errorf("got error %v, want one about the lock", err)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Leaked})
	})
	t.Run("a sibling network can't be listed", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		if err := os.WriteFile(filepath.Join(n.dataDir, "second"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		second, err := hostlocal.New(n.dataDir, "second")
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(n.store, podsource.Static{other}, Options{Siblings: []*hostlocal.Store{second}}).Reconcile(t.Context())
		if err == nil || !strings.Contains(err.Error(), "second") || !n.exists("10.0.0.2") {
			t.Errorf("got error %v, want one about the sibling, and nothing released", err)
		}
	})
}

// A change between Scan and reading must not hide who is a sibling of whom.
func TestHazard03SiblingChangesWhileItIsRead(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "sandbox", old)
	n.reserve("fd00::2", "sandbox", old)
	source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		return []podsource.Pod{{IPs: ips("10.0.0.2")}}, os.Remove(n.path("10.0.0.2"))
	})
	report := n.pass(source, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Gone, "fd00::2": Changed})
}

func TestNextCheck(t *testing.T) {
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	read := func() moment { return moment{start, 0} }
	at := func(d time.Duration) time.Time { return start.Add(-d) }
	for _, c := range []struct {
		reason string
		age    time.Duration // of one reservation of container "sandbox"
		pod    podsource.Pod
		want   time.Duration // from the start, 0 for no next check
	}{
		{"young: when it is old enough", time.Minute, other, 4 * time.Minute},
		{"from the future: counted from the first sight", -time.Hour, other, 5 * time.Minute},
		{"starting: soon", 10 * time.Minute, podsource.Pod{StartedAt: at(20 * time.Minute)}, time.Minute},
		{"in use by a pod that has finished: when that holds nothing any more", time.Hour, podsource.Pod{ContainerIDs: []string{"sandbox"}, FinishedAt: at(2 * time.Minute)}, 3 * time.Minute},
		{"in use: never", time.Hour, podsource.Pod{ContainerIDs: []string{"sandbox"}}, 0},
		{"released: never", time.Hour, other, 0},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "sandbox", 0)
			if err := os.Chtimes(n.path("10.0.0.2"), at(c.age), at(c.age)); err != nil {
				t.Fatal(err)
			}
			report, err := newAt(n.store, podsource.Static{c.pod}, Options{}, start, read()).pass(t.Context(), read)
			if err != nil {
				t.Fatal(err)
			}
			var want time.Time
			if c.want != 0 {
				want = start.Add(c.want)
			}
			if !report.NextCheck.Equal(want) {
				t.Errorf("got %v, want %v", report.NextCheck, want)
			}
		})
	}
}

// The JSON is a contract.
func TestReportJSON(t *testing.T) {
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	report := Report{
		Network: "podnet", DataDir: "/data", Started: start, Duration: 1500 * time.Millisecond, SourceDuration: time.Second,
		LockHeld: 2 * time.Millisecond, LongestHold: time.Millisecond,
		Duplicates: []Duplicate{{ips("10.0.0.2")[0], []*podsource.Pod{{NamespacedName: named("a")}, {UID: "b"}}}},
		Unreserved: []Unreserved{{ips("10.0.0.9")[0], &podsource.Pod{IPs: ips("10.0.0.9")}}},
		Reservations: []Entry{
			{Reservation: &hostlocal.Reservation{IP: ips("10.0.0.2")[0], ContainerID: "c", IfName: "eth0", ReservedAt: start},
				Verdict: InUse, Reason: ContainerLive, Pod: &podsource.Pod{NamespacedName: named("a")}},
			{Reservation: &hostlocal.Reservation{IP: ips("10.0.0.3")[0]}, Verdict: Failed, Reason: ReleaseFailed, Err: errors.New("no")},
		},
	}
	got, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"network":"podnet","dataDir":"/data","started":"2026-05-01T12:00:00Z","durationSeconds":1.5,"sourceSeconds":1,` +
		`"lockHeldSeconds":0.002,"longestHoldSeconds":0.001,"counts":{"failed":1,"in-use":1},` +
		`"duplicates":[{"ip":"10.0.0.2","pods":["default/a","b"]}],"unreserved":[{"ip":"10.0.0.9","pod":"with address 10.0.0.9"}],` +
		`"reservations":[{"ip":"10.0.0.2","containerID":"c","ifName":"eth0","reservedAt":"2026-05-01T12:00:00Z","verdict":"in-use","rule":"R3",` +
		`"reason":"its container belongs to a live pod","pod":"default/a"},` +
		`{"ip":"10.0.0.3","verdict":"failed","rule":"R11","reason":"its file could not be removed","error":"no"}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	empty, err := json.Marshal(Report{})
	if err != nil || bytes.Contains(empty, []byte("null")) {
		t.Errorf("got %s and error %v, want lists that are empty and not null", empty, err)
	}
}

// What was released is logged for all, what was kept for those who ask.
func TestLog(t *testing.T) {
	for _, c := range []struct {
		verbosity int
		want      []string
	}{
		{0, []string{"Released a leaked reservation 10.0.0.2"}},
		{2, []string{"Released a leaked reservation 10.0.0.2", "Kept a reservation 10.0.0.3"}},
		{4, []string{"Released a leaked reservation 10.0.0.2", "Kept a reservation 10.0.0.3", "Kept a reservation 10.0.0.4"}},
	} {
		var got []string
		logger := funcr.NewJSON(func(line string) {
			var o struct{ Msg, IP string }
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				t.Fatal(err)
			}
			got = append(got, o.Msg+" "+o.IP)
		}, funcr.Options{Verbosity: c.verbosity})
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		n.reserve("10.0.0.3", "new", young)
		n.reserve("10.0.0.4", "other", old)
		n.pass(podsource.Static{other}, Options{Logger: logger})
		slices.Sort(got)
		slices.Sort(c.want)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("verbosity %d (-want +got):\n%s", c.verbosity, diff)
		}
	}
}

// An agent pays only for what it imports.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../hostlocal", "../podsource").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, banned := range []struct{ path, reason string }{
		{"k8s.io/client-go", "agents without a Kubernetes client embed this too"},
		{"google.golang.org/grpc", "sources that speak gRPC are modules of their own"},
		{"github.com/prometheus", "metrics are a module of their own"},
		{"k8s.io/api/", "a pod here is three fields, not the API's type"},
		{"github.com/vishvananda", "nothing here touches interfaces"},
	} {
		if strings.Contains(string(out), banned.path) {
			t.Errorf("the core depends on %s: %s", banned.path, banned.reason)
		}
	}
	// The packages know of each other in one direction only.
	for pkg, banned := range map[string]string{"../hostlocal": "podsource", "../podsource": "hostlocal-gc/hostlocal-gc/hostlocal"} {
		out, err := exec.Command("go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), banned) || strings.Contains(string(out), "hostlocal-gc/gc") {
			t.Errorf("%s depends on %s or gc", pkg, banned)
		}
	}
}
