// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/node"
)

// The findings for what was read, gravest first. The situations of a whole node are in the command's
// TestSituations.
func TestFindings(t *testing.T) {
	ip := netip.MustParseAddr
	at := func(text string, why gc.Reason) gc.Entry {
		return gc.Entry{Reservation: &hostlocal.Reservation{Network: "podnet", IP: ip(text)}, Reason: why, Verdict: why.Verdict()}
	}
	small := []cniconf.Network{{Name: "podnet", Ranges: []iprange.Set{{{First: ip("10.1.0.1"), Last: ip("10.1.0.3"), Gateway: ip("10.1.0.1")}}}}}
	large := []cniconf.Network{{Name: "podnet", Ranges: []iprange.Set{{{First: ip("fd00::1"), Last: ip("fd00::ffff:ffff:ffff:ffff"), Gateway: ip("fd00::1")}}}}}
	both := []cniconf.Network{{Name: "podnet", Ranges: slices.Concat(large[0].Ranges, small[0].Ranges)}}
	podnet := []string{"podnet"}
	lost := func(text, name string) []gc.Claim {
		return []gc.Claim{{IP: ip(text), Pods: []*gc.Pod{{Namespace: "shop", Name: name}}}}
	}
	held := func(reasons ...gc.Reason) gc.Report {
		r := gc.Report{DataDir: hostlocal.DefaultDataDir, Networks: podnet}
		for i, why := range reasons {
			r.Reservations = append(r.Reservations, at([]string{"10.1.0.2", "10.1.0.3", "10.1.0.4"}[i], why))
		}
		return r
	}
	with := func(r gc.Report, change func(*gc.Report)) gc.Report { change(&r); return r }
	gone := with(held(), func(r *gc.Report) { r.Missing = podnet })
	for _, row := range []struct {
		reason string
		place  Place
		want   string // the words of the findings
		says   string // part of the first line
	}{
		{"nobody counts the addresses of an IPv6 subnet", Place{Report: held(gc.ContainerLive), Confs: large}, "OK",
			"of more addresses than a node can use, all in use"},
		{"beside an IPv6 subnet the IPv4 range is full, and only its addresses count",
			Place{Confs: both, Report: with(held(gc.ContainerLive, gc.Unowned), func(r *gc.Report) {
				r.Reservations = append(r.Reservations, at("fd00::2", gc.ContainerLive), at("fd00::3", gc.Unowned))
			})}, "FULL", "2 of 2 addresses reserved, 1 leaked, 1 in use"},
		{"all in use, and leaks of another range", Place{Confs: both, Report: with(held(gc.ContainerLive, gc.ContainerLive), func(r *gc.Report) {
			r.Reservations = append(r.Reservations, at("fd00::3", gc.Unowned))
		})}, "FULL LEAKED", "2 of 2 addresses reserved, all in use: the range is too small"},
		{"full, and none is leaked or in use", Place{Report: held(gc.TooYoung, gc.ForeignOwner), Confs: small}, "FULL", "1 young, 1 of owners"},
		{"leaks in a network that is not named", Place{Confs: small,
			Report: with(held(gc.ContainerLive, gc.NetworkNotNamed), func(r *gc.Report) {
				r.Reservations[1].Network = "other"
			})}, "LEAKED OK", "other: 1 address without an owner that these sources know, in a network that is not named"},
		{"the user named a data directory that does not exist",
			Place{DirNamed: true, Report: gc.Report{DataDir: "/d", DataDirMissing: true}}, "MISSING", "there is no data directory /d"},
		{"a data directory that does not exist is host-local's before its first ADD",
			Place{Report: gc.Report{DataDir: "/d", DataDirMissing: true}}, "", ""},
		{"the network's first pod has not come yet", Place{Report: gone, Confs: small}, "OK", "nothing was ever reserved"},
		{"the same, and its range is not known", Place{Report: gone}, "UNKNOWN", "its range is not known"},
		{"no network that is named has a directory, and pods have addresses in another one", Place{Report: with(held(gc.ContainerLive), func(r *gc.Report) {
			r.Networks, r.Missing = []string{"podnett"}, []string{"podnett"}
		})}, "MISSING", "podnett: it has no directory in /var/lib/cni/networks; it holds podnet"},
		{"the same, but a configuration has it", Place{Confs: small, Report: with(held(gc.ContainerLive), func(r *gc.Report) {
			r.Reservations[0].Reservation = &hostlocal.Reservation{Network: "other", IP: ip("10.2.0.2")}
			r.Missing = podnet
		})}, "OK", "nothing was ever reserved"},
		{"the same, and the network was renamed: it would hand out the addresses again", Place{Confs: small,
			Report: with(held(gc.ContainerLive), func(r *gc.Report) {
				r.Reservations[0].Network, r.Missing = "old", podnet
			})}, "CONFIG", "podnet: 1 address in use of its range is reserved in /var/lib/cni/networks/old, so it may hand it out again"},
		{"it has reserved the address, too, and the other network has a configuration",
			Place{Confs: append(slices.Clone(small), cniconf.Network{Name: "new"}),
				Report: with(held(gc.ContainerLive, gc.ContainerLive), func(r *gc.Report) {
					r.Reservations = append(r.Reservations, at("10.1.0.2", gc.ContainerLive))
					r.Reservations[0].Network, r.Reservations[1].Network = "old", "new"
				})}, "OK", "podnet: 1 of 2 addresses"},
		{"a second network that is named has one", Place{Report: with(held(gc.ContainerLive), func(r *gc.Report) {
			r.Networks, r.Missing = []string{"podnet", "storage"}, []string{"storage"}
		})}, "UNKNOWN UNKNOWN", ""},
		{"the user named it", Place{Report: gone, Named: podnet, Dirs: []string{"other"}}, "MISSING",
			"it has no directory in /var/lib/cni/networks; it holds other"},
		{"the user misspelt the name beside its range", Place{Named: podnet, Confs: append(slices.Clone(small), cniconf.Network{Name: "podnets"}),
			Report: with(held(gc.ContainerLive), func(r *gc.Report) { r.Missing, r.Reservations[0].Network = podnet, "podnets" })}, "MISSING",
			"it has no directory in /var/lib/cni/networks; it holds podnets"},
		{"somebody removed it (hazard 63)",
			Place{Confs: small, Report: with(gone, func(r *gc.Report) { r.Unreserved = lost("10.1.0.2", "web") })}, "MISSING",
			"there is no /var/lib/cni/networks/podnet, while live pods have 1 address that is reserved nowhere"},
		{"a live pod's address is free to host-local",
			Place{Confs: small, Report: with(held(), func(r *gc.Report) { r.Unreserved = lost("10.1.0.2", "web") })}, "UNRESERVED OK",
			"1 address of a live pod is not reserved, so host-local may hand it out again"},
		{"it is of no range of host-local's",
			Place{Confs: small, Report: with(held(), func(r *gc.Report) { r.Unreserved = lost("192.168.0.2", "web") })}, "OK", ""},
		{"the ranges are not known, and the kernel has seen another runtime's",
			Place{Report: with(held(), func(r *gc.Report) { r.Unreserved = lost("172.17.0.2", "") })}, "", ""},
		{"two pods have one address, and the range is full of leaks", Place{Confs: small, Report: with(held(gc.TwoPods, gc.Unowned), func(r *gc.Report) {
			r.Duplicates = []gc.Claim{{IP: ip("10.1.0.2"), Pods: []*gc.Pod{{Name: "a"}, {Name: "b"}}}}
		})}, "DUPLICATE FULL CONFLICT", "1 address belongs to several live pods"},
		{"nobody answers, and the lock is held",
			Place{Refused: []string{"cri: away"}, Locks: map[string]string{"podnet": "process 1 holds it"}, Report: held()},
			"LOCKED UNKNOWN", "process 1"},
		{"nobody answers, and it is full",
			Place{Refused: []string{"cri: away"}, Confs: small, Report: held(gc.SourceFailed, gc.SourceFailed)}, "UNKNOWN FULL",
			"cri: away"},
		{"an error like a novel", Place{Refused: []string{strings.Repeat("ü", 300)}, Report: held()}, "UNKNOWN", "üü…"},
		{"damaged entries of the cache fill it", Place{Report: held(gc.EntryUnproven, gc.EntryUnproven), Confs: small}, "FULL", "all starting"},
	} {
		found := Findings([]*Place{&row.place})
		var words []string
		for _, f := range found {
			words = append(words, f.Word)
			if n := len([]rune(f.Line())); n > 160 || strings.Contains(f.Text, "shop") {
				t.Errorf("%s: %d characters, or a pod: %s", row.reason, n, f.Line())
			}
		}
		if got := strings.Join(words, " "); got != row.want || len(found) > 0 && !strings.Contains(found[0].Line(), row.says) {
			t.Errorf("%s: %v, want %s that says %q", row.reason, found, row.want, row.says)
		}
	}
	command := func(name string) string { return "hostlocal-gc " + name }
	other := Place{Command: command, Report: with(held(gc.NetworkNotNamed), func(r *gc.Report) { r.Networks = nil })}
	if got := Findings([]*Place{&other}); len(got) != 1 || got[0].Run != "hostlocal-gc plan --network podnet" {
		t.Errorf("leaks in a network that is not named: %+v", got)
	}
	kernel, cached, runtime := gc.SourceReport{Name: "netns"}, gc.SourceReport{Name: "cnicache"}, gc.SourceReport{Name: "cri", Note: "not all"}
	noted := func(s gc.SourceReport) gc.SourceReport { s.Note = "not all"; return s }
	failed := func(s gc.SourceReport) gc.SourceReport { s.Error = "away"; return s }
	leftOut := func(s gc.SourceReport) gc.SourceReport { s.Note = node.LeftOut + "away"; return s }
	for _, row := range []struct {
		sources         []gc.SourceReport
		release, repair bool // whether that is told to run
	}{
		{[]gc.SourceReport{kernel, cached, runtime}, true, true},
		{[]gc.SourceReport{kernel, noted(cached)}, false, true},
		{[]gc.SourceReport{noted(kernel), cached}, false, true},
		{[]gc.SourceReport{kernel, failed(cached)}, false, false},
		{[]gc.SourceReport{failed(kernel), cached}, false, false},
		{[]gc.SourceReport{kernel, leftOut(cached)}, false, false},
		{[]gc.SourceReport{leftOut(kernel), cached}, false, false},
	} {
		fresh := Place{Command: command, Confs: small, Report: with(held(gc.TooYoung, gc.TooYoung), func(r *gc.Report) { r.Sources = row.sources })}
		want := map[bool]string{true: "hostlocal-gc release --network podnet --min-age=1s"}[row.release]
		if got := Findings([]*Place{&fresh}); len(got) != 1 || got[0].Run != want {
			t.Errorf("full of fresh leaks, with the sources %v: %+v, want the command %q", row.sources, got, want)
		}
		lostHere := Place{Command: command, Report: with(held(), func(r *gc.Report) { r.Sources, r.Unreserved = row.sources, lost("10.1.0.2", "web") })}
		want = map[bool]string{true: "hostlocal-gc repair"}[row.repair]
		if got := Findings([]*Place{&lostHere}); len(got) != 1 || got[0].Run != want {
			t.Errorf("not reserved, with the sources %v: %+v, want the command %q", row.sources, got, want)
		}
	}
	for _, given := range []func(string) string{nil, func(string) string { return "hostlocal-gc release --min-age=2m" }} { // the agent has none
		fresh := Place{Command: given, Confs: small, Report: with(held(gc.TooYoung, gc.TooYoung), func(r *gc.Report) { r.Sources = []gc.SourceReport{kernel, cached} })}
		if got := Findings([]*Place{&fresh}); len(got) != 1 || got[0].Run != "" || !strings.Contains(got[0].Do, "once it is old enough") {
			t.Errorf("full of fresh leaks, without a command or with an age: %+v", got)
		}
	}
	for says, sources := range map[string][]gc.SourceReport{
		"The CNI cache does not count here":    {kernel, cached},
		"No source that counts speaks of this": {kernel, failed(cached)},
	} {
		unknown := Place{Confs: small, Report: with(held(gc.NoSourceForNetwork, gc.NoSourceForNetwork), func(r *gc.Report) { r.Sources = sources })}
		if got := Findings([]*Place{&unknown}); len(got) == 0 || !strings.Contains(got[0].Do, says) {
			t.Errorf("full of owners of which nobody speaks: %+v, want %q", got, says)
		}
	}
	free := Place{Confs: small, Report: with(held(), func(r *gc.Report) { r.Unreserved = lost("10.1.0.2", "web") })}
	elsewhere := Place{Confs: small, Report: gc.Report{Reservations: held(gc.ContainerLive).Reservations}}
	if got := Findings([]*Place{&free, &elsewhere}); len(got) != 1 || got[0].Word != OK {
		t.Errorf("reserved in another data directory: %v", got)
	}
	free, elsewhere = Place{Command: command, Report: free.Report}, Place{Report: gc.Report{DataDir: "/run/antrea"}}
	free.Report.Sources = []gc.SourceReport{{Name: "netns"}, {Name: "cnicache"}}
	for n, want := range map[int]string{1: "hostlocal-gc repair", 2: ""} {
		got := Findings([]*Place{&free, &elsewhere}[:n])
		if len(got) != 1 || got[0].Run != want || strings.Contains(got[0].Do, "--data-dir") != (want == "") {
			t.Errorf("not reserved, in %d data directories without ranges: %+v, want the command %q", n, got, want)
		}
	}
}
