// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// Each reason there is counts as a kept leak, or does not.
func TestKeptLeakByReason(t *testing.T) {
	const counts, not = "counts", "does not count"
	want := map[gc.Reason]string{
		gc.ContainerLive: not, gc.AddressClaimed: not, gc.SiblingInUse: not, // live
		gc.OtherContainer: not, gc.TwoPods: not, gc.ClaimedInOtherNetwork: not, gc.OwnerInConflict: not, // told as conflicts
		gc.ForeignOwner: not, gc.NoSourceForNetwork: not, gc.CacheIsNewer: not, // nobody here could know the holder
		gc.ReleasedLeak: not, gc.ReleasedEmpty: not, gc.FileGone: not, // not there any more
		gc.FileChanged:        not, // what is there now is new
		gc.UntrustedTimestamp: not, // of no age
		gc.NetworkNotNamed:    not, // not to be released

		gc.Unowned: counts, gc.EmptyOwner: counts, gc.NotTried: counts, gc.ReleaseFailed: counts, // surely leaks
		gc.TooYoung: counts, gc.NotYetListed: counts, gc.StaleAnswer: counts, // perhaps not yet named
		gc.PodStarting: counts, gc.PodStartUnknown: counts, gc.StartingNoEnd: counts, gc.EntryUnproven: counts,
		gc.OwnerMalformed: counts, gc.OwnerUnreadable: counts, gc.SiblingUnreadable: counts, // nobody can tell
		gc.SourceFailed: counts, gc.NoPods: counts, // only in refused passes, which say nothing of leaks
	}
	got := make(map[gc.Reason]string)
	for _, reason := range gc.Reasons() {
		e := entry(reason, time.Hour)
		got[reason] = not
		if keptLeak(&e) {
			got[reason] = counts
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestOldestKeptLeakAge(t *testing.T) {
	for _, row := range []struct {
		reason  string
		entries []gc.Entry
		want    time.Duration
	}{
		{"nothing is reserved", nil, 0},
		{"the oldest of several, not the last", []gc.Entry{entry(gc.TooYoung, time.Minute), entry(gc.Unowned, time.Hour), entry(gc.NotTried, time.Second)}, time.Hour},
		{"what is live is older", []gc.Entry{entry(gc.ContainerLive, 9*time.Hour), entry(gc.Unowned, time.Hour)}, time.Hour},
		{"a time that nobody knows is not 1970", []gc.Entry{entry(gc.OwnerUnreadable, 0)}, 0},
		{"a time in the future is no negative age", []gc.Entry{entry(gc.OwnerMalformed, -time.Hour)}, 0},
	} {
		c := New()
		c.OnReport(reportOf(row.entries...), nil)
		if got := c.networks["podnet"].oldestKeptLeak; got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}
