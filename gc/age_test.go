// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests R5: how old a reservation must be. MinAge in seconds and the hook's
// assertion are in seconds_test.go, stale answers in stale_test.go.

// A reservation younger than MinAge is kept; one as old as MinAge is not.
func TestMinAgeIsABoundary(t *testing.T) {
	for _, c := range []struct {
		reason string
		opts   Options
		age    time.Duration
		want   Reason
	}{
		{"the default is L", Options{}, 7*time.Minute - 1, TooYoung},
		{"... exactly", Options{}, 7 * time.Minute, ReleasedLeak},
		{"L follows T", Options{RuntimeRequestTimeout: 10 * time.Minute}, 23*time.Minute - 1, TooYoung},
		{"... exactly", Options{RuntimeRequestTimeout: 10 * time.Minute}, 23 * time.Minute, ReleasedLeak},
		{"the caller sets more", Options{MinAge: time.Hour}, time.Hour - 1, TooYoung},
		{"... exactly", Options{MinAge: time.Hour}, time.Hour, ReleasedLeak},
		{"a value below L does not count by itself, and the report says so", Options{MinAge: time.Second}, 7*time.Minute - 1, NotYetListed},
		{"... for a reservation as old as that value", Options{MinAge: time.Second}, time.Second, NotYetListed},
		{"... and not for a younger one", Options{MinAge: time.Second}, time.Second - 1, TooYoung},
		{"... L counts instead", Options{MinAge: time.Second}, 7 * time.Minute, ReleasedLeak},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "owned", c.age)
			n.file("10.0.0.3", "", c.age)
			empty := c.want
			if c.want == ReleasedLeak {
				empty = ReleasedEmpty
			}
			report := n.pass(podsource.Static{other}, c.opts)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want, "10.0.0.3": empty})
		}))
	}
}

// Three delegates of two minutes each: a container's first reservation is as young as its
// last one, in any network.
func TestHazard77MultusWithThreeDelegates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.network("second")
		n.network("third")
		n.reserve("10.0.0.2", "web", 8*time.Minute)
		n.reserve("10.0.0.3", "web", 7*time.Minute)
		n.fileIn("second", "10.9.0.2", "web\r\nnet1", 4*time.Minute)
		n.fileIn("third", "10.8.0.2", "web\r\nnet2", 2*time.Minute)
		n.reserve("10.0.0.4", "leaked", 8*time.Minute)
		// An empty file has no owner, so the age of no sibling counts.
		n.file("10.0.0.5", "", 8*time.Minute)
		n.file("10.0.0.6", "", 2*time.Minute)
		r := n.reconcilerOf([]string{network1}, podsource.Static{other}, Options{})
		report := n.reconcile(r)
		n.check(report, map[string]Verdict{
			"10.0.0.2": Young, "10.0.0.3": Young, "second/10.9.0.2": Young, "third/10.8.0.2": Young,
			"10.0.0.4": Released, "10.0.0.5": Released, "10.0.0.6": Young})
		if want := time.Now().Add(5 * time.Minute); !report.NextCheck.Equal(want) {
			t.Errorf("the next check is at %v, want %v, when the youngest is old enough", report.NextCheck, want)
		}
		time.Sleep(5 * time.Minute)
		n.check(n.reconcile(r), map[string]Verdict{
			"10.0.0.2": Released, "10.0.0.3": Released, "second/10.9.0.2": Leaked, "third/10.8.0.2": Leaked, "10.0.0.6": Released})
	})
}

// Of two equally young reservations of a container the first one gives the reason for both.
func TestReasonOfEquallyYoungReservations(t *testing.T) {
	for _, c := range []struct {
		reason        string
		first, second time.Duration // their ages
		want          Reason
	}{
		{"the first one's timestamp is trusted", 0, -time.Hour, TooYoung},
		{"the second one's is", -time.Hour, 0, UntrustedTimestamp},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "web", c.first)
			n.reserve("10.0.0.3", "web", c.second)
			n.checkReasons(n.pass(podsource.Static{other}, Options{}), map[string]Reason{"10.0.0.2": c.want, "10.0.0.3": c.want})
		}))
	}
}

// The runtime lists the sandbox minutes after its ADD ended, because the pause image is
// pulled in between, and no namespace shows an address (VFIO, gVisor).
func TestHazard71RuntimeListsTheSandboxLate(t *testing.T) {
	const minAge = 10 * time.Second
	for _, c := range []struct {
		reason  string
		age     time.Duration
		members []podsource.Answer
		want    Verdict
	}{
		{"the runtime's lag is L, whatever MinAge is", 6 * time.Minute, []podsource.Answer{criAnswer()}, Young},
		{"... also where namespaces are read", 6 * time.Minute, []podsource.Answer{netnsAnswer(), criAnswer()}, Young},
		{"after L the runtime would list it", 7 * time.Minute, []podsource.Answer{criAnswer()}, Released},
		{"with the cache it is in use", minAge, []podsource.Answer{netnsAnswer(), cacheAnswer([]podsource.Pod{attached(network1, hex64("web"))}), criAnswer()}, InUse},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.age)
			n.check(n.pass(answers(c.members...), Options{MinAge: minAge}), map[string]Verdict{"10.0.0.2": c.want})
		}))
	}
}
