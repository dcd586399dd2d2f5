// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests R5: how old a reservation must be. "Seconds": a MinAge below L counts only in a pass with answers of a
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
	noADDs := with(namespaces, func(a *podsource.Answer) { a.SeesADDs = nil })
	noAddresses := with(namespaces, func(a *podsource.Answer) { a.SeesAddresses = false })
	late := with(cache, func(a *podsource.Answer) { a.AtOnce = false })
	sandboxes := with(cache, func(a *podsource.Answer) { a.Names = podsource.SandboxContainers })
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
		{"namespaces read before it was first seen", []podsource.Answer{asOf(namespaces, -time.Second), cache}, nil, 6 * time.Minute, NotYetListed, 1},
		{"a cache read before it was first seen", []podsource.Answer{namespaces, asOf(cache, -time.Second), criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"no ADDs are seen, so the cache does not pass its check", []podsource.Answer{noADDs, cache}, nil, 6 * time.Minute, NoSourceForNetwork, 1},
		{"no addresses are seen", []podsource.Answer{noAddresses, cache, criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"addresses read before it was first seen, ADDs now", []podsource.Answer{with(namespaces, func(a *podsource.Answer) { a.SeesAddresses = false }),
			with(asOf(namespaces, -time.Second), func(a *podsource.Answer) { a.SeesADDs = nil }), cache}, nil, 6 * time.Minute, NotYetListed, 1},
		{"no cache, and a late runtime (hazard 71)", []podsource.Answer{namespaces, criAnswer()}, nil, 6 * time.Minute, NotYetListed, 1},
		{"a record is no cache", []podsource.Answer{namespaces, recordAnswer([]string{network1})}, nil, 6 * time.Minute, NotYetListed, 1},
		{"a cache that names late", []podsource.Answer{namespaces, late}, nil, 6 * time.Minute, NotYetListed, 1},
		{"a cache of sandboxes", []podsource.Answer{namespaces, sandboxes}, nil, 10 * time.Second, Unowned, 2},
		{"... after L, with a runtime", []podsource.Answer{noADDs, cache, criAnswer()}, nil, 7 * time.Minute, Unowned, 1},
		{"the second look does not see ADDs", []podsource.Answer{namespaces, cache, criAnswer()}, []podsource.Answer{noADDs, cache, criAnswer()}, 6 * time.Minute, NotYetListed, 2},
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
	for _, c := range []struct {
		age, boot time.Duration
		more      []podsource.Answer
		want      Reason
	}{
		{time.Minute, 30 * 24 * time.Hour, nil, NotYetListed},
		{DefaultMinAge, 30 * 24 * time.Hour, []podsource.Answer{kubeletAnswer(starts())}, PodStartUnknown},
		{time.Hour, time.Minute, nil, UntrustedTimestamp}, // its time is doubted for the boot
	} {
		r := owned(network1, "10.0.0.2", hex64("leaked"))
		r.ReservedAt, at.boot = at.wall.Add(-c.age), c.boot
		look := append([]podsource.Answer{netnsAnswer(), cacheAnswer(nil, stale(network1, hex64("leaked"))), criAnswer()}, c.more...)
		report := judge([]hostlocal.Reservation{r}, look, at, Options{MinAge: time.Second, StartingFor: DefaultStartingFor})
		if got := report.Reservations[0].Reason; got != c.want {
			t.Errorf("%v old, booted %v ago: %s, want %s", c.age, c.boot, got, c.want)
		}
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
		{"what is foreign", func(n *node) { n.reserve("10.0.0.2", "word", old) }, Options{AllowForeign: []string{}}, 1},
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

// The hook's assertion waives R5 and ends the claims of starting pods for one pass, only for
// containers that a record names (R5). A list that the caller made before the call counts for
// what is older than it (hazard 95).
func TestHookAssertion(t *testing.T) {
	record, gap := recordAnswer([]string{network1}, hex64("live")), recordAnswer([]string{network1})
	gap.Gaps = []podsource.Gap{{}}
	cache := cacheAnswer(nil, stale(network1, hex64("web")))
	unproven := cacheAnswer([]podsource.Pod{{Network: network1, ContainerIDs: []string{hex64("web")}, Unproven: true}})
	const boot = 40 * 24 * time.Hour // from before it
	for _, c := range []struct {
		reason  string
		members []podsource.Answer
		stamp   time.Duration // of the reservation: its age
		want    Reason
	}{
		{"a record names it", []podsource.Answer{record}, time.Millisecond, ReleasedLeak},
		{"... dated in the future", []podsource.Answer{record}, -time.Hour, ReleasedLeak},
		{"... beside a runtime", []podsource.Answer{record, criAnswer()}, time.Millisecond, ReleasedLeak},
		{"a list from before the call, and it is older (hazard 95)", []podsource.Answer{asOf(record, -3*time.Second)}, 6 * time.Second, ReleasedLeak},
		{"... by a time from before the boot (hazard 110)", []podsource.Answer{asOf(record, -3*time.Second)}, boot, ReleasedLeak},
		{"... and it is younger", []podsource.Answer{asOf(record, -3*time.Second)}, 3*time.Second + timestampGranularity, TooYoung},
		{"... or of an unknown time", []podsource.Answer{asOf(record, -3*time.Second)}, -time.Hour, UntrustedTimestamp},
		{"a list from the future", []podsource.Answer{asOf(record, time.Minute)}, boot, StaleAnswer},
		{"a runtime waives nothing: it lists a sandbox late (hazard 73)", []podsource.Answer{criAnswer()}, 6 * time.Minute, TooYoung},
		{"a record of another network (hazard 116)", []podsource.Answer{recordAnswer([]string{"second"}), plain(other)[0]}, 6 * time.Minute, TooYoung},
		{"the gap of a record", []podsource.Answer{gap, plain(other)[0]}, 6 * time.Minute, TooYoung},
		{"a cache waives nothing", []podsource.Answer{netnsAnswer(), cache}, 6 * time.Minute, TooYoung},
		{"plain pods", plain(other), 6 * time.Minute, TooYoung},
		{"a stuck pod claims nothing (hazard 94)", []podsource.Answer{record, kubeletAnswer(starts())}, time.Millisecond, ReleasedLeak},
		{"... also where ADDs are seen", []podsource.Answer{netnsAnswer(), record, kubeletAnswer(starts())}, time.Millisecond, ReleasedLeak},
		{"... but an unproven entry does (hazard 119)", []podsource.Answer{netnsAnswer(), unproven, record}, 8 * time.Minute, EntryUnproven},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.stamp)
			source := answers(c.members...)
			without := n.atStartup(n.reconciler(source, Options{DryRun: true}))
			if got := without.Reservations[0].Verdict; got == Leaked {
				t.Errorf("without the assertion it is %s", got)
			}
			report := n.atStartup(n.reconciler(source, Options{}), NoADDInFlight)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want})
			if report.Looks != 1 {
				t.Errorf("asked %d times for what the assertion waives", report.Looks)
			}
		}))
	}
}

// The assertion is for one call of the hook: a reservation that an ADD makes later is young
// in the passes after it.
func TestHazard45TheAssertionIsForOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("leaked"), young)
		r := n.reconciler(answers(recordAnswer([]string{network1})), Options{})
		report, err := r.AtStartup(t.Context(), 0, NoADDInFlight) // one of several
		must(t, err)
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

// The assertion waives nothing for a container of a kind that the record does not name.
func TestHookAssertionOfAnotherKind(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "default-"+hex64("nerdctl"), young)
	n.reserve("10.0.0.3", hex64("web"), young)
	sandboxes := recordAnswer([]string{network1})
	sandboxes.Names = podsource.SandboxContainers
	report := n.atStartup(n.reconciler(answers(sandboxes), Options{}), NoADDInFlight)
	n.check(report, map[string]Verdict{"10.0.0.2": Young, "10.0.0.3": Released})
}

// A pass of two looks, since ADDs are seen in one network. In the other one they are not: a time from
// before the boot stays doubted, a claim stands, and a MinAge below L does not count.
func TestADDsSeenInAnotherNetwork(t *testing.T) {
	const second = "second"
	adds := netnsAnswer()
	adds.SeesADDs = []string{second}
	dated := asOf(netnsAnswer(), -time.Second) // ADDs of the first network, from before it was seen
	dated.SeesAddresses = false
	cache := cacheAnswer(nil, stale(network1, hex64("a")), stale(second, hex64("b")))
	record := recordAnswer([]string{network1, second})
	for _, c := range []struct {
		reason  string
		uptime  time.Duration
		age     time.Duration
		members []podsource.Answer
		want    Reason // in the first network
	}{
		{"from before the boot (hazard 80)", time.Minute, time.Hour, []podsource.Answer{adds, record}, UntrustedTimestamp},
		{"a pod is starting", 24 * time.Hour, 8 * time.Minute, []podsource.Answer{adds, record, kubeletAnswer(starts())}, PodStartUnknown},
		{"MinAge is a minute", 24 * time.Hour, 2 * time.Minute, []podsource.Answer{adds, dated, cache}, NotYetListed},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.network(second)
			n.reserve("10.0.0.2", hex64("a"), c.age)
			n.reserveIn(second, "10.9.0.2", hex64("b"), c.age)
			r := newReconciler(t, n.store, []string{network1, second}, answers(c.members...), Options{MinAge: time.Minute}, &clocks{uptime: c.uptime})
			report := n.reconcile(r)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want, "second/10.9.0.2": ReleasedLeak})
			if report.Looks != 2 {
				t.Errorf("asked %d times", report.Looks)
			}
		}))
	}
}

// A time from before the boot stays doubted for what the cache has no entry of, also once the cache
// speaks of it.
func TestHazard80NoEntryInTheCache(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("a"), 24*time.Hour)
		n.reserve("10.0.0.3", hex64("b"), 24*time.Hour)
		source := answers(netnsAnswer(), cacheAnswer(nil, stale(network1, hex64("b"))))
		r := newReconciler(t, n.store, []string{network1}, source, Options{MinAge: time.Hour}, &clocks{uptime: time.Minute})
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Foreign, "10.0.0.3": Released})
		n.reserve("10.0.0.3", hex64("b"), 0)
		time.Sleep(DefaultMinAge + time.Second)
		n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Young, "10.0.0.3": Young})
	})(t)
}

// A list of addresses from before the look lifts no minimum age.
func TestDatedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("dead"), time.Minute)
		n.reserve("10.0.0.3", hex64("web"), time.Hour)
		adds, addresses := netnsAnswer(), asOf(netnsAnswer(), -20*time.Second)
		adds.SeesAddresses, addresses.SeesADDs = false, nil
		c := cacheAnswer([]podsource.Pod{attached(network1, hex64("web"), "10.0.0.3")}, stale(network1, hex64("dead")))
		r := n.reconciler(answers(adds, addresses, c), Options{MinAge: time.Second})
		n.reconcile(r)
		time.Sleep(time.Minute)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": NotYetListed, "10.0.0.3": ContainerLive})
	})
}

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
		n.fileIn("second", "10.9.0.2", "web\r\nnet1", 2*time.Minute)
		n.fileIn("third", "10.8.0.2", "web\r\nnet2", 4*time.Minute)
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
