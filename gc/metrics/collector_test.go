// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// made is a collector that has seen all that there is to be seen: each reason,
// each result, and two networks.
func made() *Collector {
	c := New()
	report := reportOf()
	report.SourceDuration, report.LockHeld, report.LongestHold = 250*time.Millisecond, 9*time.Millisecond, 2*time.Millisecond
	for i, reason := range reasons() {
		report.Reservations = append(report.Reservations, entry(reason, time.Duration(i+1)*time.Minute))
	}
	report.Reservations = slices.DeleteFunc(report.Reservations, func(e gc.Entry) bool { return e.Reason == gc.NotJudged })
	c.OnReport(report, errAway)
	unanswered := reportOf(entry(gc.NoAnswer, time.Hour))
	unanswered.Duration, unanswered.SourceDuration = 30*time.Second, 30*time.Second
	c.OnReport(unanswered, errAway)
	report.Reservations = slices.DeleteFunc(report.Reservations, func(e gc.Entry) bool { return e.Verdict == gc.Failed })
	report.LongestHold = 4 * time.Millisecond
	c.OnReport(report, nil)
	report = reportOf()
	report.Network = "storage"
	c.OnReport(report, nil)
	return c
}

// All metrics, by reports that were put together by hand.
func TestAllMetrics(t *testing.T) { compare(t, made(), "made.txt") }

func TestLint(t *testing.T) {
	for what, c := range map[string]*Collector{"every metric": made(), "no report yet": New("podnet"), "nothing": New()} {
		problems, err := testutil.CollectAndLint(c)
		if err != nil || len(problems) > 0 {
			t.Errorf("%s: %v %v", what, problems, err)
		}
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
		problems, err = testutil.GatherAndLint(registry)
		if err != nil || len(problems) > 0 {
			t.Errorf("%s, registered: %v %v", what, problems, err)
		}
	}
}

// The manual names the metrics that there are, and so does a scrape.
func TestManualNamesEveryMetric(t *testing.T) {
	described := make(chan *prometheus.Desc, 100)
	New().Describe(described)
	close(described)
	var want []string
	for d := range described {
		want = append(want, regexp.MustCompile(`hostlocal_gc_\w+`).FindString(d.String()))
	}
	manual, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^//   - (hostlocal_gc_\w+), `).FindAllSubmatch(manual, -1) {
		got = append(got, string(m[1]))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics in the package comment (-described +got):\n%s", diff)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(made()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, f := range families {
		got = append(got, f.GetName())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics of a scrape (-described +got):\n%s", diff)
	}
}

// What single reports do to the metrics that are easily got wrong.
func TestReports(t *testing.T) {
	for _, row := range []struct {
		reason string
		passes []pass
		names  string
		want   string
	}{
		{
			"a pass that never began has no network and leaves no trace",
			[]pass{{gc.Report{}, errAway}, {gc.Report{}, nil}}, "passes_total released_total pass_duration_seconds_count",
			"",
		}, {
			"verdicts that none has any more go to zero and stay",
			[]pass{{reportOf(entry(gc.TooYoung, time.Minute)), nil}, {reportOf(), nil}}, "reservations",
			`
			reservations{network="podnet",verdict="changed"} 0
			reservations{network="podnet",verdict="conflict"} 0
			reservations{network="podnet",verdict="failed"} 0
			reservations{network="podnet",verdict="gone"} 0
			reservations{network="podnet",verdict="in-use"} 0
			reservations{network="podnet",verdict="leaked"} 0
			reservations{network="podnet",verdict="malformed"} 0
			reservations{network="podnet",verdict="released"} 0
			reservations{network="podnet",verdict="starting"} 0
			reservations{network="podnet",verdict="young"} 0
			`,
		}, {
			"a folder that could not be listed is not empty",
			[]pass{{reportOf(entry(gc.NotTried, time.Hour)), nil}, {reportOf(), errAway}}, "reservations oldest_kept_leak_age_seconds",
			`
			oldest_kept_leak_age_seconds{network="podnet"} 3600
			reservations{network="podnet",verdict="changed"} 0
			reservations{network="podnet",verdict="conflict"} 0
			reservations{network="podnet",verdict="failed"} 0
			reservations{network="podnet",verdict="gone"} 0
			reservations{network="podnet",verdict="in-use"} 0
			reservations{network="podnet",verdict="leaked"} 1
			reservations{network="podnet",verdict="malformed"} 0
			reservations{network="podnet",verdict="released"} 0
			reservations{network="podnet",verdict="starting"} 0
			reservations{network="podnet",verdict="young"} 0
			`,
		}, {
			"a refused pass knows of no leak, and so does not say that there is none",
			[]pass{{reportOf(entry(gc.NotTried, time.Hour)), nil}, {reportOf(entry(gc.NoAnswer, time.Hour)), errAway}}, "oldest_kept_leak_age_seconds",
			`oldest_kept_leak_age_seconds{network="podnet"} 3600`,
		}, {
			"the leak is gone",
			[]pass{{reportOf(entry(gc.NotTried, time.Hour)), nil}, {reportOf(entry(gc.ReleasedLeak, time.Hour)), nil}}, "oldest_kept_leak_age_seconds released_total",
			`
			oldest_kept_leak_age_seconds{network="podnet"} 0
			released_total{network="podnet"} 1
			`,
		}, {
			"only good passes move the time of the last good one",
			[]pass{{gc.Report{Network: "podnet", Started: time.Unix(1600000000, 0)}, nil}, {reportOf(), errAway}}, "last_good_pass_timestamp_seconds",
			`last_good_pass_timestamp_seconds{network="podnet"} 1.6e+09`,
		}, {
			"without a good pass there is no time of one",
			[]pass{{reportOf(), errAway}}, "last_good_pass_timestamp_seconds oldest_kept_leak_age_seconds reservations",
			"",
		}, {
			"of the failures only those of a release are a release's",
			[]pass{{reportOf(entry(gc.ReleaseFailed, 0), entry(gc.OwnerUnreadable, 0), entry(gc.ReleaseFailed, 0)), errAway}}, "release_failures_total released_total",
			`
			release_failures_total{network="podnet"} 2
			released_total{network="podnet"} 0
			`,
		}, {
			"a pass that did not hold the lock is no short hold",
			[]pass{{gc.Report{Network: "podnet", LockHeld: 3 * time.Second, LongestHold: 2 * time.Second}, nil}, {reportOf(), nil}},
			"lock_longest_hold_seconds_count lock_longest_hold_seconds_sum lock_held_seconds_total pass_duration_seconds_count",
			`
			lock_held_seconds_total{network="podnet"} 3
			lock_longest_hold_seconds_sum{network="podnet"} 2
			lock_longest_hold_seconds_count{network="podnet"} 1
			pass_duration_seconds_count{network="podnet"} 2
			`,
		}, {
			"a network's name that is no UTF-8 ends no scrape",
			[]pass{{gc.Report{Network: "pod\xffnet"}, nil}}, "released_total",
			"released_total{network=\"pod\uFFFDnet\"} 0",
		}, {
			"a verdict that there is not makes no series",
			[]pass{{reportOf(gc.Entry{Verdict: 200, Reason: 200}), nil}}, "released_total release_failures_total oldest_kept_leak_age_seconds",
			`
			oldest_kept_leak_age_seconds{network="podnet"} 0
			release_failures_total{network="podnet"} 0
			released_total{network="podnet"} 0
			`,
		},
	} {
		c := New()
		for _, p := range row.passes {
			c.OnReport(p.report, p.err)
		}
		want := ""
		for line := range strings.Lines(row.want) {
			if line = strings.TrimSpace(line); line != "" {
				want += line + "\n"
			}
		}
		if diff := cmp.Diff(want, shown(t, c, strings.Fields(row.names)...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// Networks that are known beforehand count from zero, and their gauges say
// nothing before there is something to say.
func TestNetworksBeforeTheirFirstPass(t *testing.T) {
	compare(t, New("podnet"), "new.txt")
	if n := testutil.CollectAndCount(New()); n != 0 {
		t.Errorf("without a network there are %d series", n)
	}
}

// However many reports come, the number of series stays.
func TestSeriesAreBounded(t *testing.T) {
	c := made()
	before := testutil.CollectAndCount(c)
	for i, reason := range reasons() {
		c.OnReport(reportOf(entry(reason, time.Duration(i)*time.Hour)), nil)
		c.OnReport(reportOf(entry(reason, time.Duration(i)*time.Hour)), errAway)
	}
	if after := testutil.CollectAndCount(c); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}

// A scrape that is slow, or was given up, holds up no pass.
func TestSlowScrape(t *testing.T) {
	c := made()
	ch := make(chan prometheus.Metric)
	ended := make(chan struct{})
	go func() {
		c.Collect(ch)
		close(ch)
		close(ended)
	}()
	<-ch // and there is more to come
	if c.mu.TryLock() {
		c.mu.Unlock()
	} else {
		t.Error("Collect holds the lock while it waits for its reader")
	}
	for range ch {
	}
	<-ended
}

// Reports and scrapes at once: nothing is lost, and no scrape sees half a report.
func TestConcurrentUse(t *testing.T) {
	const writers, each = 4, 200
	c := New("podnet")
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	var reports, scrapes sync.WaitGroup
	for w := range writers {
		reports.Go(func() {
			report := reportOf(entry(gc.ReleasedLeak, time.Hour), entry(gc.TooYoung, time.Minute))
			report.Network = []string{"podnet", "storage"}[w%2]
			for range each {
				c.OnReport(report, nil)
			}
		})
	}
	done := make(chan struct{})
	for range 2 {
		scrapes.Go(func() {
			for stop := false; !stop; {
				select {
				case <-done:
					stop = true // and once more, when all is in
				default:
				}
				families, err := registry.Gather()
				if err != nil {
					t.Errorf("scrape: %v", err)
					return
				}
				totals := make(map[string]float64)
				for _, f := range families {
					for _, m := range f.GetMetric() {
						totals[f.GetName()] += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
					}
				}
				if p, r, h := totals["hostlocal_gc_passes_total"], totals["hostlocal_gc_released_total"], totals["hostlocal_gc_pass_duration_seconds"]; p != r || p != h {
					t.Errorf("a scrape saw %v passes, %v releases and %v durations", p, r, h)
				} else if stop && p != writers*each {
					t.Errorf("the last scrape saw %v passes, want %d", p, writers*each)
				}
			}
		})
	}
	reports.Wait()
	close(done)
	scrapes.Wait()
}
