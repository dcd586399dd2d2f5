// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	dto "github.com/prometheus/client_model/go"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// made returns a collector that has seen each reason, each result, and a network that is
// only read.
func made() *Collector {
	c := New()
	report := reportOf()
	report.Networks, report.Missing = append(report.Networks, "spare"), []string{"spare"}
	report.LockHeld, report.LongestHold = 9*time.Millisecond, 2*time.Millisecond
	report.Sources = []gc.SourceReport{
		{Name: "cri", Took: 50 * time.Millisecond}, {Name: "kubelet", Took: 200 * time.Millisecond}, {Name: "set back", Took: -1},
	}
	for reason := gc.Reason(1); reason.String() != ""; reason++ {
		report.Reservations = append(report.Reservations, entry(reason, time.Duration(reason)*time.Minute))
	}
	report.Reservations = append(report.Reservations, in("storage", entry(gc.NetworkNotNamed, time.Hour)))
	c.OnReport(report, errDown)
	refused := reportOf(entry(gc.SourceFailed, time.Hour))
	refused.Sources = []gc.SourceReport{{Name: "cri", Took: time.Second, Error: errDown.Error()}}
	c.OnReport(refused, errRefused)
	c.OnReport(reportOf(entry(gc.SourceFailed, time.Hour)), fmt.Errorf("%w: %w", gc.ErrRefused, gc.ErrNoPods))
	late := reportOf(entry(gc.SourceFailed, time.Hour))
	late.Duration = 30 * time.Second
	c.OnReport(late, fmt.Errorf("%w: %w", gc.ErrRefused, gc.ErrSourceTimeout))
	c.OnReport(reportOf(entry(gc.NotTried, time.Hour)), fmt.Errorf("%w: %w", hostlocal.ErrLocked, context.Canceled))
	c.SetRanges(map[string][]iprange.Set{"podnet": {{{First: netip.MustParseAddr("10.0.0.1"), Last: netip.MustParseAddr("10.0.0.254"), Gateway: netip.MustParseAddr("10.0.0.1")}}}})
	report.LongestHold = 4 * time.Millisecond
	c.OnReport(report, nil)
	return c
}

// All metrics, of the reports of made.
func TestAllMetrics(t *testing.T) { compare(t, made(), "made.txt") }

func TestLint(t *testing.T) {
	for what, c := range map[string]*Collector{"every metric": made(), "no report yet": New()} {
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

// The package comment names all metrics, and a scrape of made has all of them.
func TestPackageCommentNamesEveryMetric(t *testing.T) {
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

// Metrics after one report or two.
func TestReports(t *testing.T) {
	missing := reportOf(entry(gc.NotTried, time.Hour))
	missing.Networks, missing.Missing = []string{"misspelt"}, []string{"misspelt"}
	conflicts := reportOf(entry(gc.TwoPods, time.Hour))
	conflicts.Started = time.Unix(1600000000, 0)
	web := &gc.Pod{Name: "web"}
	conflicts.Unreserved = []gc.Claim{{Pods: []*gc.Pod{web}}, {Pods: []*gc.Pod{web}}, {Pods: []*gc.Pod{{}}}} // the last one is from netns, which names no pod
	conflicts.Duplicates = make([]gc.Claim, 1)
	for _, row := range []struct {
		reason string
		passes []pass
		names  string
		want   string
	}{
		{
			"a pass that never began changes nothing",
			[]pass{{gc.Report{}, context.Canceled}}, "passes_total pass_duration_seconds_count released_total",
			`
			pass_duration_seconds_count 0
			passes_total{result="failed"} 0
			passes_total{result="locked"} 0
			passes_total{result="no-pods"} 0
			passes_total{result="ok"} 0
			passes_total{result="refused"} 0
			passes_total{result="source-timeout"} 0
			`,
		}, {
			"a reason that is no longer in a report goes to zero, and its series stays",
			[]pass{{reportOf(in("another", entry(gc.NetworkNotNamed, time.Minute)), entry(gc.TooYoung, time.Minute)), nil}, {reportOf(), nil}}, "reservations",
			`
			reservations{network="another",reason="network-not-named",verdict="leaked"} 0
			reservations{network="podnet",reason="too-young",verdict="young"} 0
			`,
		}, {
			"a pass that could not list directories changes no gauge",
			[]pass{{missing, nil}, {gc.Report{Started: time.Unix(1600000000, 0)}, errDown}}, "reservations oldest_kept_leak_age_seconds missing_networks",
			`
			missing_networks 1
			oldest_kept_leak_age_seconds{network="misspelt"} 0
			oldest_kept_leak_age_seconds{network="podnet"} 3600
			reservations{network="podnet",reason="not-tried",verdict="leaked"} 1
			`,
		}, {
			"a pass that panicked after it had listed changes no gauge of reservations",
			[]pass{{reportOf(entry(gc.NotTried, time.Hour)), nil}, {reportOf(), errDown}}, "reservations oldest_kept_leak_age_seconds",
			`
			oldest_kept_leak_age_seconds{network="podnet"} 3600
			reservations{network="podnet",reason="not-tried",verdict="leaked"} 1
			`,
		}, {
			"a refused pass judged nothing, so it does not clear a conflict",
			[]pass{{conflicts, nil}, {reportOf(entry(gc.SourceFailed, time.Hour)), errRefused}}, "reservations unreserved_addresses duplicate_addresses last_good_pass_timestamp_seconds",
			`
			duplicate_addresses 1
			last_good_pass_timestamp_seconds 1.6e+09
			reservations{network="podnet",reason="two-pods",verdict="conflict"} 1
			unreserved_addresses 2
			`,
		}, {
			"a pass that judged clears the conflict",
			[]pass{{conflicts, nil}, {reportOf(entry(gc.ContainerLive, time.Hour)), nil}}, "reservations unreserved_addresses duplicate_addresses",
			`
			duplicate_addresses 0
			reservations{network="podnet",reason="container-live",verdict="in-use"} 1
			reservations{network="podnet",reason="two-pods",verdict="conflict"} 0
			unreserved_addresses 0
			`,
		}, {
			"a refused pass without a reservation changes no gauge",
			[]pass{{reportOf(entry(gc.NotTried, time.Hour)), nil}, {reportOf(), errRefused}}, "reservations",
			`reservations{network="podnet",reason="not-tried",verdict="leaked"} 1`,
		}, {
			"a refused pass does not change the age of the oldest kept leak",
			[]pass{{reportOf(entry(gc.NotTried, time.Hour)), nil}, {reportOf(entry(gc.SourceFailed, 2*time.Hour)), errRefused}}, "oldest_kept_leak_age_seconds",
			`oldest_kept_leak_age_seconds{network="podnet"} 3600`,
		}, {
			"if all passes were refused, the oldest kept leak is unknown",
			[]pass{{reportOf(entry(gc.SourceFailed, 2*time.Hour)), errRefused}}, "oldest_kept_leak_age_seconds released_total release_failures_total",
			`
			release_failures_total{network="podnet"} 0
			released_total{network="podnet"} 0
			`,
		}, {
			"the leak is released",
			[]pass{{reportOf(entry(gc.NotTried, time.Hour)), nil}, {reportOf(entry(gc.ReleasedLeak, time.Hour)), nil}}, "oldest_kept_leak_age_seconds released_total",
			`
			oldest_kept_leak_age_seconds{network="podnet"} 0
			released_total{network="podnet"} 1
			`,
		}, {
			"only a good pass sets the time of the last good pass",
			[]pass{{gc.Report{Started: time.Unix(1600000000, 0)}, nil}, {reportOf(), errDown}}, "last_good_pass_timestamp_seconds",
			`last_good_pass_timestamp_seconds 1.6e+09`,
		}, {
			"without a good pass there is no such time",
			[]pass{{reportOf(), errDown}}, "last_good_pass_timestamp_seconds oldest_kept_leak_age_seconds reservations",
			"",
		}, {
			"only failures of releases count as such",
			[]pass{{reportOf(entry(gc.ReleaseFailed, 0), entry(gc.OwnerUnreadable, 0), entry(gc.ReleaseFailed, 0)), errDown}}, "release_failures_total released_total",
			`
			release_failures_total{network="podnet"} 2
			released_total{network="podnet"} 0
			`,
		}, {
			"each network has its own counts",
			[]pass{{reportOf(in("another", entry(gc.ReleasedLeak, time.Hour)), entry(gc.ReleasedEmpty, 0), entry(gc.TooYoung, time.Minute), entry(gc.ReleasedLeak, 0)), nil}},
			"released_total oldest_kept_leak_age_seconds",
			`
			oldest_kept_leak_age_seconds{network="another"} 0
			oldest_kept_leak_age_seconds{network="podnet"} 60
			released_total{network="another"} 1
			released_total{network="podnet"} 2
			`,
		}, {
			"a pass that did not hold the lock does not count as a short hold",
			[]pass{{gc.Report{Started: time.Unix(1600000000, 0), LockHeld: 3 * time.Second, LongestHold: 2 * time.Second}, nil}, {reportOf(), nil}},
			"lock_longest_hold_seconds_count lock_longest_hold_seconds_sum lock_held_seconds_total pass_duration_seconds_count",
			`
			lock_held_seconds_total 3
			lock_longest_hold_seconds_sum 2
			lock_longest_hold_seconds_count 1
			pass_duration_seconds_count 2
			`,
		}, {
			"a source that never answered is at zero, and one that fails now keeps its count",
			[]pass{
				{gc.Report{Started: time.Unix(1600000000, 0), Sources: []gc.SourceReport{{Name: "cri"}, {Name: "kube", Error: "down"}}}, errRefused},
				{gc.Report{Started: time.Unix(1600000000, 0), Sources: []gc.SourceReport{{Name: "cri", Error: "down"}}}, errRefused},
			},
			"source_answers_total source_failures_total",
			`
			source_answers_total{source="cri"} 1
			source_answers_total{source="kube"} 0
			source_failures_total{source="cri"} 1
			source_failures_total{source="kube"} 1
			`,
		}, {
			"names that are not UTF-8 do not break a scrape",
			[]pass{{gc.Report{Started: started, Networks: []string{"pod\xffnet"}, Sources: []gc.SourceReport{{Name: "\xff"}}, Reservations: []gc.Entry{in("pod\xffnet", entry(gc.NotTried, time.Hour))}}, nil}},
			"oldest_kept_leak_age_seconds released_total source_failures_total",
			`
			oldest_kept_leak_age_seconds{network="pod�net"} 3600
			released_total{network="pod�net"} 0
			source_failures_total{source="�"} 0
			`,
		}, {
			"the directory was made between two passes",
			[]pass{{gc.Report{Started: time.Unix(1600000000, 0), Networks: []string{"a", "b", "c"}, Missing: []string{"a", "b"}}, nil}, {reportOf(), nil}}, "missing_networks",
			"missing_networks 0",
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

// Before the first pass, counters of passes are at zero, so that Prometheus sees the first
// increase. There are no gauges.
func TestBeforeTheFirstPass(t *testing.T) { compare(t, New(), "new.txt") }

// The result of a pass depends only on its error.
func TestResults(t *testing.T) {
	for _, row := range []struct {
		reason string
		err    error
		want   string
	}{
		{"no error", nil, "ok"},
		{"a source failed", errRefused, "refused"},
		{"an owner could not be read, and then a source failed", errors.Join(errDown, errRefused), "refused"},
		{"a source reports no pod", fmt.Errorf("%w: %w", gc.ErrRefused, fmt.Errorf("%w: cri", gc.ErrNoPods)), "no-pods"},
		{"a source did not answer in time", fmt.Errorf("%w: %w", gc.ErrRefused, fmt.Errorf("asking: %w", gc.ErrSourceTimeout)), "source-timeout"},
		{"the plugin's lock could not be taken", fmt.Errorf("podnet: %w", hostlocal.ErrLocked), "locked"},
		{"a release failed", errDown, "failed"},
	} {
		c := New()
		c.OnReport(reportOf(entry(gc.SourceFailed, 0)), row.err)
		for _, result := range results {
			want := 0.0
			if result == row.want {
				want = 1
			}
			line := fmt.Sprintf("passes_total{result=%q} %v\n", result, want)
			if !strings.Contains(shown(t, c, "passes_total"), line) {
				t.Errorf("%s: lacks %s", row.reason, line)
			}
		}
	}
}

// The number of series does not grow with the number of reports.
func TestSeriesAreBounded(t *testing.T) {
	c := made()
	before := testutil.CollectAndCount(c)
	for reason := gc.Reason(1); reason.String() != ""; reason++ {
		c.OnReport(reportOf(entry(reason, time.Duration(reason)*time.Hour)), nil)
		c.OnReport(reportOf(entry(reason, time.Duration(reason)*time.Hour)), errDown)
	}
	if after := testutil.CollectAndCount(c); after != before {
		t.Errorf("%d series before, %d after", before, after)
	}
}

// A scrape that is slow, or never ends, does not block a pass, and has nothing of it.
func TestSlowScrape(t *testing.T) {
	c := made()
	ch := make(chan prometheus.Metric)
	go func() {
		defer close(ch)
		c.Collect(ch)
	}()
	<-ch // the first of several
	if !c.mu.TryLock() {
		t.Fatal("Collect holds the lock while it waits for its reader")
	}
	c.mu.Unlock()
	c.OnReport(reportOf(), nil)
	var durations uint64
	for m := range ch {
		var value dto.Metric
		if err := m.Write(&value); err != nil {
			t.Error(err)
		}
		durations += value.GetHistogram().GetSampleCount()
	}
	if durations != 8 { // of six passes, two of which held the lock
		t.Errorf("the histograms have %d durations, want 8", durations)
	}
}

// Concurrent reports and scrapes: nothing is lost, and no scrape has a part of a report.
func TestConcurrentUse(t *testing.T) {
	const writers, each = 4, 200
	c := New()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	var reports, scrapes sync.WaitGroup
	for w := range writers {
		reports.Add(1)
		go func() {
			defer reports.Done()
			report := reportOf(entry(gc.ReleasedLeak, time.Hour), entry(gc.TooYoung, time.Minute))
			if w%2 == 1 {
				report = reportOf(in("storage", entry(gc.ReleasedLeak, time.Hour)))
			}
			for range each {
				c.OnReport(report, nil)
			}
		}()
	}
	done := make(chan struct{})
	for range 2 {
		scrapes.Add(1)
		go func() {
			defer scrapes.Done()
			for stop := false; !stop; {
				select {
				case <-done:
					stop = true // after one more scrape, which has all reports
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
					t.Errorf("a scrape has %v passes, %v releases and %v durations", p, r, h)
				} else if stop && p != writers*each {
					t.Errorf("the last scrape has %v passes, want %d", p, writers*each)
				}
			}
		}()
	}
	reports.Wait()
	close(done)
	scrapes.Wait()
}
