// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the hazards about files in a data directory (R3, R11).

// A directory is missing while live pods have addresses: the report and each pass's log line
// say so, those of the hook too, which asks no source.
func TestHazard63DirectoryIsMissing(t *testing.T) {
	for _, c := range []struct {
		reason                string
		lost                  bool // the data directory
		networks, want, named []string
	}{
		{"the network's: a typo", false, []string{network1, "podnett"}, []string{"podnett"}, []string{network1, "podnett"}},
		{"of two networks", false, []string{"a", "b"}, []string{"a", "b"}, []string{"a", "b"}},
		{"the data directory: a mount was lost", true, []string{network1}, []string{network1}, []string{network1}},
		{"none", false, []string{network1}, nil, []string{network1}},
		{"none of all", false, []string{AllNetworks}, nil, []string{"another", network1}},
		{"the data directory, with all of its networks", true, []string{AllNetworks}, nil, nil},
	} {
		n, logs := newNode(t), newLogs(0)
		if n.network("another"); c.lost {
			n.store = hostlocal.New(filepath.Join(n.dataDir, "lost"))
		}
		live := podsource.Static{{NamespacedName: named("web"), UID: "1", IPs: ips("10.0.0.2")}}
		r := n.reconcilerOf(c.networks, live, Options{Logger: logs.logger()})
		for i, report := range []Report{n.reconcile(r), n.atStartup(r)} {
			asked := 1 - i
			told := slices.Equal(report.Missing, c.want) && slices.Equal(report.Networks, c.named) && report.DataDirMissing == c.lost
			if !told || len(report.Unreserved) != asked || len(report.Sources) != asked {
				t.Errorf("%s: %v are missing, want %v; the report: %+v", c.reason, report.Missing, c.want, report)
			}
		}
		for key, want := range map[string]int{
			"missing": min(2, 2*len(c.want)), "dataDirMissing": map[bool]int{true: 2}[c.lost],
			"duration": map[bool]int{true: 1, false: 2}[len(c.want) == 0 && !c.lost], "unreserved": 1, "duplicates": 0, "longestHold": 0,
		} {
			if got := logs.with("Compared reservations with live pods", key); got != want {
				t.Errorf("%s: %d of the passes' lines have %s, want %d: %v", c.reason, got, key, want, logs.lines)
			}
		}
	}
}

// One file can't be read. While its address is claimed or it is young, it may be a sibling
// of any reservation whose container is not named.
func TestHazard68OneFileCanNotBeRead(t *testing.T) {
	const l, day = DefaultMinAge, 24 * time.Hour
	for _, c := range []struct {
		reason string
		age    time.Duration // of the unreadable file; zero is unknown
		minAge time.Duration
		pods   []podsource.Pod
		want   Reason // of a leaked reservation
	}{
		{"a pod has its address", day, l, []podsource.Pod{{NamespacedName: named("web"), IPs: ips("10.0.0.2")}}, SiblingUnreadable},
		{"a pod whose container is known has it", day, l, []podsource.Pod{sandbox("1", "live", "10.0.0.2")}, SiblingUnreadable},
		{"it is young", l - 1, l, nil, SiblingUnreadable},
		{"it is younger than L, and MinAge is less", l - 1, time.Second, nil, SiblingUnreadable},
		{"it is younger than a MinAge above L", day - 1, day, nil, SiblingUnreadable},
		{"its age is unknown", 0, l, nil, SiblingUnreadable},
		{"it is old, and no pod has its address", l, l, nil, Unowned},
	} {
		at := reading{wall: time.Now(), mono: time.Hour, boot: 30 * day}
		var rs []hostlocal.Reservation
		for i, owner := range []string{"", "suspect", "live", "", "suspect", ""} {
			rs = append(rs, owned(network1, fmt.Sprintf("10.0.0.%d", i+2), owner))
			rs[i].ReservedAt = at.wall.Add(-2 * day)
		}
		rs[0].Owner, rs[3].Owner, rs[5].Owner = hostlocal.Unreadable, hostlocal.Empty, hostlocal.Unreadable
		rs[4].Network, rs[5].Network = "second", "third"
		if rs[0].ReservedAt = at.wall.Add(-c.age); c.age == 0 {
			rs[0].ReservedAt = time.Time{}
		}
		pods := append(c.pods, podsource.Pod{ContainerIDs: []string{"live"}})
		report := judge(rs, plain(pods...), at, Options{MinAge: c.minAge, StartingFor: 2 * l})
		want := []Reason{OwnerUnreadable, c.want, ContainerLive, EmptyOwner, c.want, OwnerUnreadable}
		if len(c.pods) > 0 {
			want[0] = AddressClaimed
		}
		if c.want == Unowned {
			want[4] = NetworkNotNamed
		}
		var got []Reason
		for _, e := range report.Reservations {
			got = append(got, e.Reason)
		}
		if diff := cmp.Diff(want, got); diff != "" || report.NextCheck.IsZero() != (c.want == Unowned) {
			t.Errorf("%s (-want +got), and the next check is at %v:\n%s", c.reason, report.NextCheck, diff)
		}
	}
}

// A regular file is in the place of a network's directory. The pass releases in the others, and
// its error names the file. In the place of the data directory the pass has no list.
func TestHazard97FileInPlaceOfADirectory(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	file := filepath.Join(n.dataDir, "second")
	must(t, os.WriteFile(file, nil, 0o600), os.WriteFile(filepath.Join(n.dataDir, "first"), nil, 0o600))
	for _, networks := range [][]string{{network1}, {AllNetworks}} { // host-local has nothing to do with it
		if _, err := n.reconcilerOf(networks, podsource.Static{other}, Options{DryRun: true}).Reconcile(t.Context()); err != nil {
			t.Errorf("%s: %v", networks, err)
		}
	}
	r := n.reconcilerOf([]string{"second", network1}, podsource.Static{other}, Options{})
	report, err := r.Reconcile(t.Context())
	n.check(report, map[string]Verdict{"10.0.0.2": Released})
	_, inHook := r.AtStartup(t.Context()) // with nothing reserved
	want := file + " is a regular file, not a directory"
	for _, err := range []error{err, inHook} {
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrRefused) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// Without a timestamp it may have been made in any gap.
func TestUnknownTimeIsInEveryGap(t *testing.T) {
	if !inGap([]podsource.Gap{{From: time.Now()}}, &hostlocal.Reservation{}) {
		t.Error("it is in none")
	}
}

// A record that says everything makes no file older whose owner is unknown: it may be of any container (hazard 68).
func TestHazard68AgeOfAnUnknownOwner(t *testing.T) {
	at := reading{wall: time.Now(), mono: time.Hour, boot: time.Hour}
	s := &snapshot{clock: &clock{}, at: at, opts: &Options{}, noADD: true}
	s.clock.observe(at)
	s.addLook([]podsource.Answer{recordAnswer([]string{network1})}, at, at)
	for owner, trusted := range map[hostlocal.OwnerState]bool{
		hostlocal.Owned: true, hostlocal.Empty: true, hostlocal.Malformed: false, hostlocal.Unreadable: false} {
		beforeBoot := at.wall.Add(-2 * time.Hour)
		r := candidate{&hostlocal.Reservation{Network: network1, Owner: owner, ReservedAt: beforeBoot}, at.mono}
		if got := s.age(&r); got.byTimestamp != trusted {
			t.Errorf("%s: its time is trusted: %t", owner, got.byTimestamp)
		}
	}
}
