// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
			"duration": map[bool]int{true: 1, false: 2}[len(c.want) == 0 && !c.lost], "unreserved": 1, "duplicates": 0,
		} {
			if got := logs.with("Compared reservations with live pods", key); got != want {
				t.Errorf("%s: %d of the passes' lines have %s, want %d: %v", c.reason, got, key, want, logs.lines)
			}
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

// Many files that can't be read make one short error, and the report has them all.
func TestHazard30ThousandsOfFailures(t *testing.T) {
	for count, says := range map[int]string{1: "refused", 1024: "1024 reservations can't be read"} {
		n := newNode(t)
		for i := range count {
			n.reserve(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), "leaked", old)
		}
		r := n.reconciler(podsource.Static{other}, Options{})
		ChangeList(r, func() {}, func(r *hostlocal.Reservation) {
			r.Owner, r.Err = hostlocal.Unreadable, fmt.Errorf("refused: %w", fs.ErrPermission)
		})
		report, err := r.Reconcile(t.Context())
		if !strings.HasPrefix(fmt.Sprint(err), says) || !errors.Is(err, fs.ErrPermission) || len(err.Error()) > 1<<10 {
			t.Errorf("got an error of %d bytes, want %q: %.500v", len(fmt.Sprint(err)), says, err)
		}
		for _, e := range report.Reservations {
			if e.Reason != OwnerUnreadable || e.Err == nil || len(report.Reservations) != count {
				t.Fatalf("%d entries; %s: %s, error %v", len(report.Reservations), e.IP, e.Reason, e.Err)
			}
		}
	}
}
