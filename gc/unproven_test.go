// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An entry of a cache that names a container, and does not say whether it lives,
// keeps what that holds until a source that is no cache would have named it for
// long. Of what it names by address it says nothing.
func TestHazard70UnprovenEntry(t *testing.T) {
	const hour = time.Hour
	const long = DefaultMinAge - betweenLooks // a pass of two looks is a part of it
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
		{"nobody else would name it", web, []podsource.Answer{unproven(web), netnsAnswer()}, 24 * hour, [2]Reason{EntryUnproven, EntryUnproven}},
		{"the runtime does not, but not for long", web, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer()}, long - 1, [2]Reason{EntryUnproven, EntryUnproven}},
		{"the runtime does not, for long", web, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer()}, long, [2]Reason{EntryUnproven, ReleasedLeak}},
		{"the runtime could not", nerdctl, []podsource.Answer{unproven(nerdctl), netnsAnswer(), criAnswer()}, 24 * hour, [2]Reason{EntryUnproven, EntryUnproven}},
		{"the runtime does", web, []podsource.Answer{unproven(web), netnsAnswer(), criAnswer(sandbox("1", web))}, DefaultMinAge, [2]Reason{ContainerLive, ContainerLive}},
		{"another entry lives", web, []podsource.Answer{unproven(web), netnsAnswer(), cacheAnswer([]podsource.Pod{attached(network1, web)})}, DefaultMinAge, [2]Reason{ContainerLive, ContainerLive}},
		{"it is of another container", web, []podsource.Answer{unproven(hex64("db")), netnsAnswer(), criAnswer()}, hour, [2]Reason{ReleasedLeak}},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", c.owner, 24*hour)
			n.reserve("10.0.0.9", hex64("gone"), 24*hour)
			r := n.reconciler(answers(c.members...), Options{})
			report := n.reconcile(r)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want[0], "10.0.0.9": ReleasedLeak})
			if p := report.Reservations[0].Pod; c.want[0] == EntryUnproven && (p == nil || p.From == "") {
				t.Errorf("the report names %v, and not the entry", p)
			}
			if c.want[0] == ReleasedLeak {
				return
			}
			time.Sleep(c.after)
			report = n.reconcile(r)
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want[1]})
			if noEnd := c.after == 24*hour; report.NextCheck.IsZero() != noEnd && c.want[1] == EntryUnproven {
				t.Errorf("the next check is at %v; is there none: %t", report.NextCheck, noEnd)
			}
		}))
	}
}

// An entry that names no container keeps its address as any pod does.
func TestHazard70UnprovenEntryWithoutAContainer(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", hex64("web"), old)
	n.check(n.pass(podsource.Static{other, {IPs: ips("10.0.0.2"), Unproven: true}}, Options{}), map[string]Verdict{"10.0.0.2": InUse})
}

// A young container of a stuck pod, whose entry is unproven: StartingFor counts.
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
