// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// same compares; reason says why it must be so.
func same[T any](t *testing.T, what, reason string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (%s): (-want +got)\n%s", what, reason, diff)
	}
}

// verdicts are the same for all these addresses.
func verdicts(verdict string, ips ...netip.Addr) map[netip.Addr]string {
	out := make(map[netip.Addr]string)
	for _, ip := range ips {
		out[ip] = verdict
	}
	return out
}

// joined unites maps.
func joined[K comparable, V any](all ...map[K]V) map[K]V {
	out := make(map[K]V)
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

// holding is what host-local must hold for these pods.
func holding(pods ...pod) map[netip.Addr]string {
	out := make(map[netip.Addr]string)
	for _, p := range pods {
		maps.Copy(out, verdicts(p.id, p.ips...))
	}
	return out
}

// strangers are the containers in reservations that belong to none of these pods.
func strangers(reservations map[netip.Addr]string, pods ...pod) []string {
	seen := make(map[string]bool)
	for _, p := range pods {
		seen[p.id] = true
	}
	var out []string
	for _, id := range reservations {
		if !seen[id] {
			out, seen[id] = append(out, id), true
		}
	}
	return out
}
