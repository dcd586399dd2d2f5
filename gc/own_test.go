// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What an earlier ADD reserved for the attachment of Options.OwnADD needs no age, if nothing else
// keeps it. All else that its container has is in use.
func TestOwnADD(t *testing.T) {
	own := podsource.Attachment{Network: "podnet", ContainerID: "c0ffee", IfName: "eth0"}
	seen := netnsAnswer()
	seen.Networks = []string{"podnet"}
	blind := seen
	blind.SeesADDs = nil
	serves := netnsAnswer(podsource.Pod{ContainerIDs: []string{"c0ffee"}, Origin: "process 7"})
	unproven := func(written time.Time) podsource.Answer {
		return cacheAnswer([]podsource.Pod{{ContainerIDs: []string{"c0ffee"}, Network: "podnet", Unproven: true, StartedAt: written}})
	}
	for _, c := range []struct {
		reason  string
		of      podsource.Attachment
		sources [][]podsource.Answer // in two looks
		want    Reason
	}{
		{"nothing has it", own, [][]podsource.Answer{{seen}}, ReleasedLeak},
		{"no ADD is the caller's", podsource.Attachment{Network: "podnet", IfName: "eth0"}, [][]podsource.Answer{{seen}}, TooYoung},
		{"it is another container's", podsource.Attachment{Network: "podnet", ContainerID: "c0ffee2", IfName: "eth0"}, [][]podsource.Answer{{seen}}, TooYoung},
		{"it is another interface's", podsource.Attachment{Network: "podnet", ContainerID: "c0ffee", IfName: "net1"}, [][]podsource.Answer{{seen}}, ContainerLive},
		{"it is another network's", podsource.Attachment{Network: "second", ContainerID: "c0ffee", IfName: "eth0"}, [][]podsource.Answer{{seen}}, ContainerLive},
		{"ADDs are not seen", own, [][]podsource.Answer{{blind}}, TooYoung},
		{"its address is configured", own, [][]podsource.Answer{{seen, netnsAnswer(configured("10.0.0.2"))}}, AddressClaimed},
		{"another process serves it", own, [][]podsource.Answer{{seen, serves}}, ContainerLive},
		{"... in the second look (hazard 72)", own, [][]podsource.Answer{{seen}, {seen, serves}}, ContainerLive},
		{"an entry may be live", own, [][]podsource.Answer{{seen, unproven(time.Time{})}}, EntryUnproven},
		{"an entry from before the boot is not", own, [][]podsource.Answer{{seen, unproven(time.Unix(1e8, 0))}}, ReleasedLeak},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "c0ffee", time.Second)
			report, err := n.reconciler(inTurn(c.sources...), Options{OwnADD: c.of}).Reconcile(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n.checkReasons(report, map[string]Reason{"10.0.0.2": c.want})
		}))
	}
}
