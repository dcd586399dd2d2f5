// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"net/netip"
	"testing"
)

func addr(text string) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(text)
}

func TestRange(t *testing.T) {
	for _, row := range []struct {
		reason               string
		first, last, gateway string
		size                 float64
		has, hasNot          []string
	}{
		{"a /24 without network, gateway and broadcast", "10.1.0.1", "10.1.0.254", "10.1.0.1", 253, []string{"10.1.0.2", "10.1.0.254"}, []string{"10.1.0.1", "10.1.0.0", "10.1.0.255", "fd00::1", ""}},
		{"the gateway lies outside", "10.1.0.5", "10.1.0.6", "10.1.0.1", 2, []string{"10.1.0.5", "10.1.0.6"}, []string{"10.1.0.1"}},
		{"no gateway is known", "10.1.0.5", "10.1.0.5", "", 1, []string{"10.1.0.5"}, []string{"10.1.0.4", "10.1.0.6", ""}},
		{"a /64 is rounded", "fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1", 1 << 64, []string{"fd00::2", "fd00::ffff:ffff:ffff:ffff"}, []string{"fd00::1", "fd00:0:0:1::", "10.1.0.2"}},
		{"all of IPv6", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "", 0x1p128, []string{"::", "fd00::1"}, []string{"10.1.0.2"}},
		{"the wrong way round", "10.1.0.9", "10.1.0.1", "", 0, nil, []string{"10.1.0.5"}},
		{"of two families", "10.1.0.1", "fd00::1", "", 0, nil, []string{"fd00::"}},
		{"the zero Range", "", "", "", 0, nil, []string{"", "10.1.0.5"}},
	} {
		r := Range{addr(row.first), addr(row.last), addr(row.gateway)}
		if got := r.Size(); got != row.size {
			t.Errorf("%s: size %v, want %v", row.reason, got, row.size)
		}
		for _, ip := range row.has {
			if !r.Has(addr(ip)) {
				t.Errorf("%s: Has(%s) is false", row.reason, ip)
			}
		}
		for _, ip := range row.hasNot {
			if r.Has(addr(ip)) {
				t.Errorf("%s: Has(%q) is true", row.reason, ip)
			}
		}
	}
}

func TestSet(t *testing.T) {
	s := Set{{addr("10.1.0.1"), addr("10.1.0.6"), addr("10.1.0.1")}, {addr("10.1.1.1"), addr("10.1.1.2"), addr("10.1.1.9")}}
	if s.Size() != 7 || !s.Has(addr("10.1.0.6")) || !s.Has(addr("10.1.1.2")) || s.Has(addr("10.1.0.1")) || s.Has(addr("10.1.2.1")) {
		t.Errorf("%v has %v addresses", s, s.Size())
	}
	if (Set)(nil).Size() != 0 || (Set)(nil).Has(addr("10.1.0.1")) || (Range{}).Contains(netip.Addr{}) {
		t.Error("a set without ranges, or a zero range, has no address")
	}
}
