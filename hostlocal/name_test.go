// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"net"
	"strings"
	"testing"
)

// TestParseName: only names that host-local writes are those of reservations (R7): a removal
// by 10.0.0.01 would hit 10.0.0.1.
func TestParseName(t *testing.T) {
	const longest = "fd00:1111:2222:3333:4444:5555:6666:7777"
	good, bad := strings.Fields("10.244.1.2 fd00::2 :: 64:ff9b::a00:1 "+longest), []string{
		"lock", "last_reserved_ip.0", "last_reserved_ip", "10.0.0.1~", ".10.0.0.1", "10.0.0.1.bak", "10.0.0.01", "10_244_1_2",
		"::ffff:10.0.0.1", "::ffff:a00:1", "__ffff_10.0.0.1", "64:ff9b::10.0.0.1", "fe80::1%eth0", "fe80::1%", "fe80::1%/../../etc",
		"FD00::2", "fd00::A", "fd00::02", "fd00:0:0:0:0:0:0:2", "fd00:1::2:3:4:5:6", "10.0.0.0/24", "167772161", "10.0.0",
		"10.0.0.256", "10.0.0.1 ", "10.0.0.1\x00", "", ".", "..", strings.Repeat("1", 255), "fd00_:2",
	}
	for _, name := range good {
		for _, colon := range []byte{':', '_'} { // '_' on Windows
			name := strings.ReplaceAll(name, ":", string(colon))
			if ip, ok := parseName(name, colon); !ok || fileName(ip, colon) != name {
				t.Errorf("parseName(%q, %q) = %v, %v", name, colon, ip, ok)
			}
			if _, ok := parseName(name, ':'+'_'-colon); ok && strings.Contains(name, string(colon)) {
				t.Errorf("the name %q of the other system is accepted", name)
			}
		}
	}
	for _, name := range bad {
		for _, colon := range []byte{':', '_'} {
			if ip, ok := parseName(name, colon); ok || ip.IsValid() {
				t.Errorf("parseName(%q, %q) = %v, %v, want no address", name, colon, ip, ok)
			}
		}
	}
}

// FuzzParseName compares parseName with the names that the plugin gives its files:
// net.IP.String, with the colons replaced on Windows.
func FuzzParseName(f *testing.F) {
	f.Fuzz(func(t *testing.T, name string) {
		for _, colon := range []byte{':', '_'} {
			ip, ok := parseName(name, colon)
			plain := strings.ReplaceAll(name, string(colon), ":")
			byPlugin := net.ParseIP(plain)
			writes := byPlugin != nil && byPlugin.String() == plain && (colon == ':' || !strings.Contains(name, ":"))
			if ok != writes {
				t.Fatalf("parseName(%q, %q) = %v, %v; the plugin writes such a name: %v", name, colon, ip, ok, writes)
			}
			if back := fileName(ip, colon); ok && (back != name || strings.ContainsAny(name, "/\\\x00%") || ip.Is4In6()) {
				t.Errorf("%q is the name of %v, whose name is %q", name, ip, back)
			}
		}
	})
}
