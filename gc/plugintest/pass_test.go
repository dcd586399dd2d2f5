// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Two containers got an ADD, and neither got a DEL. The first is live.
func TestPass(t *testing.T) {
	const live, lost = "live", "lost"
	byID := func([]netip.Addr) podsource.Pod { return podsource.Pod{ContainerIDs: []string{live}} }
	for _, row := range []struct {
		name   string
		reason string
		ranges []plugintest.Range
		aged   time.Duration
		dryRun bool
		live   func(ips []netip.Addr) podsource.Pod // the source's entry for the first, given its addresses
		want   [2][]gc.Reason                       // for the first and the second, for each range
	}{
		{
			name: "single stack, live by container ID", reason: "the owner in the file decides (R3)",
			ranges: []plugintest.Range{six4},
			aged:   time.Hour, live: byID,
			want: [2][]gc.Reason{{gc.ContainerLive}, {gc.ReleasedLeak}},
		},
		{
			name: "dual stack, live by container ID", reason: "both families are kept, and both are released (R3)",
			ranges: []plugintest.Range{six4, six6},
			aged:   time.Hour, live: byID,
			want: [2][]gc.Reason{{gc.ContainerLive, gc.ContainerLive}, {gc.ReleasedLeak, gc.ReleasedLeak}},
		},
		{
			name: "hazard 08, live by its IPv4 address", reason: "the status lacks the IPv6 address, which has the same owner (R3)",
			ranges: []plugintest.Range{six4, six6},
			aged:   time.Hour,
			live:   func(ips []netip.Addr) podsource.Pod { return podsource.Pod{IPs: ips[:1]} },
			want:   [2][]gc.Reason{{gc.AddressClaimed, gc.SiblingInUse}, {gc.ReleasedLeak, gc.ReleasedLeak}},
		},
		{
			name: "hazard 08, live by its IPv6 address", reason: "the same the other way round (R3)",
			ranges: []plugintest.Range{six4, six6},
			aged:   time.Hour,
			live:   func(ips []netip.Addr) podsource.Pod { return podsource.Pod{IPs: ips[1:]} },
			want:   [2][]gc.Reason{{gc.SiblingInUse, gc.AddressClaimed}, {gc.ReleasedLeak, gc.ReleasedLeak}},
		},
		{
			name: "just over the minimum age", reason: "by then every source names the container of an ADD (R5)",
			ranges: []plugintest.Range{six4, six6},
			aged:   gc.DefaultMinAge, live: byID,
			want: [2][]gc.Reason{{gc.ContainerLive, gc.ContainerLive}, {gc.ReleasedLeak, gc.ReleasedLeak}},
		},
		{
			name: "young", reason: "the second may be an ADD in flight (R5)",
			ranges: []plugintest.Range{six4, six6},
			live:   byID,
			want:   [2][]gc.Reason{{gc.ContainerLive, gc.ContainerLive}, {gc.TooYoung, gc.TooYoung}},
		},
		{
			name: "dry run", reason: "it reports the leak and keeps it",
			ranges: []plugintest.Range{six4, six6},
			aged:   time.Hour, dryRun: true, live: byID,
			want: [2][]gc.Reason{{gc.ContainerLive, gc.ContainerLive}, {gc.Unowned, gc.Unowned}},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := plugintest.New(t, "podnet", row.ranges...)
			ips := [2][]netip.Addr{add(t, p, live, "eth0"), add(t, p, lost, "eth0")}
			age(t, p, row.aged, slices.Concat(ips[0], ips[1])...)
			source := podsource.Static{row.live(ips[0])}

			want, left := make(map[string]gc.Reason), files(t, p)
			for i := range ips {
				for j, ip := range ips[i] {
					want[ip.String()] = row.want[i][j]
					if row.want[i][j] == gc.ReleasedLeak {
						delete(left, name(ip))
					}
				}
			}
			reconciler := reconcilerOf(t, p, source, gc.Options{DryRun: row.dryRun})
			report, err := reconciler.Reconcile(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wantDiff(t, "report", row.reason, want, reasons(report))
			wantDiff(t, "disk", row.reason+"; only what was released is gone", left, files(t, p))

			report, err = reconciler.Reconcile(t.Context())
			if err != nil || report.Counts()[gc.Released] > 0 {
				t.Errorf("the second pass released %d, error %v: want none (R12)", report.Counts()[gc.Released], err)
			}
			wantDiff(t, "disk after a second pass", "it must change nothing (R12)", left, files(t, p))

			if err := p.Check(t.Context(), live, "eth0"); err != nil {
				t.Errorf("CHECK of the live container: %v", err)
			}
			if row.want[1][0] == gc.ReleasedLeak {
				wantError(t, p.Check(t.Context(), lost, "eth0"), "Failed to find address", "it was released")
			}
			for _, id := range []string{live, lost} {
				if err := p.Del(t.Context(), id, "eth0"); err != nil {
					t.Errorf("DEL after a pass: %v", err)
				}
			}
			wantDiff(t, "disk after DEL of both", "DEL works after a pass", map[string]string{}, reservations(t, p))
		})
	}
}

// A node whose whole pool has leaked can't start a pod. After one pass it can.
func TestFullPoolIsUsableAgain(t *testing.T) {
	p := plugintest.New(t, "podnet", six4, six6)
	for _, id := range containers(6) {
		age(t, p, time.Hour, add(t, p, id, "eth0")...)
	}
	full := reservations(t, p)
	if len(full) != 12 {
		t.Fatalf("%d reservations, want six of each family", len(full))
	}
	_, err := p.Add(t.Context(), "new", "eth0")
	wantError(t, err, "no IP addresses available in range set", "the pool is full")
	wantDiff(t, "disk after the ADD that failed", "it reserved nothing", full, reservations(t, p))

	report := reconcile(t, p, podsource.Static{someone}, gc.Options{})
	wantDiff(t, "counts", "all twelve leaked", map[gc.Verdict]int{gc.Released: 12}, report.Counts())
	wantDiff(t, "disk", "all twelve leaked", map[string]string{}, reservations(t, p))

	for _, id := range containers(12)[6:] {
		add(t, p, id, "eth0")
	}
	_, err = p.Add(t.Context(), "new", "eth0")
	wantError(t, err, "no IP addresses available in range set", "the pool is no larger than before")
}

// A pass does not change last_reserved_ip.N. Otherwise the next ADD would get an address
// that was just released, which may still be in the ARP caches of other hosts.
func TestAllocationContinuesAfterAPass(t *testing.T) {
	p := plugintest.New(t, "podnet", six4, six6)
	for _, id := range containers(3) {
		age(t, p, time.Hour, add(t, p, id, "eth0")...)
	}
	reconcile(t, p, podsource.Static{someone}, gc.Options{})
	wantDiff(t, "disk", "only reservations are touched (R7)",
		map[string]string{"lock": "", "last_reserved_ip.0": "10.1.0.4", "last_reserved_ip.1": "fd00:1::4"}, files(t, p))
	wantDiff(t, "next ADD", "it continues after the last address",
		[]string{"10.1.0.5", "fd00:1::5"}, texts(add(t, p, "new", "eth0")))
}

// A power loss after a reservation is created and before it is written leaves it empty. No
// DEL removes it.
func TestHazard14EmptyReservation(t *testing.T) {
	for _, row := range []struct {
		name   string
		reason string
		hook   bool
		aged   time.Duration
		want   gc.Reason
	}{
		{"old", "it has no owner, and no ADD takes an hour to write one", false, time.Hour, gc.ReleasedEmpty},
		{"young", "an ADD may be about to write it (R5)", false, 0, gc.TooYoung},
		{"young, and the hook's caller asserts that no ADD is in flight", "then no ADD will write it", true, 0, gc.ReleasedEmpty},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.4"})
			pods := []podsource.Pod{{ContainerIDs: []string{"a", "c"}}}
			add(t, p, "a", "eth0")
			empty := add(t, p, "b", "eth0")[0]
			add(t, p, "c", "eth0")
			if err := os.Truncate(p.File(empty), 0); err != nil {
				t.Fatal(err)
			}
			age(t, p, row.aged, empty)
			if err := p.Del(t.Context(), "b", "eth0"); err != nil {
				t.Fatal(err)
			}
			before := reservations(t, p)
			if _, ok := before[name(empty)]; !ok {
				t.Fatal("DEL removes an empty reservation, which this version of host-local should not do")
			}
			_, err := p.Add(t.Context(), "new", "eth0")
			wantError(t, err, "no IP addresses available in range set", "ADD skips it")

			var report gc.Report
			if row.hook {
				report = atStartup(t, p, func(context.Context) ([]podsource.Pod, error) { return pods, nil })
			} else {
				report = reconcile(t, p, podsource.Static(pods), gc.Options{})
			}
			wantDiff(t, "report", row.reason, map[string]gc.Reason{
				"10.1.0.2": gc.ContainerLive, "10.1.0.3": row.want, "10.1.0.4": gc.ContainerLive,
			}, reasons(report))
			if row.want != gc.ReleasedEmpty {
				wantDiff(t, "disk", row.reason, before, reservations(t, p))
				return
			}
			wantDiff(t, "next ADD", "the address is free again", []netip.Addr{empty}, add(t, p, "new", "eth0"))
		})
	}
}

// While the source is asked, a DEL and an ADD give the address of a leak to another
// container, which is not yet in the source's answer.
func TestHazard09AddressReusedWhileTheSourceIsAsked(t *testing.T) {
	one := plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.5", End: "10.1.0.5"}
	requested := []netip.Addr{netip.MustParseAddr("10.1.0.4"), netip.MustParseAddr("fd00:1::4")}
	for _, row := range []struct {
		name    string
		reason  string
		ranges  []plugintest.Range
		request []netip.Addr
		hook    bool
		aged    time.Duration
		want    []gc.Verdict // any of these
	}{
		{
			name: "only address, in a hook that asserts that no ADD is in flight", reason: "the owner is compared even if the caller is wrong (R6)",
			ranges: []plugintest.Range{one}, hook: true,
			want: []gc.Verdict{gc.Changed},
		},
		{
			name: "only address", reason: "the listed file is gone, and the new one is young if it has the same inode (R1, R5)",
			ranges: []plugintest.Range{one}, aged: time.Hour,
			want: []gc.Verdict{gc.Changed, gc.Young},
		},
		{
			name: "requested addresses, in a hook that asserts that no ADD is in flight", reason: "the same in both families (R6)",
			ranges: []plugintest.Range{six4, six6}, request: requested, hook: true,
			want: []gc.Verdict{gc.Changed},
		},
		{
			name: "requested addresses", reason: "the same in both families (R1, R5)",
			ranges: []plugintest.Range{six4, six6}, request: requested, aged: time.Hour,
			want: []gc.Verdict{gc.Changed, gc.Young},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := plugintest.New(t, "podnet", row.ranges...)
			ips := add(t, p, "old", "eth0", row.request...)
			age(t, p, row.aged, ips...)
			source := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
				if err := p.Del(ctx, "old", "eth0"); err != nil {
					return nil, err
				}
				again, err := p.Add(ctx, "new", "eth0", row.request...)
				if err == nil {
					wantDiff(t, "ADD", "the case needs the same addresses", ips, again)
				}
				return []podsource.Pod{someone}, err
			})
			var report gc.Report
			if row.hook {
				report = atStartup(t, p, source)
			} else {
				report = reconcile(t, p, source, gc.Options{})
			}
			want := make(map[string]string)
			for _, ip := range ips {
				want[name(ip)] = "new\r\neth0"
				if got := reasons(report)[ip.String()].Verdict(); !slices.Contains(row.want, got) {
					t.Errorf("%s: %s, want any of %v: %s", ip, got, row.want, row.reason)
				}
			}
			wantDiff(t, "disk", row.reason, want, reservations(t, p))
			if err := p.Check(t.Context(), "new", "eth0"); err != nil {
				t.Error(err)
			}
		})
	}
}

// While the source is asked, the container of a leak gets its DEL, and no ADD takes the
// address.
func TestDelWhileTheSourceIsAsked(t *testing.T) {
	p := plugintest.New(t, "podnet", six4, six6)
	ips := add(t, p, "old", "eth0")
	age(t, p, time.Hour, ips...)
	source := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
		return []podsource.Pod{someone}, p.Del(ctx, "old", "eth0")
	})
	report := reconcile(t, p, source, gc.Options{})
	wantDiff(t, "report", "a reservation that is gone is no error, and was not released by this pass (R6, R11)",
		map[string]gc.Reason{ips[0].String(): gc.FileGone, ips[1].String(): gc.FileGone}, reasons(report))
}

// A reservation made after the listing is no candidate, although the source does not name
// its container (R1).
func TestHazard03AddWhileTheSourceIsAsked(t *testing.T) {
	p := plugintest.New(t, "podnet", six4, six6)
	lost := add(t, p, "lost", "eth0")
	age(t, p, time.Hour, lost...)
	var late []netip.Addr
	source := podsource.Func(func(ctx context.Context) (pods []podsource.Pod, err error) {
		late, err = p.Add(ctx, "late", "eth0")
		age(t, p, time.Hour, late...) // so that its age does not keep it
		return []podsource.Pod{someone}, err
	})
	report := reconcile(t, p, source, gc.Options{})
	wantDiff(t, "report", "only what was listed is judged (R1)",
		map[string]gc.Reason{lost[0].String(): gc.ReleasedLeak, lost[1].String(): gc.ReleasedLeak}, reasons(report))
	want := make(map[string]string)
	for _, ip := range late {
		want[name(ip)] = "late\r\neth0"
	}
	wantDiff(t, "disk", "only what was listed is judged (R1)", want, reservations(t, p))
}

// A second network of the same container, whose addresses are in no pod's
// status.
func TestHazard22SecondNetwork(t *testing.T) {
	for _, row := range []struct {
		name   string
		reason string
		live   func(ips []netip.Addr) podsource.Pod // given the addresses in the first network
		want   [2]gc.Reason                         // in the first network and in the second
	}{
		{
			name: "source of addresses, with that of the first network", reason: "the address in the first network shows that the container is live (R3)",
			live: func(ips []netip.Addr) podsource.Pod { return podsource.Pod{IPs: ips} },
			want: [2]gc.Reason{gc.AddressClaimed, gc.SiblingInUse},
		},
		{
			name: "source of container IDs", reason: "the owner in the file decides (R3)",
			live: func([]netip.Addr) podsource.Pod { return podsource.Pod{ContainerIDs: []string{"live"}} },
			want: [2]gc.Reason{gc.ContainerLive, gc.ContainerLive},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			first := plugintest.New(t, "podnet", six4)
			second := &plugintest.Plugin{
				Binary: first.Binary, DataDir: first.DataDir, Network: "storage",
				Ranges: []plugintest.Range{{Subnet: "192.168.5.0/24"}},
			}
			live := [2][]netip.Addr{add(t, first, "live", "eth0"), add(t, second, "live", "net1")}
			lost := [2][]netip.Addr{add(t, first, "lost", "eth0"), add(t, second, "lost", "net1")}
			age(t, first, time.Hour, live[0][0], lost[0][0])
			age(t, second, time.Hour, live[1][0], lost[1][0])
			untouched := files(t, first)

			report := reconcile(t, second, podsource.Static{row.live(live[0])}, gc.Options{})
			wantDiff(t, "report", row.reason, map[string]gc.Reason{
				live[0][0].String(): row.want[0], live[1][0].String(): row.want[1],
				lost[0][0].String(): gc.NetworkNotNamed, lost[1][0].String(): gc.ReleasedLeak,
			}, reasons(report))
			wantDiff(t, "disk of the second network", row.reason,
				map[string]string{name(live[1][0]): "live\r\nnet1"}, reservations(t, second))
			wantDiff(t, "disk of the first network", "a network that is not named is only read (R14)", untouched, files(t, first))
		})
	}
}

// The plugin has not yet made the network's directory. The pass reports it as missing, and
// does not make it.
func TestPassBeforeTheFirstAdd(t *testing.T) {
	p := plugintest.New(t, "podnet", six4)
	report := reconcile(t, p, podsource.Static{someone}, gc.Options{})
	if len(report.Reservations) != 0 {
		t.Errorf("%d reservations in a missing directory", len(report.Reservations))
	}
	wantDiff(t, "missing directories", "it is missing (R11)", []string{p.Dir()}, report.Missing())
	if _, err := os.Stat(p.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was made, or %v: a pass must not (R7)", err)
	}
	wantDiff(t, "first ADD after it", "the pass does not affect it", []string{"10.1.0.2"}, texts(add(t, p, "a", "eth0")))
}
