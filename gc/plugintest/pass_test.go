// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Two containers got an ADD in both families, and neither got a DEL. The first is live.
func TestPass(t *testing.T) {
	const live, lost = "live", "lost"
	byID := func([]netip.Addr) podsource.Pod { return podsource.Pod{ContainerIDs: []string{live}} }
	for _, row := range []struct {
		name, reason string
		aged         time.Duration
		dryRun       bool
		live         func(ips []netip.Addr) podsource.Pod // the source's entry for the first, given its addresses
		kept         [2]gc.Reason                         // for the first, in both families
		want         gc.Reason                            // for the second
	}{
		{"live by container ID", "both families are kept, and both are released (R3)", time.Hour, false,
			byID, [2]gc.Reason{gc.ContainerLive, gc.ContainerLive}, gc.ReleasedLeak},
		{"hazard 08, live by its IPv4 address", "the status lacks the IPv6 address, which has the same owner (R3)", time.Hour, false,
			func(ips []netip.Addr) podsource.Pod { return podsource.Pod{IPs: ips[:1]} },
			[2]gc.Reason{gc.AddressClaimed, gc.SiblingInUse}, gc.ReleasedLeak},
		{"hazard 08, live by its IPv6 address", "the same the other way round (R3)", time.Hour, false,
			func(ips []netip.Addr) podsource.Pod { return podsource.Pod{IPs: ips[1:]} },
			[2]gc.Reason{gc.SiblingInUse, gc.AddressClaimed}, gc.ReleasedLeak},
		{"young", "the second may be an ADD in flight (R5)", 0, false,
			byID, [2]gc.Reason{gc.ContainerLive, gc.ContainerLive}, gc.TooYoung},
		{"dry run", "it reports the leak and keeps it", time.Hour, true,
			byID, [2]gc.Reason{gc.ContainerLive, gc.ContainerLive}, gc.Unowned},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := plugintest.New(t, "podnet", six4, six6)
			ips := [2][]netip.Addr{add(t, p, live, "eth0"), add(t, p, lost, "eth0")}
			age(t, p, row.aged, slices.Concat(ips[0], ips[1])...)
			left := reservations(t, p)
			want := map[string]gc.Reason{
				ips[0][0].String(): row.kept[0], ips[0][1].String(): row.kept[1], ips[1][0].String(): row.want, ips[1][1].String(): row.want,
			}
			if row.want == gc.ReleasedLeak {
				delete(left, name(ips[1][0]))
				delete(left, name(ips[1][1]))
			}
			reconciler := reconcilerOf(t, p, podsource.Static{row.live(ips[0])}, gc.Options{DryRun: row.dryRun})
			report, err := reconciler.Reconcile(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wantDiff(t, "report", row.reason, want, reasons(report))
			wantDiff(t, "disk", row.reason+"; only what was released is gone", left, reservations(t, p))
			// Otherwise it would get an address that may still be in the ARP caches of other hosts.
			wantDiff(t, "next ADD", "it continues after the last address, as without the pass",
				[]netip.Addr{netip.MustParseAddr("10.1.0.4"), netip.MustParseAddr("fd00:1::4")}, add(t, p, "new", "eth0"))
			if err := p.Check(t.Context(), live, "eth0"); err != nil {
				t.Errorf("CHECK of the live container: %v", err)
			}
			if row.want == gc.ReleasedLeak {
				wantError(t, p.Check(t.Context(), lost, "eth0"), "Failed to find address", "it was released")
			}
			for _, id := range []string{live, lost, "new"} {
				if err := p.Del(t.Context(), id, "eth0"); err != nil {
					t.Errorf("DEL after a pass: %v", err)
				}
			}
			wantDiff(t, "disk after DEL of all", "DEL works after a pass", map[string]string{}, reservations(t, p))
		})
	}
}

// A power loss after a reservation is created and before it is written leaves it empty. No
// DEL removes it.
func TestHazard14EmptyReservation(t *testing.T) {
	for _, row := range []struct {
		reason string
		pass   func(*testing.T, *plugintest.Plugin, podsource.Source, gc.Options) gc.Report
		aged   time.Duration
		want   gc.Reason
	}{
		{"it has no owner, and no ADD takes an hour to write one", reconcile, time.Hour, gc.ReleasedEmpty},
		{"an ADD may be about to write a young one (R5)", reconcile, 0, gc.TooYoung},
		{"the hook's caller asserts that no ADD will write it", atStartup, 0, gc.ReleasedEmpty},
	} {
		t.Run(row.reason, func(t *testing.T) {
			p := plugintest.New(t, "podnet", one4)
			empty := add(t, p, "lost", "eth0")[0]
			if err := os.Truncate(p.File(empty), 0); err != nil {
				t.Fatal(err)
			}
			age(t, p, row.aged, empty)
			if err := p.Del(t.Context(), "lost", "eth0"); err != nil {
				t.Fatal(err)
			}
			wantFull := func(reason string) {
				_, err := p.Add(t.Context(), "new", "eth0")
				wantError(t, err, poolFull, reason)
			}
			wantFull("neither DEL nor ADD removes it")
			report := row.pass(t, p, podsource.Static{someone}, gc.Options{})
			wantDiff(t, "report", row.reason, map[string]gc.Reason{empty.String(): row.want}, reasons(report))
			if row.want == gc.ReleasedEmpty {
				add(t, p, "new", "eth0")
			} else {
				wantFull(row.reason)
			}
		})
	}
}

// A reservation made after the listing is no candidate, although the source does not name
// its container (R1).
func TestHazard03AddWhileTheSourceIsAsked(t *testing.T) {
	p := plugintest.New(t, "podnet", six4)
	age(t, p, time.Hour, add(t, p, "lost", "eth0")...)
	report := reconcile(t, p, podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
		late, err := p.Add(ctx, "late", "eth0")
		age(t, p, time.Hour, late...) // so that its age does not keep it
		return []podsource.Pod{someone}, err
	}), gc.Options{})
	wantDiff(t, "report", "only what was listed is judged (R1)", map[string]gc.Reason{"10.1.0.2": gc.ReleasedLeak}, reasons(report))
	wantDiff(t, "disk", "only what was listed is judged (R1)", map[string]string{"10.1.0.3": "late\r\neth0"}, reservations(t, p))
}

// The addresses of a container's second network are in no pod's status.
func TestHazard22SecondNetwork(t *testing.T) {
	first := plugintest.New(t, "podnet", six4)
	second := &plugintest.Plugin{Binary: first.Binary, DataDir: first.DataDir, Network: "storage",
		Ranges: []plugintest.Range{{Subnet: "10.9.0.0/24"}}}
	for _, id := range []string{"live", "lost"} {
		age(t, first, time.Hour, add(t, first, id, "eth0")...)
		age(t, second, time.Hour, add(t, second, id, "net1")...)
	}
	untouched := reservations(t, first)
	report := reconcile(t, second, podsource.Static{{IPs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}}, gc.Options{})
	wantDiff(t, "report", "the address in the first network shows that the container is live (R3)", map[string]gc.Reason{
		"10.1.0.2": gc.AddressClaimed, "10.9.0.2": gc.SiblingInUse, "10.1.0.3": gc.NetworkNotNamed, "10.9.0.3": gc.ReleasedLeak,
	}, reasons(report))
	wantDiff(t, "second network", "the leak is gone", map[string]string{"10.9.0.2": "live\r\nnet1"}, reservations(t, second))
	wantDiff(t, "first network", "a network that is not named is only read (R14)", untouched, reservations(t, first))
}
