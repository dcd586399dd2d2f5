// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	for _, row := range []struct {
		reason string
		name   string
		colon  byte
		want   string // an address, or "" if it is no reservation
	}{
		{"an IPv4 reservation", "10.244.1.2", ':', "10.244.1.2"},
		{"an IPv6 reservation", "fd00::2", ':', "fd00::2"},
		{"the longest address", "fd00:1111:2222:3333:4444:5555:6666:7777", ':', "fd00:1111:2222:3333:4444:5555:6666:7777"},
		{"the shortest address", "::", ':', "::"},
		{"on Windows '_' stands for ':'", "fd00__2", '_', "fd00::2"},
		{"IPv4 is the same on Windows", "10.244.1.2", '_', "10.244.1.2"},
		{"the longest address on Windows", "fd00_1111_2222_3333_4444_5555_6666_7777", '_', "fd00:1111:2222:3333:4444:5555:6666:7777"},

		{"'_' means nothing elsewhere", "fd00__2", ':', ""},
		{"no file on Windows has ':' in its name; it would lead to a stream of another", "fd00::2", '_', ""},
		{"a mixture of both is no name on Windows", "fd00_:2", '_', ""},
		{"'_' is no dot", "10_244_1_2", '_', ""},

		{"the plugin's lock", "lock", ':', ""},
		{"where the plugin continues to look", "last_reserved_ip.0", ':', ""},
		{"the same on Windows, where '_' is replaced", "last_reserved_ip.0", '_', ""},
		{"the same of 2016", "last_reserved_ip", ':', ""},
		{"an editor's backup", "10.0.0.1~", ':', ""},
		{"a temporary file", ".10.0.0.1", ':', ""},
		{"a copy", "10.0.0.1.bak", ':', ""},
		{"leading zero: host-local writes no such name, and deleting by it would hit 10.0.0.1", "10.0.0.01", ':', ""},
		{"an IPv4-mapped address: host-local writes it as IPv4", "::ffff:10.0.0.1", ':', ""},
		{"the same in hex", "::ffff:a00:1", ':', ""},
		{"the same on Windows", "__ffff_10.0.0.1", '_', ""},
		{"IPv4 at the end is not canonical", "64:ff9b::10.0.0.1", ':', ""},
		{"a zone: a file of the plugin has none", "fe80::1%eth0", ':', ""},
		{"an empty zone", "fe80::1%", ':', ""},
		{"a zone that leads elsewhere", "fe80::1%/../../etc", ':', ""},
		{"upper case hex is not canonical", "FD00::2", ':', ""},
		{"one upper case digit", "fd00::A", ':', ""},
		{"a leading zero in a group", "fd00::02", ':', ""},
		{"the longest run of zeros must be shortened", "fd00:0:0:0:0:0:0:2", ':', ""},
		{"a single group of zeros must not be shortened", "fd00:1::2:3:4:5:6", ':', ""},
		{"a network", "10.0.0.0/24", ':', ""},
		{"a number", "167772161", ':', ""},
		{"three octets", "10.0.0", ':', ""},
		{"an octet that is too large", "10.0.0.256", ':', ""},
		{"white space", "10.0.0.1 ", ':', ""},
		{"a NUL", "10.0.0.1\x00", ':', ""},
		{"nothing", "", ':', ""},
		{"this directory", ".", ':', ""},
		{"the directory above", "..", ':', ""},
		{"longer than any address", strings.Repeat("1", 255), ':', ""},
	} {
		ip, ok := parseName(row.name, row.colon)
		if got := ok; got != (row.want != "") {
			t.Errorf("parseName(%q, %q) = %v, %v, want %q: %s", row.name, row.colon, ip, ok, row.want, row.reason)
			continue
		}
		if !ok {
			if ip.IsValid() {
				t.Errorf("parseName(%q, %q) = %v, false, want no address", row.name, row.colon, ip)
			}
			continue
		}
		if want := netip.MustParseAddr(row.want); ip != want {
			t.Errorf("parseName(%q, %q) = %v, want %v: %s", row.name, row.colon, ip, want, row.reason)
		}
		if got := fileName(ip, row.colon); got != row.name {
			t.Errorf("fileName(%v, %q) = %q, want %q: %s", ip, row.colon, got, row.name, row.reason)
		}
	}
}

// FuzzParseName compares parseName with the names that the plugin gives its files:
// net.IP.String, with the colons replaced on Windows.
func FuzzParseName(f *testing.F) {
	f.Fuzz(func(t *testing.T, name string) {
		for _, colon := range []byte{':', '_'} {
			ip, ok := parseName(name, colon)

			plain := name
			if colon != ':' {
				plain = strings.ReplaceAll(name, string(colon), ":")
			}
			byPlugin := net.ParseIP(plain)
			writes := byPlugin != nil && byPlugin.String() == plain && (colon == ':' || !strings.Contains(name, ":"))
			if ok != writes {
				t.Fatalf("parseName(%q, %q) = %v, %v; the plugin writes such a name: %v", name, colon, ip, ok, writes)
			}
			if !ok {
				continue
			}
			if !ip.IsValid() || ip.Zone() != "" || ip.Is4In6() {
				t.Errorf("parseName(%q, %q) = %v, which no reservation can have", name, colon, ip)
			}
			if back := fileName(ip, colon); back != name {
				t.Errorf("fileName(%v, %q) = %q, want %q", ip, colon, back, name)
			}
			if again, ok := parseName(fileName(ip, colon), colon); !ok || again != ip {
				t.Errorf("the name of %v is read as %v, %v", ip, again, ok)
			}
			if strings.ContainsAny(name, "/\\\x00") {
				t.Errorf("parseName(%q, %q) accepts a name that can lead elsewhere", name, colon)
			}
		}
	})
}
