// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A cache proves network by network that it is the node's and was not wiped: it has an entry
// for the owner of some reservation, and for the owner of each reserved address that is seen
// in a namespace.
func TestCacheProvesToBeTheNodes(t *testing.T) {
	const second = "second"
	a, b, dead := hex64("a"), hex64("b"), hex64("dead")
	empty := hostlocal.Reservation{Network: network1, IP: ips("10.0.0.5")[0], Owner: hostlocal.Empty}
	malformed := hostlocal.Reservation{Network: network1, IP: ips("10.0.0.6")[0], Owner: hostlocal.Malformed}
	all := []hostlocal.Reservation{owned(network1, "10.0.0.2", a), owned(network1, "10.0.0.3", dead), owned(second, "10.9.0.2", b)}
	for _, c := range []struct {
		reason   string
		reserved []hostlocal.Reservation
		cache    podsource.Answer
		others   []podsource.Answer
		want     []string
	}{
		{"each network has its live entries", all, cacheAnswer([]podsource.Pod{attached(network1, a), attached(second, b)}),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"), configured("10.9.0.2"))}, []string{network1, second}},
		{"after a reboot no address is seen, and stale entries are enough", all, cacheAnswer(nil, stale(network1, dead), stale(second, b)),
			[]podsource.Answer{netnsAnswer()}, []string{network1, second}},
		{"a stale entry for one network proves nothing for another", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer()}, []string{network1}},
		{"the wrong directory: its entries name no owner", all, cacheAnswer([]podsource.Pod{attached(network1, hex64("x"))}, stale(second, hex64("y"))),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"))}, nil},
		{"... since their network has another name", all, cacheAnswer(nil, stale("third", a), stale("third", b)),
			[]podsource.Answer{netnsAnswer()}, nil},
		{"wiped", all, cacheAnswer(nil), []podsource.Answer{netnsAnswer(configured("10.0.0.2"))}, nil},
		{"wiped, and one attachment made since", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"), configured("10.9.0.2")), criAnswer(sandbox("1", a, "10.0.0.2"))}, nil},
		{"a live entry is missing for one network only", all, cacheAnswer([]podsource.Pod{attached(network1, a)}, stale(second, dead)),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"), configured("10.9.0.2"))}, []string{network1}},
		{"its ADD is in flight", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"), adding(a))}, []string{network1}},
		{"another's ADD is in flight", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"), adding(b))}, nil},
		{"its ADD is in flight, and the runtime lists it", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"), podsource.Pod{ContainerIDs: []string{b, a}}), criAnswer(sandbox("1", a))}, []string{network1}},
		{"the second address of a namespace is seen, too", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(podsource.Pod{IPs: ips("192.168.0.1", "10.0.0.2")})}, nil},
		{"a source that does not see ADDs explains no missing entry", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2")), criAnswer(sandbox("1", a))}, nil},
		{"an address that is not reserved needs no entry", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(configured("192.168.0.1"))}, []string{network1}},
		{"an address that only a runtime lists is not seen", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(), criAnswer(sandbox("1", a, "10.0.0.2"))}, []string{network1}},
		{"no source reads namespaces", all, cacheAnswer([]podsource.Pod{attached(network1, a), attached(second, b)}),
			[]podsource.Answer{criAnswer(sandbox("1", a, "10.0.0.2"))}, nil},
		{"a source sees ADDs, and none sees addresses", all, cacheAnswer([]podsource.Pod{attached(network1, a)}),
			[]podsource.Answer{{SeesADDs: every, Supplementary: true}}, nil},
		{"an IPv4-mapped address", all, cacheAnswer(nil, stale(network1, dead)),
			[]podsource.Answer{netnsAnswer(configured("::ffff:10.0.0.2"))}, nil},
		{"a reserved address without an owner is seen", append(slices.Clone(all[:2]), empty), cacheAnswer([]podsource.Pod{attached(network1, a)}),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.5"))}, nil},
		{"files without an owner don't count if their addresses are not seen", append(slices.Clone(all[:2]), empty, malformed), cacheAnswer([]podsource.Pod{attached(network1, a)}),
			[]podsource.Answer{netnsAnswer(configured("10.0.0.2"))}, []string{network1}},
		{"an entry without a container ID does not name the owner of an empty file", []hostlocal.Reservation{empty}, cacheAnswer(nil, stale(network1, "")),
			[]podsource.Answer{netnsAnswer()}, nil},
		{"nothing is reserved", nil, cacheAnswer([]podsource.Pod{attached(network1, a)}), []podsource.Answer{netnsAnswer()}, nil},
	} {
		snap := snapshot{reservations: new(clock).sees(reading{}, c.reserved)}
		passed := snap.checkCache(&c.cache, append(c.others, c.cache)).passed
		maps.DeleteFunc(passed, func(_ string, did bool) bool { return !did })
		if got := slices.Sorted(maps.Keys(passed)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.reason, got, c.want)
		}
	}
}

func owned(network, ip, containerID string) hostlocal.Reservation {
	return hostlocal.Reservation{Network: network, IP: ips(ip)[0], Owner: hostlocal.Owned, ContainerID: containerID}
}

// The notes of a report say in which of the named networks a cache does not count, and why.
// A source's own note is kept.
func TestNotes(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.network("second")
		n.reserve("10.0.0.2", hex64("web"), time.Hour)
		n.reserve("10.0.0.3", hex64("dead"), time.Hour)
		n.reserveIn("second", "10.9.0.2", hex64("db"), time.Hour)
		n.network("third")
		n.reserveIn("third", "10.8.0.2", hex64("db"), time.Hour) // only read
		cache := cacheAnswer(nil, stale(network1, hex64("dead")))
		cache.Note = "it rains"
		noADDs := podsource.Answer{Source: "netns", SeesAddresses: true, Supplementary: true}
		unseen := "in podnet it does not count: 10.0.0.2 is in a network namespace, and it has no entry of the owner " + hex64("web")
		const unknown = "in second it does not count: it has no entry of any reservation's owner"
		for _, c := range []struct {
			reason  string
			members []podsource.Answer
			want    []string
		}{
			{"it counts in one of two", []podsource.Answer{netnsAnswer(), cache}, []string{"", "it rains; " + unknown}},
			{"it counts in none", []podsource.Answer{netnsAnswer(configured("10.0.0.2")), cache}, []string{"", "it rains; " + unseen + "; " + unknown}},
			{"no source sees ADDs", []podsource.Answer{noADDs, cache},
				[]string{"", "it rains; in podnet it does not count: no source sees ADDs; in second it does not count: no source sees ADDs"}},
			{"no source sees addresses", []podsource.Answer{cache, criAnswer()}, []string{"it rains; it counts in no network, as no source sees addresses", ""}},
		} {
			var got []string
			for _, s := range n.reconcile(n.reconcilerOf([]string{network1, "second"}, answers(c.members...), Options{DryRun: true})).Sources {
				got = append(got, s.Note)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		}
	})(t)
}

// A cache that was wiped passes its check again with its next record, if no container shows
// an address. It speaks only of reservations from after its oldest record.
func TestHazard70WipedCache(t *testing.T) {
	const hour = time.Hour
	for _, c := range []struct {
		reason string
		since  time.Duration // how long ago the oldest record was made; zero: unknown
		age    time.Duration // of the reservation
		booted time.Duration // how long ago
		record bool          // of its container
		want   Reason        // with namespaces and the cache alone
		other  Reason        // and with a runtime, which speaks of every network and has a lag
	}{
		{"it is older than the oldest record (hazard 113)", hour, 2 * hour, 24 * hour, false, NotRecorded, ReleasedLeak},
		{"... and too young for the runtime", time.Minute, 2 * time.Minute, 24 * hour, false, NotRecorded, NotYetListed},
		{"it is younger", 2 * hour, hour, 24 * hour, false, ReleasedLeak, ReleasedLeak},
		{"... and too young for the runtime alone", 2 * hour, 2 * time.Minute, 24 * hour, false, ReleasedLeak, ReleasedLeak},
		{"it is younger by less than the granularity of whole seconds", hour, hour - coarseTimestamps, 24 * hour, false, NotRecorded, ReleasedLeak},
		{"it is younger by more", hour, hour - coarseTimestamps - timestampGranularity - 1, 24 * hour, false, ReleasedLeak, ReleasedLeak},
		{"it is younger by less than a clock's tick", hour - 1, hour - 1 - timestampGranularity, 24 * hour, false, NotRecorded, ReleasedLeak},
		{"it is younger by more", hour - 1, hour - 2 - timestampGranularity, 24 * hour, false, ReleasedLeak, ReleasedLeak},
		{"the time of the oldest record is unknown", 0, hour, 24 * hour, false, NotRecorded, ReleasedLeak},
		{"its container has a record, which is stale", hour, 2 * hour, 24 * hour, true, ReleasedLeak, ReleasedLeak},
		{"it is from before the node's boot, and was not first seen L ago", hour, 4 * hour, 3 * hour, false, NotRecorded, UntrustedTimestamp},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), c.age)
			n.reserve("10.0.0.3", hex64("new"), 30*time.Second) // has the record by which the cache passes
			cache := cacheAnswer([]podsource.Pod{attached(network1, hex64("new"))})
			if c.record {
				cache.Cache.Entries = append(cache.Cache.Entries, stale(network1, hex64("web")))
			}
			cache.Cache.Since = time.Time{}
			if c.since > 0 {
				cache.Cache.Since = time.Now().Add(-c.since)
			}
			members := []podsource.Answer{netnsAnswer(), cache, criAnswer()}
			for asked, want := range map[int]Reason{2: c.want, 3: c.other} {
				r := n.reconciler(answers(members[:asked]...), Options{MinAge: time.Minute, DryRun: true})
				read := r.now
				r.now = func() reading {
					now := read()
					now.boot = c.booted
					return now
				}
				r.clock = clock{}
				if want == ReleasedLeak {
					want = Unowned
				}
				n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": want, "10.0.0.3": ContainerLive})
			}
		}))
	}
}

// A timestamp from before a step of the clock does not show that a reservation is younger
// than the oldest record.
func TestHazard70WipedCacheAndAStepOfTheClock(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), time.Hour)
		cache := cacheAnswer(nil, stale(network1, hex64("dead")))
		n.reserve("10.0.0.3", hex64("dead"), 0)
		cache.Cache.Since = time.Now().Add(-2 * time.Hour)
		r := n.reconciler(answers(netnsAnswer(), cache), Options{DryRun: true})
		r.clock.steps.TrustedSince = time.Now().Add(-time.Minute)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": NotRecorded, "10.0.0.3": TooYoung})
		time.Sleep(DefaultMinAge)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": NotRecorded, "10.0.0.3": Unowned})
		r.clock.steps.TrustedSince = time.Time{}
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": Unowned, "10.0.0.3": Unowned})
	})(t)
}

// What a cache declares counts only in the networks in which it passed its check, for R4 and
// R5 as for R14.
func TestCacheThatDoesNotPassDeclaresNothing(t *testing.T) {
	for _, c := range []struct {
		reason string
		cache  podsource.Answer
		want   map[string]Reason // with namespaces and the cache alone
		other  map[string]Reason // and with a runtime, which speaks of every network
	}{
		{"it passes in both", cacheAnswer(nil, stale(network1, hex64("leaked")), stale("second", hex64("leaked2"))), map[string]Reason{
			"10.0.0.2": ReleasedLeak, "second/10.9.0.2": ReleasedLeak}, nil},
		{"it passes in one", cacheAnswer(nil, stale(network1, hex64("leaked"))), map[string]Reason{
			"10.0.0.2": ReleasedLeak, "second/10.9.0.2": NoSourceForNetwork}, map[string]Reason{
			"10.0.0.2": ReleasedLeak, "second/10.9.0.2": NotYetListed}},
		{"in none", cacheAnswer(nil), map[string]Reason{
			"10.0.0.2": NoSourceForNetwork, "second/10.9.0.2": NoSourceForNetwork}, map[string]Reason{
			"10.0.0.2": NotYetListed, "second/10.9.0.2": NotYetListed}},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.network("second")
			n.reserve("10.0.0.2", hex64("leaked"), young)
			n.reserveIn("second", "10.9.0.2", hex64("leaked2"), young)
			r := n.reconcilerOf([]string{network1, "second"}, answers(netnsAnswer(), c.cache), Options{MinAge: young})
			n.checkReasons(n.reconcile(r), c.want)
			if len(c.other) == 0 {
				return
			}
			n.reserve("10.0.0.2", hex64("leaked"), young) // again
			r = n.reconcilerOf([]string{network1, "second"}, answers(netnsAnswer(), c.cache, criAnswer()), Options{MinAge: young})
			n.checkReasons(n.reconcile(r), c.other)
		}))
	}
}

// A pass does not write into the memory of an answer, which is the source's.
func TestAnswersAreNotChanged(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "web", old)
	all := []string{"other", "its own"}
	cache := cacheAnswer(nil, stale(network1, "web"))
	cache.Networks = all[:1]
	n.pass(answers(netnsAnswer(), cache, plain(other)[0]), Options{})
	if !slices.Equal(all, []string{"other", "its own"}) {
		t.Errorf("changed to %v", all)
	}
}
