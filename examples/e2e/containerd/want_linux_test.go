// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// same compares two values, with the reason why they must be equal.
func same[T any](t *testing.T, what, reason string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (%s): (-want +got)\n%s", what, reason, diff)
	}
}

// verdicts returns a map with the same verdict for all these addresses.
func verdicts(verdict string, ips ...netip.Addr) map[netip.Addr]string {
	out := make(map[netip.Addr]string)
	for _, ip := range ips {
		out[ip] = verdict
	}
	return out
}

// joined returns the union of maps.
func joined[K comparable, V any](all ...map[K]V) map[K]V {
	out := make(map[K]V)
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

// holding returns the expected reservations of these pods.
func holding(pods ...pod) map[netip.Addr]string {
	out := make(map[netip.Addr]string)
	for _, p := range pods {
		maps.Copy(out, verdicts(p.id, p.ips...))
	}
	return out
}

// otherContainers returns the owners of reservations that are none of these pods.
func otherContainers(reservations map[netip.Addr]string, pods ...pod) []string {
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
