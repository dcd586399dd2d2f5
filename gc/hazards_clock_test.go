// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the hazards about clocks and slow passes (R1, R5, A4).

// R5 while the clock is set. See also TestHazard19AgesAreNeverOverstated.
func TestHazard19TheClockIsSet(t *testing.T) {
	for _, c := range []struct {
		reason string
		step   time.Duration // of the wall clock, right after the reservation was made
		stamp  time.Duration // of the reservation, relative to the clock before the step
	}{
		{"back by an hour", -time.Hour, 0},
		{"forward by years", 10 * 365 * 24 * time.Hour, 0},
		{"forward by less than since the boot", 30 * time.Minute, 0},
		{"not at all, but the reservation is dated in the future", 0, time.Hour},
		{"from 1970, where computers without a clock start", 30 * 365 * 24 * time.Hour, 0},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			clk := &clocks{uptime: time.Hour}
			r := newReconciler(t, n.store, []string{network1}, podsource.Static{other}, Options{}, clk)
			n.reserve("10.0.0.2", "starting", -c.stamp)
			time.Sleep(time.Second)
			clk.step = c.step
			report := n.reconcile(r)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": UntrustedTimestamp})
			if want := clk.wall().Add(DefaultMinAge); !report.NextCheck.Equal(want) {
				t.Errorf("the next check is at %v, want %v", report.NextCheck, want)
			}
			time.Sleep(DefaultMinAge - 1)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Young})
			time.Sleep(time.Nanosecond)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
		}))
	}
}

// Steps of the clock are noticed from New on, not only from the first pass on: a reservation
// made in between is not older than that.
func TestHazard19TheClockIsWatchedFromTheStart(t *testing.T) {
	n := newNode(t)
	r, err := New(n.store, []string{network1}, podsource.Static{other}, Options{})
	must(t, err)
	if r.clock.last.wall.IsZero() {
		t.Error("New did not read the clocks")
	}
	now := r.now()
	if later := r.now(); later.mono < now.mono || now.mono <= 0 || now.wall != now.wall.Round(0) {
		t.Errorf("two readings: %v, %v, want a monotonic clock, and a wall clock without it", now, later)
	}
}

// While a slow source is asked the clock is set back, and a new container gets the address
// and the inode of a listed reservation. Its timestamp is too old by the step.
func TestHazard46InodeIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "dead", 2*time.Hour)
		clk := &clocks{uptime: 30 * 24 * time.Hour}
		asked := 0
		r := newReconciler(t, n.store, []string{network1}, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			if asked++; asked == 1 {
				time.Sleep(10 * time.Second)
				clk.step = -time.Hour
				n.fileAt(network1, "10.0.0.2", "new1\r\neth0", clk.wall().Add(-time.Hour))
			}
			return []podsource.Pod{other}, nil
		}), Options{}, clk)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": UntrustedTimestamp}) // since the step was seen
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": UntrustedTimestamp})
		time.Sleep(DefaultMinAge - 10*time.Second) // for which the removed one was seen
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": UntrustedTimestamp})
		time.Sleep(10 * time.Second)
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
	})
}

// The time when a file was first seen is read after the owner, so a slow listing adds no
// age.
func TestHazard46FirstSeenAfterTheOwnerWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "dead", -time.Hour)
		r := n.reconciler(podsource.Static{other}, Options{SourceTimeout: time.Hour})
		ctx := newCallbackContext(t)
		asked := 0
		ctx.onCheck(func() { // in the listing, before the owner is read
			if asked++; asked != 4 {
				return
			}
			time.Sleep(2 * DefaultMinAge)
			n.reserve("10.0.0.2", "new1", -time.Hour)
		})
		for range 2 {
			report, err := r.Reconcile(ctx)
			must(t, err)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": UntrustedTimestamp})
			time.Sleep(time.Minute)
		}
	})
}

// After a small step of the clock, as NTP makes it, hazards 12, 31 and 32 hold for pods from
// before the step.
func TestHazard48SmallStepOfTheClock(t *testing.T) {
	const hour, day, little = time.Hour, 24 * time.Hour, 150 * time.Millisecond
	finished := func(ago time.Duration, addresses ...string) func() podsource.Pod {
		return func() podsource.Pod {
			return podsource.Pod{UID: "1", IPs: ips(addresses...), FinishedAt: time.Now().Add(-ago)}
		}
	}
	stuck := func(ago time.Duration) func() podsource.Pod {
		return func() podsource.Pod { return startingPod("stuck", time.Now().Add(-ago)) }
	}
	for _, c := range []struct {
		reason string
		step   time.Duration
		pod    func() podsource.Pod // when the reconciler is made
		wait   time.Duration        // after the first pass
		want   Verdict              // of a leak
		age    time.Duration        // of the leak
	}{
		{"evicted, and never had an address", little, finished(2 * day), DefaultMinAge, Released, 2 * hour},
		{"a finished job lists its address, which is free from then on", little, finished(2*hour, "10.0.0.2"), 5 * time.Minute, Young, 2 * hour},
		{"stuck for days, and the leak is older", little, stuck(day), DefaultMinAge, Released, 2 * day},
		{"stuck for days, and the leak is younger", little, stuck(day), DefaultMinAge, Starting, 2 * hour},
		{"back: evicted", -little, finished(2 * day), DefaultMinAge, Released, 2 * hour},
		{"back: stuck for days, and the leak is older", -little, stuck(day), DefaultMinAge, Released, 2 * day},
		{"back: made within that time before the start", -2 * hour, stuck(hour), 3 * hour, Starting, 2 * hour},
		{"back: made earlier", -2 * hour, stuck(hour), 3 * hour, Released, 2 * day},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", c.age)
			clk := &clocks{uptime: 30 * day}
			r := newReconciler(t, n.store, []string{network1}, podsource.Static{other, c.pod()}, Options{}, clk)
			time.Sleep(time.Second)
			clk.step = c.step
			n.reconcile(r)
			time.Sleep(c.wait)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": c.want})
		}))
	}
}

// R1 and R5: the age is taken before the source is asked.
func TestHazard37SourceSlowerThanTheMinimumAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "sandbox", DefaultMinAge-time.Minute)
		n.reserve("10.0.0.3", "leaked", DefaultMinAge)
		var ctx context.Context
		r := n.reconciler(podsource.Func(func(question context.Context) ([]podsource.Pod, error) {
			ctx = question
			time.Sleep(10 * time.Minute)
			return []podsource.Pod{other}, nil
		}), Options{SourceTimeout: time.Hour})
		report := n.reconcile(r)
		n.check(report, map[string]Verdict{"10.0.0.2": Young, "10.0.0.3": Released})
		if took := report.Sources[0].Took; took != 10*time.Minute {
			t.Errorf("the report says that the source took %v", took)
		}
		if ctx.Err() == nil {
			t.Error("the context of the call is not done after the answer")
		}
	})
}

// R4: a start is compared with the time after the answer. Until then pods may start, and
// the clock may be set.
func TestHazard36StartAfterTheSourceWasAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", time.Hour)
		r := n.reconciler(podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			time.Sleep(10 * time.Second)
			return []podsource.Pod{other, startingPod("web", time.Now().Add(-time.Second))}, nil
		}), Options{})
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
	})
}

// The clock is also read after the answer: a step while the source is asked makes a start
// unknown.
func TestHazard19StepWhileTheSourceIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		clk := &clocks{uptime: 30 * 24 * time.Hour}
		r := newReconciler(t, n.store, []string{network1}, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			time.Sleep(10 * time.Second)
			clk.step = -time.Hour
			// This may be a time from before the step or from after it.
			return []podsource.Pod{other, startingPod("web", clk.wall().Add(-time.Second))}, nil
		}), Options{}, clk)
		n.reserve("10.0.0.2", "web", 2*time.Hour)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": UntrustedTimestamp})
	})
}

// R1: the reservations are listed with their identities before the source is asked. Old
// timestamps keep R5 from hiding an error.
func TestHazard03PodAddedBetweenTheTwoLists(t *testing.T) {
	for _, c := range []struct {
		reason  string
		between func(n *node) podsource.Pod // the list
		want    map[string]Reason           // of what was reserved before it
		left    string
	}{
		{"a reservation is made after the list", func(n *node) podsource.Pod { n.reserve("10.0.0.3", "new", old); return other },
			map[string]Reason{"10.0.0.2": ReleasedLeak, "fd00::2": ReleasedEmpty}, "10.0.0.3"},
		{"a listed reservation is replaced", func(n *node) podsource.Pod {
			n.replace("10.0.0.2", "new1", old)
			n.replace("fd00::2", "new2", old)
			return other
		}, map[string]Reason{"10.0.0.2": FileChanged, "fd00::2": FileChanged}, "10.0.0.2"},
		{"a listed one is written again: the same inode", func(n *node) podsource.Pod { n.reserve("10.0.0.2", "new1", old); return other },
			map[string]Reason{"10.0.0.2": FileChanged, "fd00::2": ReleasedEmpty}, "10.0.0.2"},
		{"a pod is added after the list", func(*node) podsource.Pod { return podsource.Pod{ContainerIDs: []string{"gone"}} },
			map[string]Reason{"10.0.0.2": ContainerLive, "fd00::2": ReleasedEmpty}, "10.0.0.2"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "gone", old)
			n.file("fd00::2", "", old)
			source := podsource.Func(func(context.Context) ([]podsource.Pod, error) { return []podsource.Pod{c.between(n)}, nil })
			n.checkReasons(n.pass(source, Options{}), c.want)
			if !n.exists(c.left) {
				t.Errorf("%s was removed", c.left)
			}
		})
	}
	t.Run("a sibling is removed after the list", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "sandbox", old)
		n.reserve("fd00::2", "sandbox", old)
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			return []podsource.Pod{{IPs: ips("10.0.0.2")}}, os.Remove(n.path("10.0.0.2"))
		})
		if got := n.pass(source, Options{}).Reservations[1]; got.Reason != SiblingInUse || !n.exists("fd00::2") {
			t.Errorf("fd00::2 is %s (%s), want it in use", got.Verdict, got.Reason)
		}
	})
}

// The first clock of a board without a battery is seen: leaks from before the boot are freed all the same.
func TestHazard80FirstClockOfABoard(t *testing.T) {
	for _, seen := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("leaked"), 30*24*time.Hour) // from before the boot
			clk := &clocks{uptime: time.Minute, base: time.Now()}
			if seen {
				clk.step = -2 * 365 * 24 * time.Hour
			}
			r := newReconciler(t, n.store, []string{network1}, answers(kubeletAnswer(starts())), Options{}, clk)
			clk.step = 0
			n.reconcile(r)
			time.Sleep(24 * time.Hour)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
		})
	}
}
