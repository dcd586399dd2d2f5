// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A record says nothing about reservations that were made in one of its gaps: neither that
// the container is not live, nor, with the hook's assertion, that no ADD is in flight.
// Another source that lists containers does.
func TestHazard51ReservedInAGap(t *testing.T) {
	const from, to = 2*time.Hour + 1, time.Hour + 1 // ago; not whole seconds, which have a coarser granularity
	gap := func(from, to time.Duration) podsource.Gap {
		var g podsource.Gap
		if from != 0 {
			g.From = time.Now().Add(-from)
		}
		if to != 0 {
			g.To = time.Now().Add(-to)
		}
		return g
	}
	for _, c := range []struct {
		reason   string
		age      time.Duration
		from, to time.Duration // of the gap; zero: none
		alone    Reason        // the record
		cri      Reason        // and a runtime
		kubelet  Reason        // and a list of pods
	}{
		{"in it", 90 * time.Minute, from, to, CacheIsNewer, Unowned, Unowned},
		{"at its beginning", from, from, to, CacheIsNewer, Unowned, Unowned},
		{"a clock's tick before it", from + timestampGranularity, from, to, CacheIsNewer, Unowned, Unowned},
		{"more than that before it", from + timestampGranularity + 1, from, to, Unowned, Unowned, Unowned},
		{"... with a timestamp of whole seconds", from - 1 + 2*time.Second, from, to, CacheIsNewer, Unowned, Unowned},
		{"at its end", to, from, to, CacheIsNewer, Unowned, Unowned},
		{"after it", to - 1, from, to, Unowned, Unowned, Unowned},
		{"before the end of one without a beginning", 700 * time.Hour, 0, to, CacheIsNewer, Unowned, Unowned},
		{"after that", to - 1, 0, to, Unowned, Unowned, Unowned},
		{"since the beginning of one without an end", 10 * time.Minute, from, 0, CacheIsNewer, Unowned, Unowned},
		{"before that", 3 * time.Hour, from, 0, Unowned, Unowned, Unowned},
		{"in one without either", time.Hour, 0, 0, CacheIsNewer, Unowned, Unowned},
		{"in it, and too young for the runtime", time.Minute, from, 0, CacheIsNewer, TooYoung, TooYoung},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.age)
			record := recordAnswer([]string{network1})
			record.Gaps = []podsource.Gap{gap(600*time.Hour, 599*time.Hour), gap(c.from, c.to)}
			for _, row := range []struct {
				members []podsource.Answer
				want    Reason
			}{
				{[]podsource.Answer{record}, c.alone}, {[]podsource.Answer{record, criAnswer()}, c.cri},
				{[]podsource.Answer{record, kubeletAnswer()}, c.kubelet},
				{[]podsource.Answer{record, recordAnswer([]string{network1})}, Unowned},
			} {
				report := n.atStartup(n.reconciler(answers(row.members...), Options{DryRun: true}), NoADDInFlight)
				n.checkReasons(report, map[string]Reason{"10.0.0.2": row.want})
			}
		}))
	}
}

// A reservation that was made in a gap is not foreign for that.
func TestHazard51AGapMakesNobodyForeign(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "k8s-"+hex64("other"), time.Hour)
		record := recordAnswer([]string{network1})
		record.Gaps = []podsource.Gap{{}}
		report := n.pass(answers(record, podsource.Answer{Pods: []podsource.Pod{other}, Networks: every, Names: podsource.AnyContainer}), Options{DryRun: true})
		n.checkReasons(report, map[string]Reason{"10.0.0.2": Unowned})
	})(t)
}

// The address of a nerdctl container was reserved in a gap of the record. The runtime
// could not mean that container either, so it is as foreign as without the record.
func TestHazard49ForeignInAGap(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "default-"+hex64("nerdctl"), time.Hour)
		n.reserve("10.0.0.3", "default-"+hex64("told"), 3*time.Hour)
		record := recordAnswer([]string{network1})
		record.Gaps = []podsource.Gap{{From: time.Now().Add(-2 * time.Hour), But: podsource.SandboxContainers}}
		n.reserve("10.0.0.4", hex64("leaked"), time.Hour)
		report := n.pass(answers(record), Options{DryRun: true})
		n.checkReasons(report, map[string]Reason{"10.0.0.2": CacheIsNewer, "10.0.0.3": Unowned, "10.0.0.4": Unowned})
		for _, beside := range []podsource.Answer{criAnswer(), kubeletAnswer()} {
			report := n.pass(answers(record, beside), Options{DryRun: true, AllowForeign: []string{}})
			n.checkReasons(report, map[string]Reason{"10.0.0.2": ForeignOwner, "10.0.0.3": Unowned, "10.0.0.4": Unowned})
		}
	})(t)
}

// A reservation without a timestamp may have been made in any gap.
func TestHazard51NoTimestamp(t *testing.T) {
	if !inGap([]podsource.Gap{{From: time.Now().Add(-time.Hour)}}, &hostlocal.Reservation{}) {
		t.Error("a reservation without a timestamp is not in the gap")
	}
}
