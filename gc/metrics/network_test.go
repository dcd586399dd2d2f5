// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// For each reason, whether a reservation counts as a kept leak.
func TestKeptLeakByReason(t *testing.T) {
	const counts, not = "counts", "does not count"
	want := map[gc.Reason]string{
		gc.ContainerLive: not, gc.AddressClaimed: not, gc.SiblingInUse: not, // live
		gc.OtherContainer: not, gc.TwoPods: not, gc.ClaimedInOtherNetwork: not, gc.OwnerInConflict: not, // conflicts
		gc.ForeignOwner: not, gc.NoSourceForNetwork: not, gc.NotRecorded: not, // the sources can't know the holder
		gc.ReleasedLeak: not, gc.ReleasedEmpty: not, gc.FileGone: not, // they no longer exist
		gc.FileChanged:        not, // the file is new
		gc.UntrustedTimestamp: not, // without an age
		gc.NetworkNotNamed:    not, // only read

		gc.Unowned: counts, gc.EmptyOwner: counts, gc.NotTried: counts, gc.ReleaseFailed: counts, // leaks
		gc.TooYoung: counts, gc.NotYetListed: counts, gc.StaleAnswer: counts, // the holder may not be named yet
		gc.PodStarting: counts, gc.PodStartUnknown: counts, gc.StartingNoEnd: counts, gc.EntryUnproven: counts,
		gc.OwnerMalformed: counts, gc.OwnerUnreadable: counts, gc.SiblingUnreadable: counts, // the owner is unknown
		gc.SourceFailed: counts, // only in refused passes, which change no gauge
	}
	got := make(map[gc.Reason]string)
	for reason := gc.Reason(1); reason.String() != ""; reason++ {
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
		{"a live pod's is older", []gc.Entry{entry(gc.ContainerLive, 9*time.Hour), entry(gc.Unowned, time.Hour)}, time.Hour},
		{"an unknown time is not 1970", []gc.Entry{entry(gc.OwnerUnreadable, 0)}, 0},
		{"a time in the future gives no negative age", []gc.Entry{entry(gc.OwnerMalformed, -time.Hour)}, 0},
	} {
		c := New()
		c.OnReport(reportOf(row.entries...), nil)
		if got := testutil.ToFloat64(c.oldestKeptLeak); got != row.want.Seconds() {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}
