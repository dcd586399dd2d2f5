// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

func rangeOf(first, last, gateway string) iprange.Range {
	r := iprange.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	if gateway != "" {
		r.Gateway = netip.MustParseAddr(gateway)
	}
	return r
}

// Reserved addresses count by range set, without those that the pass released.
func TestRanges(t *testing.T) {
	reserved := func(ip string, why gc.Reason) gc.Entry {
		e := entry(why, 0)
		e.IP = netip.MustParseAddr(ip)
		return e
	}
	c := New()
	sets := map[string][]iprange.Set{
		"podnet": {
			{rangeOf("10.1.0.1", "10.1.0.6", "10.1.0.1"), rangeOf("10.1.1.1", "10.1.1.2", "10.1.1.9")},
			{rangeOf("fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1")},
		},
		"other": {{rangeOf("10.3.0.1", "10.3.0.6", "")}},
		"wrong": {{rangeOf("10.2.0.9", "10.2.0.1", "")}},
	}
	c.SetRanges(sets)
	check := func(reason, want string) {
		t.Helper()
		if diff := cmp.Diff(want, shown(t, c, "range_addresses", "range_reserved_addresses")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	const sizes = `range_addresses{network="other",set="0"} 6
range_addresses{network="podnet",set="0"} 7
range_addresses{network="podnet",set="1"} 1.8446744073709552e+19
range_addresses{network="wrong",set="0"} 0
`
	check("no pass has judged", sizes)
	elsewhere := reserved("10.3.0.2", gc.ContainerLive)
	elsewhere.Network = "other"
	c.OnReport(reportOf(
		elsewhere, reserved("10.1.0.1", gc.ContainerLive), // the gateway is not handed out
		reserved("10.1.0.2", gc.ContainerLive), reserved("10.1.0.3", gc.TooYoung), reserved("10.1.1.2", gc.Unowned),
		reserved("10.1.0.4", gc.ReleasedLeak), reserved("10.1.0.5", gc.FileGone), // they no longer exist
		reserved("10.1.2.1", gc.ContainerLive), // of an earlier range
		reserved("fd00::2", gc.ContainerLive),
	), nil)
	const full = sizes + `range_reserved_addresses{network="other",set="0"} 1
range_reserved_addresses{network="podnet",set="0"} 3
range_reserved_addresses{network="podnet",set="1"} 1
range_reserved_addresses{network="wrong",set="0"} 0
`
	check("after a pass", full)
	c.OnReport(reportOf(reserved("10.1.0.2", gc.SourceFailed)), errRefused)
	check("after a refused pass", full)
	c.SetRanges(sets)
	check("the same ranges set again, without a pass", full)
	c.SetRanges(nil)
	check("no ranges are set any more", "")
}

// Addresses of live pods are at risk if they are in a range of any network.
func TestUnreservedInRanges(t *testing.T) {
	web := &gc.Pod{Name: "web"}
	report := reportOf(entry(gc.ContainerLive, 0))
	report.Unreserved = []gc.Claim{
		{IP: netip.MustParseAddr("10.1.0.2"), Pods: []*gc.Pod{&gc.Pod{}}}, {IP: netip.MustParseAddr("10.3.0.2"), Pods: []*gc.Pod{&gc.Pod{}}},
		{IP: netip.MustParseAddr("fd00::2"), Pods: []*gc.Pod{&gc.Pod{}}}, {IP: netip.MustParseAddr("192.0.2.2"), Pods: []*gc.Pod{web}},
	}
	c := New()
	c.SetRanges(map[string][]iprange.Set{"podnet": {{rangeOf("10.1.0.1", "10.1.0.6", "")}, {rangeOf("fd00::1", "fd00::6", "")}}, "other": {{rangeOf("10.3.0.1", "10.3.0.6", "")}}})
	c.OnReport(report, nil)
	if n := testutil.ToFloat64(c.unreserved); n != 3 {
		t.Errorf("%v addresses at risk, want those of the three ranges", n)
	}
}

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
