// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What each container left is judged, and the plugin goes on with the directory as if there had been no pass.
func TestPass(t *testing.T) {
	p := plugintest.New(t, "podnet", six4, six6)
	live := add(t, p, "live", "eth0")
	old := append(live, add(t, p, "lost", "eth0")...)
	p.NetNS = "/proc/self/ns/net" // the plugin's own: it fails after it has reserved, there is no sandbox, and no DEL follows (hazard 21)
	_, err := p.Add(t.Context(), "failed", "eth0")
	wantError(t, err, "should not be the same", "the namespace is the plugin's own")
	p.NetNS = ""
	old = append(old, netip.MustParseAddr("10.1.0.4"), netip.MustParseAddr("fd00:1::4"))
	torn := add(t, p, "torn", "eth0")
	for _, ip := range torn { // a power loss after it was created and before it was written: no DEL removes it (hazard 14)
		if err := os.Truncate(p.File(ip), 0); err != nil {
			t.Fatal(err)
		}
	}
	age(t, p, time.Hour, append(old, torn...)...)
	if err := p.Del(t.Context(), "torn", "eth0"); err != nil {
		t.Fatal(err)
	}
	add(t, p, "adding", "eth0")
	// The status of the live pod lacks its IPv6 address (hazard 08).
	report, err := reconcilerOf(t, p, podsource.Static{{IPs: live[:1]}}, gc.Options{}).Reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]gc.Reason)
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Reason
	}
	wantDiff(t, "report", "each is judged by what is left of it", map[string]gc.Reason{
		"10.1.0.2": gc.AddressClaimed, "10.1.0.3": gc.ReleasedLeak, "10.1.0.4": gc.ReleasedLeak, "10.1.0.5": gc.ReleasedEmpty,
		"10.1.0.6": gc.TooYoung, "fd00:1::2": gc.SiblingInUse, "fd00:1::3": gc.ReleasedLeak, "fd00:1::4": gc.ReleasedLeak,
		"fd00:1::5": gc.ReleasedEmpty, "fd00:1::6": gc.TooYoung,
	}, got)
	wantDiff(t, "disk", "only what was released is gone", map[string]string{
		"10.1.0.2": "live\r\neth0", "fd00:1::2": "live\r\neth0", "10.1.0.6": "adding\r\neth0", "fd00:1::6": "adding\r\neth0",
	}, reservations(t, p))
	// Otherwise it would get an address that may still be in the ARP caches of other hosts.
	wantDiff(t, "next ADD", "it continues after the last address, as without the pass",
		[]netip.Addr{netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00:1::7")}, add(t, p, "new", "eth0"))
	wantError(t, p.Check(t.Context(), "lost", "eth0"), "Failed to find address", "it was released")
	if err := p.Check(t.Context(), "live", "eth0"); err != nil {
		t.Errorf("CHECK of the live container: %v", err)
	}
	for _, id := range []string{"3", "4", "5"} { // what was released
		add(t, p, id, "eth0")
	}
	_, err = p.Add(t.Context(), "6", "eth0")
	wantError(t, err, poolFull, "all others are in use")
	for _, id := range []string{"live", "lost", "adding", "new", "3", "4", "5"} {
		if err := p.Del(t.Context(), id, "eth0"); err != nil {
			t.Errorf("DEL after a pass: %v", err)
		}
	}
	wantDiff(t, "disk after DEL of all", "DEL works after a pass", map[string]string{}, reservations(t, p))
}
