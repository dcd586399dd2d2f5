// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An unproven entry of a cache keeps the reservations of its container until a source that is
// no cache would have named the container for L. It claims no address.
func TestHazard70UnprovenEntry(t *testing.T) {
	const hour = time.Hour
	const long = DefaultMinAge - betweenLooks // the first pass has two looks
	web, nerdctl := hex64("web"), "default-"+hex64("web")
	unproven := func(containerID string) podsource.Answer {
		return cacheAnswer([]podsource.Pod{{ContainerIDs: []string{containerID}, IPs: ips("10.0.0.9"), Unproven: true}}, stale(network1, containerID))
	}
	for _, c := range []struct {
		reason  string
		owner   string
		members []podsource.Answer
		after   time.Duration // the second pass
		want    [2]Reason
	}{
		{"no other source would name it", web, []podsource.Answer{unproven(web), netnsAnswer()}, 24 * hour, [2]Reason{EntryUnproven, EntryUnproven}},
		{"the runtime does not name it, but not for L", web, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer()}, long - 1, [2]Reason{EntryUnproven, EntryUnproven}},
		{"the runtime does not name it for L", web, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer()}, long, [2]Reason{EntryUnproven, ReleasedLeak}},
		{"the runtime could not name it", nerdctl, []podsource.Answer{unproven(nerdctl), netnsAnswer(), criAnswer()}, 24 * hour, [2]Reason{EntryUnproven, EntryUnproven}},
		{"the runtime names it", web, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer(sandbox("1", web))}, DefaultMinAge, [2]Reason{ContainerLive, ContainerLive}},
		{"another entry is proven", web, []podsource.Answer{unproven(web), netnsAnswer(), cacheAnswer([]podsource.Pod{attached(network1, web)})}, DefaultMinAge, [2]Reason{ContainerLive, ContainerLive}},
		{"it names another container", web, []podsource.Answer{unproven(hex64("db")), netnsAnswer(), criAnswer()}, hour, [2]Reason{ReleasedLeak}},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", c.owner, 24*hour)
			n.reserve("10.0.0.9", hex64("gone"), 24*hour)
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
			report = n.reconcile(r)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want[1]})
			if noEnd := c.after == 24*hour; report.NextCheck.IsZero() != noEnd && c.want[1] == EntryUnproven {
				t.Errorf("the next check is at %v; want none: %t", report.NextCheck, noEnd)
			}
		}))
	}
}

// An unproven entry without a container claims its address.
func TestHazard70UnprovenEntryWithoutAContainer(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", hex64("web"), old)
	n.check(n.pass(podsource.Static{other, {IPs: ips("10.0.0.2"), Unproven: true}}, Options{}), map[string]Verdict{"10.0.0.2": InUse})
}

// The claim of an unproven entry on a young reservation ends after StartingFor.
func TestUnprovenEntryIsYoung(t *testing.T) {
	inBubble(func(t *testing.T) {
		n := newNode(t)
		web := hex64("web")
		n.reserve("10.0.0.2", web, 0)
		r := n.reconciler(answers(cacheAnswer([]podsource.Pod{{ContainerIDs: []string{web}, Unproven: true}}, stale(network1, web)), netnsAnswer(), criAnswer()), Options{})
		n.reconcile(r)
		time.Sleep(DefaultStartingFor)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": EntryUnproven})
		time.Sleep(time.Second)
		n.checkReasons(n.reconcile(r), map[string]Reason{"10.0.0.2": ReleasedLeak})
	})(t)
}
