// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"errors"
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

// This file tests the hazards about files in a data directory (R6, R7, R8, R11).

// R7: a file that does not name an owner may belong to any container.
func TestHazard16Garbage(t *testing.T) {
	n := newNode(t)
	n.file("10.0.0.2", "\x00\xff\x7fELF", old)
	n.file("10.0.0.3", "a\r\neth0\r\nthird", old)
	n.file("10.0.0.4", strings.Repeat("a", 5000), old)
	n.file("10.0.0.5", strings.Repeat("a", 1<<20), old)
	n.file("10.0.0.6", "leaked", old)
	report := n.pass(podsource.Static{other}, Options{})
	n.check(report, map[string]Verdict{
		"10.0.0.2": Malformed, "10.0.0.3": Malformed, "10.0.0.4": Malformed, "10.0.0.5": Malformed, "10.0.0.6": Released,
	})
}

// A directory is missing while live pods have addresses: the report and each pass's log line
// say so.
func TestHazard63DirectoryIsMissing(t *testing.T) {
	live := podsource.Static{{NamespacedName: named("web"), UID: "1", IPs: ips("10.0.0.2")}}
	for _, c := range []struct {
		reason   string
		make     func(n *node)
		networks []string
		want     []string
	}{
		{"the network's: a typo", func(n *node) { n.network("another") }, []string{"podnett", network1}, []string{"podnett"}},
		{"of two networks", func(*node) {}, []string{"a", "b"}, []string{"a", "b"}},
		{"the data directory: a mount was lost", func(n *node) { n.store = hostlocal.New(filepath.Join(n.dataDir, "lost")) }, []string{network1}, []string{network1}},
		{"none", func(*node) {}, []string{network1}, nil},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			c.make(n)
			logs := newLogs(0)
			r := n.reconcilerOf(c.networks, live, Options{Logger: logs.logger()})
			for range 2 {
				report := n.reconcile(r)
				if _, err := os.Stat(report.DataDir); !slices.Equal(report.Missing, c.want) || report.DataDirMissing != os.IsNotExist(err) {
					t.Errorf("%v are missing, want %v; the data directory: %t, %v", report.Missing, c.want, report.DataDirMissing, err)
				}
				if len(report.Unreserved) != 1 || report.Unreserved[0].Pods[0].Name != "web" {
					t.Errorf("unreserved addresses: %v, want web's", report.Unreserved)
				}
				// The hook asks no source if nothing is reserved, and reports the same.
				report, err := r.AtStartup(t.Context())
				if err != nil || len(report.Sources) != 0 || !slices.Equal(report.Missing, c.want) {
					t.Errorf("the hook asked %v, and says that %v are missing (error %v)", report.Sources, report.Missing, err)
				}
			}
			const line = "Compared reservations with live pods" // the line of each pass, the hook's too
			if got, want := logs.with(line, "missing"), min(4, 4*len(c.want)); got != want || logs.with(line, "duration") != 4 ||
				logs.with(line, "dataDirMissing") > 0 != strings.HasPrefix(c.reason, "the data directory") {
				t.Errorf("%d of the passes' lines say what is missing, want %d: %v", got, want, logs.lines)
			}
			if asked, none := logs.with(line, "unreserved"), logs.with(line, "duplicates")+logs.with(line, "longestHold"); asked != 2 || none != 0 {
				t.Errorf("%d lines have unreserved addresses and %d duplicates or a lock, want 2, of the passes that asked, and none", asked, none)
			}
		})
	}
}

// One file can't be read. While its address is claimed or it is young, it may be a sibling
// of any reservation whose container is not named.
func TestHazard68OneFileCanNotBeRead(t *testing.T) {
	const l = DefaultMinAge
	for _, c := range []struct {
		reason string
		age    time.Duration // of the unreadable file
		zero   bool          // its status can't be read either
		minAge time.Duration
		pods   []podsource.Pod
		want   Reason // of a leaked reservation
	}{
		{"a pod has its address", 24 * time.Hour, false, l, []podsource.Pod{{NamespacedName: named("web"), IPs: ips("10.0.0.2")}}, SiblingUnreadable},
		{"a pod whose container is known has it", 24 * time.Hour, false, l, []podsource.Pod{{IPs: ips("10.0.0.2"), ContainerIDs: []string{"live"}}}, SiblingUnreadable},
		{"it is young", l - 1, false, l, nil, SiblingUnreadable},
		{"it is younger than L, and MinAge is less", l - 1, false, time.Second, nil, SiblingUnreadable},
		{"it is younger than a MinAge above L", 24*time.Hour - 1, false, 24 * time.Hour, nil, SiblingUnreadable},
		{"its age is unknown", 0, true, l, nil, SiblingUnreadable},
		{"it is old, and no pod has its address", l, false, l, nil, Unowned},
	} {
		t.Run(c.reason, func(t *testing.T) {
			at := reading{wall: time.Now(), mono: time.Hour, boot: 30 * 24 * time.Hour}
			made := at.wall.Add(-48 * time.Hour)
			unreadable := hostlocal.Reservation{Network: network1, IP: ips("10.0.0.2")[0], Owner: hostlocal.Unreadable, ReservedAt: at.wall.Add(-c.age)}
			if c.zero {
				unreadable.ReservedAt = time.Time{}
			}
			rs := []hostlocal.Reservation{
				{Network: "first", IP: ips("10.8.0.3")[0], Owner: hostlocal.Owned, ContainerID: "live", ReservedAt: made},
				unreadable,
				{Network: network1, IP: ips("10.0.0.3")[0], Owner: hostlocal.Owned, ContainerID: "suspect", ReservedAt: made},
				{Network: network1, IP: ips("10.0.0.4")[0], Owner: hostlocal.Owned, ContainerID: "live", ReservedAt: made},
				{Network: network1, IP: ips("10.0.0.5")[0], Owner: hostlocal.Empty, ReservedAt: made},
				{Network: "second", IP: ips("10.9.0.3")[0], Owner: hostlocal.Owned, ContainerID: "suspect", ReservedAt: made},
				{Network: "third", IP: ips("10.7.0.3")[0], Owner: hostlocal.Unreadable, ReservedAt: made},
			}
			pods := append([]podsource.Pod{{ContainerIDs: []string{"live"}}}, c.pods...)
			report := judge(rs, plain(pods...), at, Options{MinAge: c.minAge, StartingFor: 2 * l})
			want := []Reason{ContainerLive, OwnerUnreadable, c.want, ContainerLive, EmptyOwner, NetworkNotNamed, OwnerUnreadable}
			if len(c.pods) > 0 {
				want[1] = AddressClaimed
			}
			if c.want == SiblingUnreadable {
				want[5] = SiblingUnreadable
			}
			var got []Reason
			for _, e := range report.Reservations {
				got = append(got, e.Reason)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if report.NextCheck.IsZero() != (c.want == Unowned) {
				t.Errorf("the next check is at %v", report.NextCheck)
			}
		})
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
	if want := file + " is a regular file, not a directory"; err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrRefused) {
		t.Errorf("got error %v, want %q", err, want)
	}
	n.check(report, map[string]Verdict{"10.0.0.2": Released})
	if _, err := r.AtStartup(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("the hook, with nothing reserved: got error %v", err)
	}
	n.store = hostlocal.New(file)
	report, err = n.reconciler(podsource.Static{other}, Options{}).Reconcile(t.Context())
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "not a directory") || report.DataDirMissing {
		t.Errorf("the data directory: got error %v", err)
	}
}
