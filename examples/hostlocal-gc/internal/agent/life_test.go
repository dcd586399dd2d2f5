// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The agent is not ready until each source has answered, also after the hook, and stays ready when
// one fails later. It lives meanwhile: the API server may be down when a node boots. SIGHUP triggers
// a pass long before the interval ends.
func TestReadyOnceEachSourceAnswered(t *testing.T) {
	dir := t.TempDir()
	live := cnitest.Reserve(t, dir, "podnet", "10.1.0.2", sandbox("live"), time.Hour)
	leaked := cnitest.Reserve(t, dir, "podnet", "10.1.0.3", sandbox("leaked"), time.Hour)
	var up atomic.Bool
	first := podsource.Func(func(context.Context) ([]podsource.Pod, error) { return livePod(), nil })
	second := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		if up.Load() {
			return []podsource.Pod{{ContainerIDs: []string{"other"}}}, nil
		}
		return nil, errors.New("no such socket")
	})
	a, log, hangup, _ := running(t, Options{DataDir: dir, Networks: []string{"podnet"}, Source: podsource.Union(first, second),
		Passes: gc.Options{StartupTimeout: 300 * time.Millisecond, Interval: time.Hour}})
	cnitest.Until(t, "the hook has ended", func() bool { return strings.Contains(log.String(), "trying again later") })
	// The hook's time may be up while a pass reads the disk. The next pass is refused then.
	const refused = "UNKNOWN: the last pass was refused, and released nothing"
	cnitest.Until(t, "a pass is refused", func() bool { return strings.Contains(get(a, "/healthz").Body.String(), refused) })
	health, ready := get(a, "/healthz"), get(a, "/readyz")
	if health.Code != 200 || ready.Code != 503 || !strings.HasPrefix(ready.Body.String(), "waiting for a pass in which each source") {
		t.Errorf("it does not live, or does not wait for a source: %d, %d %s", health.Code, ready.Code, ready.Body)
	}
	if !cnitest.Exists(leaked) {
		t.Error("something was released without an answer (R2)")
	}
	up.Store(true)
	cnitest.Until(t, "it is ready", func() bool { return get(a, "/readyz").Code == 200 })
	if !cnitest.Exists(live) || cnitest.Exists(leaked) {
		t.Error("it was ready before it had released what leaked, and only that")
	}
	up.Store(false)
	hangup <- syscall.SIGHUP
	cnitest.Until(t, "a pass is refused again", func() bool { return strings.Contains(get(a, "/healthz").Body.String(), refused) })
	if got := get(a, "/readyz"); got.Code != 200 {
		t.Errorf("after a failure it is not ready any more: %d, %q", got.Code, got.Body)
	}
}

// With a typing error in a network's name nothing is released, and the agent is not ready, which stops a rollout.
// Log, metric and health report it, long before the interval ends: the hook asks no source, so a pass follows
// that does. It becomes ready when the network has its directory.
func TestHazard63NetworkWithATypingError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir() // above the data directory
		live := cnitest.Reserve(t, filepath.Join(dir, "networks"), "podnet", "10.1.0.2", sandbox("live"), time.Hour)
		leaked := cnitest.Reserve(t, filepath.Join(dir, "networks"), "podnet", "10.1.0.3", sandbox("leaked"), time.Hour)
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) { return livePod(netip.MustParseAddr("10.1.0.2")), nil })
		a, log, hangup, end := running(t, Options{DataDir: dir, Networks: []string{"podnet"}, Source: source,
			Passes: gc.Options{Interval: time.Hour}})
		const want = "podnet, while live pods have 1 address that is reserved nowhere"
		cnitest.Until(t, "health reports it", func() bool { return strings.Contains(get(a, "/healthz").Body.String(), want) })
		cnitest.Until(t, "the log reports it", func() bool { return strings.Contains(log.String(), "MISSING: podnet") })
		health, ready := get(a, "/healthz"), get(a, "/readyz")
		if health.Code != 200 || ready.Code != 503 || !strings.Contains(ready.Body.String(), want) { // a restart would not help
			t.Errorf("health %d, readiness %d without %q: %s", health.Code, ready.Code, want, ready.Body)
		}
		if got := get(a, "/metrics").Body.String(); !strings.Contains(got, "\nhostlocal_gc_findings{network=\"podnet\",word=\"MISSING\"} 1\n") {
			t.Errorf("the metrics don't report it:\n%s", got)
		}
		time.Sleep(time.Hour / 2)
		if n := a.last.Load().passes; n > 2 {
			t.Errorf("it made %d passes before the interval ended", n)
		}
		cnitest.Reserve(t, dir, "podnet", "10.1.0.2", sandbox("live"), time.Hour)
		hangup <- syscall.SIGHUP
		cnitest.Until(t, "it is ready", func() bool { return get(a, "/readyz").Code == 200 })
		end()
		if !cnitest.Exists(live) || !cnitest.Exists(leaked) {
			t.Error("something was released in a directory that is not the data directory's")
		}
	})
}

// A pass that hangs where no time limit applies, on a disk for example, is reported: at the end of
// the hook, and later. So is a disk that hangs when a pass has ended: health answers meanwhile. The agent ends in
// less than a second.
func TestPassThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, log := logging(t, Options{Networks: []string{"n"}, Source: podsource.Func(nil), Passes: gc.Options{Interval: time.Hour}})
		says := func(want string) {
			t.Helper()
			got := get(a, "/healthz").Body.String() + get(a, debugPath+"?format=html").Body.String()
			times := 2 // once each
			if want == "" {
				times = 0
			}
			if strings.Count(got, "UNKNOWN: no pass has ended for "+want) != times {
				t.Errorf("that no pass has ended for %q is not %d times in\n%s", want, times, got)
			}
		}
		says("")
		time.Sleep(a.opts.Passes.StartupTimeout)
		a.hookEnded()
		says("30s")
		a.note(gc.Report{}, nil, nil)
		a.hookEnded() // has nothing to report then
		if len(with(log, 0, "")) != 1 || len(with(log, 0, "UNKNOWN: no pass has ended for 30s")) != 1 {
			t.Errorf("logged is %q", log)
		}
		says("")
		time.Sleep(time.Hour)
		says("")
		time.Sleep(passTime)
		says("1h5m")
		hangs, looks := make(chan struct{}), 0
		a.look = func(*diagnose.Place) { looks++; <-hangs }
		for range 2 {
			noted := make(chan struct{})
			go func() { defer close(noted); a.note(gc.Report{}, nil, nil) }()
			synctest.Wait()
			says("") // a pass has ended
			<-noted
			if got := get(a, "/healthz").Body.String(); !strings.Contains(got, "UNKNOWN: the disk of the data directory does not answer") {
				t.Errorf("health does not report the disk: %s", got)
			}
		}
		if looks != 1 {
			t.Errorf("beside a look that hangs there are %d", looks-1)
		}
		begun := time.Now()
		var working sync.WaitGroup
		working.Go(func() { <-hangs })
		if a.end(&working); time.Since(begun) >= time.Second {
			t.Errorf("to end takes %v", time.Since(begun))
		}
		close(hangs)
		synctest.Wait()
		a.note(gc.Report{}, nil, nil)
		if got := get(a, "/healthz").Body.String(); got != "ok\n" {
			t.Errorf("the disk answers again, and health reports %s", got)
		}
		shared := status{found: make([]diagnose.Finding, 0, 2), err: errAway} // by requests at the same time
		if all := a.all(&shared, time.Now()); len(all) != 2 || shared.found[:1][0].Text != "" {
			t.Errorf("%v overwrite those of another request", all)
		}
	})
}

// A leak counts once, however many passes see it, and its cause is logged once if it is known. Only a dry run logs what
// it would have released, in each pass. Here libcni's entry of all leaks but one is damaged.
func TestLeaks(t *testing.T) {
	away := errors.New("away")
	for _, dryRun := range []bool{true, false} {
		const n = maxLogged + 1
		dir, cache := t.TempDir(), t.TempDir()
		cnitest.Reserve(t, dir, "n", "10.0.0.2", sandbox("live"), time.Hour)
		cnitest.Reserve(t, dir, "other", "10.1.0.2", sandbox("leaked"), time.Hour) // only read
		for i := range n {
			cnitest.Reserve(t, dir, "n", fmt.Sprintf("10.0.1.%d", i+1), sandbox("leaked"), time.Hour)
		}
		cnitest.Reserve(t, dir, "n", "10.0.2.1", sandbox("gone"), time.Hour)
		cnitest.Write(t, filepath.Join(cache, "n-"+sandbox("leaked")+"-eth0"), `{"kind":`, 0)
		var refused error
		a, log := logging(t, Options{
			DataDir: dir, Networks: []string{"n", "new"}, SourceNames: []string{"cnicache:" + cache}, Passes: gc.Options{DryRun: dryRun},
			Source: podsource.Func(func(context.Context) ([]podsource.Pod, error) { return livePod(), refused }),
		})
		for _, row := range []struct {
			reason string
			err    error
			leaks  int
			news   int // lines with the cause
			judged int // lines with what is released, or would have been
		}{
			{"nothing is judged", away, 0, 0, 0},
			{"they are found", nil, n, 1, 1},
			{"they stay, or are gone", nil, n, 0, 1},
			{"a refused pass forgets none", away, n, 0, 0},
			{"so they are not found again", nil, n, 0, 1},
		} {
			from := len(log.String())
			refused = row.err
			_, _ = a.reconciler.Reconcile(t.Context()) // the error is the row's
			if !dryRun {                               // what is left belongs to dry runs only
				a.log(&gc.Report{Reservations: []gc.Entry{entry("10.0.1.1", "leaked", gc.NotTried)}})
			}
			const would = `Would have released, but this is a dry run" "count"=66 "IPs"=["n/10.0.1.1" `
			want := map[string]int{
				`"network"="n" "cause"="torn" "count"=65 "IPs"=["10.0.1.1" `: row.news, `"cause"`: row.news,
				"Would have": 0, "Released a leaked reservation": 50 * row.news,
			}
			if dryRun {
				want = map[string]int{would: row.judged, `"and 2 more"]`: row.judged, "Released": 0}
			}
			for text, times := range want {
				if got := with(log, from, text); len(got) != times {
					t.Errorf("dry run %v, %s: %d lines with %q, want %d: %s", dryRun, row.reason, len(got), text, times, log.String()[from:])
				}
			}
			if got := strings.Count(fmt.Sprint(with(log, from, `"cause"`)), `"10.0.1.`); got != maxLogged*row.news {
				t.Errorf("dry run %v, %s: %d addresses in a line", dryRun, row.reason, got)
			}
			var counts []string
			for _, cause := range []string{"no-del", "no-entry", "other-runtime", "reboot", "torn", "unknown"} {
				if row.leaks > 0 {
					n := map[string]int{"torn": row.leaks, "unknown": 1}[cause]
					counts = append(counts, fmt.Sprintf(`hostlocal_gc_leaks_total{cause=%q,network="n"} %d`, cause, n),
						fmt.Sprintf(`hostlocal_gc_leaks_total{cause=%q,network="new"} 0`, cause))
				}
			}
			metrics := get(a, "/metrics").Body.String()
			if diff := cmp.Diff(counts, regexp.MustCompile(`(?m)^hostlocal_gc_leaks_total.*`).FindAllString(metrics, -1)); diff != "" {
				t.Errorf("dry run %v, %s: leaks (-want +got):\n%s", dryRun, row.reason, diff)
			}
			if row.news > 0 {
				report, page := get(a, debugPath).Body.String(), get(a, debugPath+"?format=html").Body.String()
				valid(t, report)
				const said = `<small title="file or cache entry cut short">cause: torn</small>`
				if strings.Count(report, `"cause": "torn"`) != n || strings.Count(page, said) != n {
					t.Errorf("dry run %v: not %d causes in the JSON or page:\n%s\n%s", dryRun, n, report, page)
				}
			}
		}
	}
}
