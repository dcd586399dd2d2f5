// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests R5, "Seconds": a MinAge below L counts only in a pass with answers of a
// source that sees ADDs and addresses and of a cache that passed its check, in two looks. It
// also tests the hook's assertion.

// complete returns the answers with which a MinAge of seconds counts: db is live, and the
// cache has its entry.
func complete() (namespaces, cache podsource.Answer) {
	db := attached(network1, hex64("db"), "10.0.0.9")
	return netnsAnswer(configured("10.0.0.9")), cacheAnswer([]podsource.Pod{db})
}

func TestSecondsCountOnlyWithBoth(t *testing.T) {
	namespaces, cache := complete()
	with := func(a podsource.Answer, change func(*podsource.Answer)) podsource.Answer {
		change(&a)
		return a
	}
	noADDs := with(namespaces, func(a *podsource.Answer) { a.SeesADDs = false })
	noAddresses := with(namespaces, func(a *podsource.Answer) { a.SeesAddresses = false })
	lagging := with(cache, func(a *podsource.Answer) {
		a.Names = []podsource.Names{{Form: podsource.AnyForm, Lag: time.Second}}
	})
	otherForm := with(cache, func(a *podsource.Answer) {
		a.Names = []podsource.Names{{Form: "default-" + podsource.Hex64}}
	})
	for _, c := range []struct {
		reason string
		first  []podsource.Answer
		second []podsource.Answer // nil: as the first
		age    time.Duration
		want   Reason
		looks  int
	}{
		{"both", []podsource.Answer{namespaces, cache}, nil, 10 * time.Second, Unowned, 2},
		{"younger than MinAge", []podsource.Answer{namespaces, cache}, nil, 10*time.Second - 1, TooYoung, 1},
		{"no namespaces", []podsource.Answer{cache, criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"namespaces read before it was first seen", []podsource.Answer{asOf(namespaces, -time.Second), cache}, nil, 6 * time.Minute, NotYetListed, 2},
		{"a cache read before it was first seen", []podsource.Answer{namespaces, asOf(cache, -time.Second), criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"no ADDs are seen", []podsource.Answer{noADDs, cache}, nil, 6 * time.Minute, NotYetListed, 1},
		{"no addresses are seen", []podsource.Answer{noAddresses, cache, criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"addresses read before it was first seen, ADDs now", []podsource.Answer{with(namespaces, func(a *podsource.Answer) { a.SeesAddresses = false }),
			with(asOf(namespaces, -time.Second), func(a *podsource.Answer) { a.SeesADDs = false }), cache}, nil, 6 * time.Minute, NotYetListed, 2},
		{"a cache that names with a lag, beside a record", []podsource.Answer{namespaces, lagging, recordAnswer([]string{network1})}, nil, 6 * time.Minute, NotYetListed, 2},
		{"no cache", []podsource.Answer{namespaces, criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"a record is no cache", []podsource.Answer{namespaces, recordAnswer([]string{network1})}, nil, 6 * time.Minute, NotYetListed, 2},
		{"a cache that names with a lag", []podsource.Answer{namespaces, lagging}, nil, 6 * time.Minute, NotYetListed, 1},
		{"a cache of another form", []podsource.Answer{namespaces, otherForm, criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"... after L", []podsource.Answer{noADDs, cache}, nil, 7 * time.Minute, Unowned, 1},
		{"the second look finds its ADD", []podsource.Answer{namespaces, cache},
			[]podsource.Answer{netnsAnswer(configured("10.0.0.9"), adding(hex64("web"))), cache}, 10 * time.Second, ContainerLive, 2},
		{"only the first look found its ADD", []podsource.Answer{netnsAnswer(configured("10.0.0.9"), adding(hex64("web"))), cache},
			[]podsource.Answer{namespaces, cache}, 10 * time.Second, ContainerLive, 2},
		{"the second look does not see ADDs", []podsource.Answer{namespaces, cache}, []podsource.Answer{noADDs, cache}, 6 * time.Minute, NotYetListed, 2},
		{"the second look does not see addresses", []podsource.Answer{namespaces, cache, criAnswer()},
			[]podsource.Answer{noAddresses, cache, criAnswer()}, 6 * time.Minute, NotYetListed, 2},
		{"the cache does not pass in the second look", []podsource.Answer{namespaces, cache, criAnswer()},
			[]podsource.Answer{namespaces, cacheAnswer(nil), criAnswer()}, 6 * time.Minute, NotYetListed, 2},
		{"the cache is not asked in the second look", []podsource.Answer{namespaces, cache, criAnswer()},
			[]podsource.Answer{namespaces, criAnswer()}, 6 * time.Minute, NotYetListed, 2},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.age)
			n.reserve("10.0.0.8", hex64("leaked"), c.age) // requires a second look if the first one finds web
			n.reserve("10.0.0.9", hex64("db"), old)
			if c.second == nil {
				c.second = c.first
			}
			report := n.pass(inTurn(c.first, c.second), Options{MinAge: 10 * time.Second, DryRun: true})
			if got := report.Reservations[0].Reason; got != c.want || report.Looks != c.looks {
				t.Errorf("got %s in %d looks, want %s in %d", got, report.Looks, c.want, c.looks)
			}
		}))
	}
}

// The declarations of a single look are not enough.
func TestOneLookEndsNothing(t *testing.T) {
	at := reading{wall: time.Now(), mono: time.Hour, boot: 30 * 24 * time.Hour}
	l := Options{MinAge: time.Second, StartingFor: DefaultStartingFor}
	reserved := func(id string, age time.Duration) []hostlocal.Reservation {
		r := owned(network1, "10.0.0.2", hex64(id))
		r.ReservedAt = at.wall.Add(-age)
		return []hostlocal.Reservation{r}
	}
	look := []podsource.Answer{netnsAnswer(), cacheAnswer(nil, stale(network1, hex64("leaked"))), criAnswer()}
	if entries, _ := judge(reserved("leaked", time.Minute), look, at, l); entries[0].Reason != NotYetListed {
		t.Errorf("younger than L: %s", entries[0].Reason)
	}
	look = append(look, kubeletAnswer(starts()))
	if entries, _ := judge(reserved("leaked", DefaultMinAge), look, at, l); entries[0].Verdict != Starting {
		t.Errorf("beside a starting pod: %s", entries[0].Reason)
	}
}

// Processes are read between two plugins of a chain, or while process IDs wrap around: one of
// two looks, a second apart, sees the ADD.
func TestHazard72ADDBetweenTwoPlugins(t *testing.T) {
	namespaces, cache := complete()
	between := []podsource.Answer{namespaces, cache}
	plugin := []podsource.Answer{netnsAnswer(configured("10.0.0.9"), adding(hex64("web"))), cache}
	for _, c := range []struct {
		reason string
		looks  [][]podsource.Answer
	}{
		{"the first look misses it", [][]podsource.Answer{between, plugin}},
		{"the second look misses it", [][]podsource.Answer{plugin, between}},
	} {
		for _, starting := range []bool{false, true} {
			t.Run(c.reason, inBubble(func(t *testing.T) {
				n := newNode(t)
				n.reserve("10.0.0.2", hex64("web"), 3*time.Second)
				n.reserve("10.0.0.3", hex64("leaked"), 3*time.Second)
				n.reserve("10.0.0.9", hex64("db"), old)
				looks := c.looks
				if starting {
					for i := range looks {
						looks[i] = append(looks[i][:2:2], kubeletAnswer(startingPod("web", time.Time{})))
					}
				}
				source := inTurn(looks...)
				report := n.pass(source, Options{MinAge: 2 * time.Second})
				n.check(report, map[string]Verdict{"10.0.0.2": InUse, "10.0.0.3": Released, "10.0.0.9": InUse})
				if at := source.times(); len(at) != 2 || at[1].Sub(at[0]) < time.Second {
					t.Errorf("asked at %v, want twice, at least a second apart", at)
				}
			}))
		}
	}
}

// A second answer whose date is not a second later than the first is no second look.
func TestHazard72TwoAnswersOfOneTime(t *testing.T) {
	for _, c := range []struct {
		reason string
		later  time.Duration // the second date
		want   Reason
	}{
		{"the same date", 0, NotYetListed},
		{"a nanosecond less than a second", time.Second - 1, NotYetListed},
		{"a second", time.Second, ReleasedLeak},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), 2*time.Minute)
			n.reserve("10.0.0.9", hex64("db"), old)
			namespaces, cache := complete()
			asked := 0
			begun := time.Now()
			r := n.reconciler(podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
				namespaces.AsOf = begun.Add(time.Duration(asked) * c.later)
				asked++
				return podsource.Answer{Parts: []podsource.Answer{namespaces, cache}}, nil
			}), Options{MinAge: time.Second})
			n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": c.want, "10.0.0.9": ContainerLive})
			if asked != 2 {
				t.Errorf("asked %d times, want twice", asked)
			}
		}))
	}
}

// A second look costs a second and twice the calls of sources. A pass takes it only if it may
// release something by it.
func TestSecondLookOnlyForWhatMayBeReleased(t *testing.T) {
	namespaces, cache := complete()
	for _, c := range []struct {
		reason string
		make   func(n *node)
		opts   Options
		looks  int
	}{
		{"a leak", func(n *node) { n.reserve("10.0.0.2", hex64("leaked"), old) }, Options{}, 2},
		{"an empty file", func(n *node) { n.file("10.0.0.2", "", old) }, Options{}, 2},
		{"nothing but what is in use", func(*node) {}, Options{}, 1},
		{"... by its container alone", func(n *node) { n.reserve("10.0.0.2", hex64("db"), old) }, Options{}, 1},
		{"... by its address alone", func(n *node) { n.reserve("10.0.0.9", hex64("gone"), old) }, Options{}, 1},
		{"garbage", func(n *node) { n.file("10.0.0.2", "a b c", old) }, Options{}, 1},
		{"a young one", func(n *node) { n.reserve("10.0.0.2", hex64("young"), young) }, Options{}, 1},
		{"a leak in a network that is only read", func(n *node) {
			n.network("second")
			n.reserveIn("second", "10.0.0.2", hex64("leaked"), old)
		}, Options{}, 1},
		{"MinAge is L, and no pod is starting", func(n *node) { n.reserve("10.0.0.2", hex64("leaked"), old) }, Options{MinAge: DefaultMinAge}, 1},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.9", hex64("db"), old)
			c.make(n)
			members := []podsource.Answer{namespaces, cache, recordAnswer([]string{network1, "second"})}
			if c.opts.MinAge == 0 {
				members = append(members, kubeletAnswer(startingPod("web", time.Time{})))
			}
			if report := n.pass(answers(members...), c.opts); report.Looks != c.looks {
				t.Errorf("asked %d times, want %d", report.Looks, c.looks)
			}
		}))
	}
}

// The hook's assertion waives R5 for one pass, and only for containers that a source names
// without a lag.
func TestHookAssertion(t *testing.T) {
	record, twoForms := recordAnswer([]string{network1}, hex64("live")), criAnswer()
	twoForms.Names = append([]podsource.Names{{Form: "default-" + podsource.Hex64, Lag: podsource.RuntimeLag}}, twoForms.Names...)
	namesOf := func(n podsource.Names) podsource.Answer {
		return podsource.Answer{Pods: []podsource.Pod{other}, Names: []podsource.Names{n}}
	}
	for _, c := range []struct {
		reason  string
		members []podsource.Answer
		stamp   time.Duration // of the reservation: its age
		want    Verdict
	}{
		{"a record names it", []podsource.Answer{record}, time.Millisecond, Released},
		{"... dated in the future", []podsource.Answer{record}, -time.Hour, Released},
		{"... beside a runtime", []podsource.Answer{record, criAnswer()}, time.Millisecond, Released},
		{"... that names two forms", []podsource.Answer{record, twoForms}, time.Millisecond, Released},
		{"a runtime waives nothing", []podsource.Answer{criAnswer()}, 6 * time.Minute, Young},
		{"a lag of a nanosecond is a lag", []podsource.Answer{namesOf(podsource.Names{Form: podsource.AnyForm, Lag: 1})}, 6 * time.Minute, Young},
		{"a record of another network", []podsource.Answer{recordAnswer([]string{"second"}), {Pods: []podsource.Pod{other}}}, 6 * time.Minute, Young},
		{"names of another form", []podsource.Answer{namesOf(podsource.Names{Form: "x-" + podsource.Hex64}), kubeletAnswer()}, 6 * time.Minute, Young},
		{"a cache that is not proven", []podsource.Answer{cacheAnswer(nil), {Pods: []podsource.Pod{other}}}, 6 * time.Minute, Young},
		{"plain pods", []podsource.Answer{{Pods: []podsource.Pod{other}}}, 6 * time.Minute, Young},
		{"a pod that is starting keeps its claim", []podsource.Answer{record, kubeletAnswer(starts())}, time.Millisecond, Starting},
		{"... also where ADDs are seen", []podsource.Answer{netnsAnswer(), record, kubeletAnswer(starts())}, time.Millisecond, Starting},
		{"an answer from before it was seen", []podsource.Answer{asOf(record, -time.Second)}, time.Millisecond, Young},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.stamp)
			source := answers(c.members...)
			without, err := n.reconciler(source, Options{DryRun: true}).AtStartup(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := without.Reservations[0].Verdict; got == Leaked {
				t.Errorf("without the assertion it is %s", got)
			}
			report, err := n.reconciler(source, Options{}).AtStartup(t.Context(), NoADDInFlight)
			if err != nil {
				t.Fatal(err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": c.want})
		}))
	}
}

// The assertion does not end the claim of a starting pod in a pass of two looks either.
func TestHookAssertionBesideTwoLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), time.Second)
		n.reserve("10.0.0.3", hex64("leaked"), old)
		source := answers(netnsAnswer(), recordAnswer([]string{network1}), kubeletAnswer(starts()))
		report, err := n.reconciler(source, Options{}).AtStartup(t.Context(), NoADDInFlight)
		if err != nil || report.Looks != 2 {
			t.Fatalf("got error %v, %d looks", err, report.Looks)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Starting, "10.0.0.3": Released})
	})
}

// The assertion is for one call of the hook: a reservation that an ADD makes later is young
// in the passes after it.
func TestHazard45TheAssertionIsForOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("leaked"), young)
		r := n.reconciler(answers(recordAnswer([]string{network1})), Options{})
		report, err := r.AtStartup(t.Context(), 0, NoADDInFlight) // one of several
		if err != nil {
			t.Fatal(err)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Released})
		n.reserve("10.0.0.2", hex64("web"), 0) // its ADD is in flight
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Young})
		if report, err = r.AtStartup(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Young})
		time.Sleep(DefaultMinAge - 1)
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Young})
	})
}

// The agent restarts while a sandbox's pause image is pulled: the ADD has ended, and the
// runtime does not list the sandbox yet.
func TestHazard73AssertionBesideARuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), 3*time.Minute)
		report, err := n.reconciler(answers(criAnswer()), Options{}).AtStartup(t.Context(), NoADDInFlight)
		if err != nil {
			t.Fatal(err)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Young})
	})
}
