// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"slices"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests how the claim of a starting pod ends (R4).

// The claim ends by a source that names containers of the kind and network, once the age exceeds
// StartingFor (a); by one that names them at once where ADDs are seen, in two looks, from MinAge on
// (b); and for what is from before the boot, once the age exceeds L (c).
func TestStartingEnds(t *testing.T) {
	const l, startingFor = DefaultMinAge, DefaultStartingFor
	record, ofSecond := recordAnswer([]string{network1}), recordAnswer([]string{"second"})
	addsOnly := netnsAnswer()
	addsOnly.SeesAddresses = false
	addsOfSecond := addsOnly
	addsOfSecond.SeesADDs = []string{"second"}
	cache := cacheAnswer(nil, stale(network1, hex64("leaked")))
	late := record
	late.AtOnce = false
	for _, c := range []struct {
		reason  string
		age     time.Duration
		members []podsource.Answer
		opts    Options
		want    Reason
		looks   int
	}{
		{"no source names containers", 24 * time.Hour, nil, Options{}, StartingNoEnd, 1},
		{"only in another network", 24 * time.Hour, []podsource.Answer{ofSecond}, Options{}, StartingNoEnd, 1},
		{"(a) exactly StartingFor old does not exceed it", startingFor, []podsource.Answer{criAnswer()}, Options{}, PodStartUnknown, 1},
		{"(a) a nanosecond older", startingFor + 1, []podsource.Answer{criAnswer()}, Options{}, ReleasedLeak, 1},
		{"(a) a record, without a look at ADDs", startingFor + 1, []podsource.Answer{record}, Options{}, ReleasedLeak, 1},
		{"(a) the caller sets more", time.Hour, []podsource.Answer{criAnswer()}, Options{StartingFor: time.Hour}, PodStartUnknown, 1},
		{"(a) ... and a nanosecond older than that", time.Hour + 1, []podsource.Answer{criAnswer()}, Options{StartingFor: time.Hour}, ReleasedLeak, 1},
		{"(a) StartingFor follows T", 20 * time.Minute, []podsource.Answer{criAnswer()}, Options{RuntimeRequestTimeout: 5 * time.Minute}, PodStartUnknown, 1},
		{"(a) ... and a nanosecond older", 20*time.Minute + 1, []podsource.Answer{criAnswer()}, Options{RuntimeRequestTimeout: 5 * time.Minute}, ReleasedLeak, 1},
		{"(a) by an answer from before it was first seen", 24 * time.Hour, []podsource.Answer{asOf(criAnswer(), -time.Second)}, Options{}, PodStartUnknown, 1},
		{"(b) a record, and a source that sees ADDs", l, []podsource.Answer{addsOnly, record}, Options{}, ReleasedLeak, 2},
		{"(b) younger than MinAge", l - 2, []podsource.Answer{addsOnly, record}, Options{}, TooYoung, 1},
		{"(b) the record is from before it was first seen", startingFor, []podsource.Answer{netnsAnswer(), asOf(record, -time.Second)}, Options{}, PodStartUnknown, 1},
		{"(b) the record is of another network", 24 * time.Hour, []podsource.Answer{addsOnly, ofSecond}, Options{}, StartingNoEnd, 1},
		{"(b) ADDs are seen in another network", startingFor, []podsource.Answer{addsOfSecond, record}, Options{}, PodStartUnknown, 1},
		{"(b) a source that names late", startingFor, []podsource.Answer{addsOnly, late}, Options{}, PodStartUnknown, 1},
		{"(b) a cache that passed its check", l, []podsource.Answer{netnsAnswer(), cache}, Options{}, ReleasedLeak, 2},
		{"(b) a cache that can't be checked", 24 * time.Hour, []podsource.Answer{addsOnly, cache}, Options{}, StartingNoEnd, 1},
		{"(b) MinAge is set higher", 20 * time.Minute, []podsource.Answer{addsOnly, record}, Options{MinAge: 21 * time.Minute}, TooYoung, 1},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("leaked"), c.age)
			s := inTurn(append(slices.Clone(c.members), kubeletAnswer(starts())))
			report := n.pass(s, c.opts)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want})
			if report.Looks != c.looks || len(s.times()) != c.looks || len(report.Sources) != len(c.members)+1 {
				t.Errorf("asked %d times, and the report says %d, of %d sources; want %d", len(s.times()), report.Looks, len(report.Sources), c.looks)
			}
			if waits := c.want == PodStartUnknown; report.NextCheck.IsZero() == (waits || report.Reservations[0].Verdict == Young) {
				t.Errorf("the next check is at %v", report.NextCheck)
			}
		}))
	}
}

// Both looks must agree, and dated answers must be from after each look began.
func TestStartingEndsByTwoLooks(t *testing.T) {
	record, adds, kubelet := recordAnswer([]string{network1}), netnsAnswer(), kubeletAnswer(starts())
	noAdds, noNames := adds, record
	noAdds.SeesADDs = nil
	noNames.Names = podsource.KubernetesPods
	both := []podsource.Answer{adds, record, kubelet}
	dated := []podsource.Answer{adds, asOf(record, 0), kubelet}
	before := []podsource.Answer{adds, asOf(record, -time.Second), kubelet}
	for _, c := range []struct {
		reason        string
		first, second []podsource.Answer
		want          Verdict
	}{
		{"unowned in both", both, both, Leaked},
		{"the second finds it in the record", both, []podsource.Answer{adds, recordAnswer([]string{network1}, hex64("web")), kubelet}, InUse},
		{"the second does not see ADDs", both, []podsource.Answer{noAdds, record, kubelet}, Starting},
		{"the second names no containers", both, []podsource.Answer{adds, noNames, kubelet}, Starting},
		{"the second has no record at all", both, []podsource.Answer{adds, kubelet}, Starting},
		{"the second lacks the record, which comes last", []podsource.Answer{adds, kubelet, record}, []podsource.Answer{adds, kubelet}, Starting},
		{"a list made in each look", dated, dated, Leaked},
		{"a list made before the second look (hazard 114)", dated, before, Starting},
		{"no pod is starting in the first", []podsource.Answer{adds, record, kubeletAnswer()}, both, Leaked},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("web"), DefaultMinAge)
			n.reserve("10.0.0.9", hex64("db"), old) // requires a second look in any case
			s := inTurn(c.first, c.second)
			report := n.pass(s, Options{DryRun: true})
			if got := report.Reservations[0]; got.Verdict != c.want {
				t.Errorf("got %s (%s), want %s", got.Verdict, got.Reason, c.want)
			}
			if at := s.times(); len(at) != 2 || at[1].Sub(at[0]) < time.Second {
				t.Errorf("asked at %v, want twice, a second apart", at)
			}
		}))
	}
}

// Third end: a timestamp from before this boot, by every reading of it, and an age over L.
func TestHazard40StartingEndsByTheBoot(t *testing.T) {
	const uptime = 10 * time.Minute
	for _, c := range []struct {
		reason  string
		age     time.Duration // when the reconciler is made
		content string
		seenFor time.Duration
		step    time.Duration // of the clock, after the first pass
		want    Reason
	}{
		{"made before the boot, seen for longer than L", uptime + 2*time.Second, hex64("web"), DefaultMinAge + 1, 0, ReleasedLeak},
		{"seen for exactly L", uptime + 2*time.Second, hex64("web"), DefaultMinAge, 0, PodStartUnknown},
		{"seen for less", uptime + 2*time.Second, hex64("web"), DefaultMinAge - 1, 0, UntrustedTimestamp},
		{"made since the boot", uptime - time.Second, hex64("web"), 24 * time.Hour, 0, StartingNoEnd},
		{"made in the second of the boot", uptime, hex64("web"), 24 * time.Hour, 0, StartingNoEnd},
		{"an empty file", uptime + 2*time.Second, "", DefaultMinAge + 1, 0, ReleasedEmpty},
		{"before the boot only because the clock was set forward since", uptime - time.Minute, hex64("web"), 24 * time.Hour, time.Hour, StartingNoEnd},
		{"from 1970, where computers without a clock start", 50 * 365 * 24 * time.Hour, hex64("web"), DefaultMinAge + 1, 0, ReleasedLeak},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.file("10.0.0.2", c.content, c.age)
			clk := &clocks{uptime: uptime}
			r := newReconciler(t, n.store, []string{network1}, answers(kubeletAnswer(starts())), Options{}, clk)
			n.reconcile(r)
			clk.step = c.step
			time.Sleep(c.seenFor)
			n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": c.want})
		}))
	}
	t.Run("without a known boot there is no such end", inBubble(func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), 365*24*time.Hour)
		r := newReconciler(t, n.store, []string{network1}, answers(kubeletAnswer(starts())), Options{}, &clocks{noBoot: true})
		n.reconcile(r)
		time.Sleep(24 * time.Hour)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": StartingNoEnd})
	}))
}

// An entry of a cache that is not proven keeps the reservations of its container until a source
// that is no cache would have named it. It claims no address.
func TestHazard70UnprovenEntry(t *testing.T) {
	const day = 24 * time.Hour
	web, nerdctl := hex64("web"), "default-"+hex64("web")
	unproven := func(containerID string) podsource.Answer {
		return cacheAnswer([]podsource.Pod{{Network: network1, ContainerIDs: []string{containerID}, IPs: ips("10.0.0.9"), Unproven: true}})
	}
	for _, c := range []struct {
		reason  string
		owner   string
		age     time.Duration
		members []podsource.Answer
		after   time.Duration // the second pass
		want    [2]Reason
		entry   time.Duration // its age; zero: it has a path
	}{
		{"no other source would name it (hazard 119)", web, day, []podsource.Answer{unproven(web), netnsAnswer(), kubeletAnswer()}, day, [2]Reason{EntryUnproven, EntryUnproven}, 0},
		{"the runtime does not name it, but not for StartingFor", web, 0, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer()},
			DefaultStartingFor - betweenLooks, [2]Reason{TooYoung, EntryUnproven}, 0},
		{"... and then", web, 0, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer()}, DefaultStartingFor - betweenLooks + 1, [2]Reason{TooYoung, ReleasedLeak}, 0},
		{"the runtime could not name it", nerdctl, day, []podsource.Answer{unproven(nerdctl), netnsAnswer(), criAnswer()}, day, [2]Reason{EntryUnproven, EntryUnproven}, 0},
		{"the runtime names it", web, day, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer(sandbox("1", web))}, day, [2]Reason{ContainerLive, ContainerLive}, 0},
		{"another entry is proven", web, day, []podsource.Answer{unproven(web), netnsAnswer(), cacheAnswer([]podsource.Pod{attached(network1, web)})},
			day, [2]Reason{ContainerLive, ContainerLive}, 0},
		{"it names another container", web, day, []podsource.Answer{unproven(hex64("db")), netnsAnswer(), criAnswer()}, day, [2]Reason{ReleasedLeak}, 0},
		{"an entry without a path from before the boot ends once it was read L ago (hazard 115)", web, 60 * day,
			[]podsource.Answer{unproven(web), netnsAnswer(), kubeletAnswer()}, DefaultMinAge, [2]Reason{UntrustedTimestamp, ReleasedLeak}, 60 * day},
		{"... and claims until then", web, 20 * day, []podsource.Answer{unproven(web), netnsAnswer(), kubeletAnswer()},
			DefaultMinAge, [2]Reason{EntryUnproven, ReleasedLeak}, 60 * day},
		{"... which does not show whether what is of this boot lives", web, 20 * day, []podsource.Answer{unproven(web), netnsAnswer()},
			DefaultMinAge, [2]Reason{NotRecorded, NotRecorded}, 60 * day},
		{"a cache does not end its own doubt, also of what is from before the boot (hazard 119)", web, 60 * day,
			[]podsource.Answer{unproven(web), netnsAnswer(), kubeletAnswer()}, day, [2]Reason{UntrustedTimestamp, EntryUnproven}, 0},
		{"... but not one from since the boot", web, 60 * day,
			[]podsource.Answer{unproven(web), netnsAnswer(), kubeletAnswer()}, DefaultMinAge, [2]Reason{UntrustedTimestamp, EntryUnproven}, 20 * day},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", c.owner, c.age)
			n.reserve("10.0.0.9", hex64("gone"), day)
			if c.entry > 0 {
				c.members[0].Pods[0].StartedAt = time.Now().Add(-c.entry)
			}
			r := n.reconciler(answers(c.members...), Options{})
			report := n.reconcile(r)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want[0], "10.0.0.9": ReleasedLeak})
			if p := report.Reservations[0].Pod; c.want[0] == EntryUnproven && (p == nil || p.From == "") {
				t.Errorf("the report names %v, want the entry", p)
			}
			if c.want[0] == ReleasedLeak {
				return
			}
			time.Sleep(c.after)
			n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": c.want[1]})
		}))
	}
	// One without a container claims its address.
	n := newNode(t)
	n.reserve("10.0.0.2", web, old)
	n.check(n.pass(podsource.Static{other, {IPs: ips("10.0.0.2"), Unproven: true}}, Options{}), map[string]Verdict{"10.0.0.2": InUse})
}
