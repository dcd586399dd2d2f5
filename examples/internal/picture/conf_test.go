// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func readConf(t *testing.T, text string) ([]Conf, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "10-net.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return ReadConf(path)
}

func TestReadConf(t *testing.T) {
	for _, row := range []struct {
		reason, text string
		want         []Conf
	}{
		{
			"a subnet, as of old", `{"cniVersion":"0.3.1","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"/run/x"}}`,
			[]Conf{{"n", "/run/x", []Range{{First: ip("10.1.0.1"), Last: ip("10.1.0.254"), Gateway: ip("10.1.0.1")}}}},
		},
		{
			"range sets of both families, one with two ranges",
			`{"cniVersion":"1.0.0","name":"n","type":"ptp","ipam":{"type":"host-local","ranges":[
			  [{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.19"},{"subnet":"10.1.1.0/24","gateway":"10.1.1.254"}],
			  [{"subnet":"fd00::/64"}]]}}`,
			[]Conf{{"n", "/var/lib/cni/networks", []Range{
				{First: ip("10.1.0.10"), Last: ip("10.1.0.19"), Gateway: ip("10.1.0.1")},
				{First: ip("10.1.1.1"), Last: ip("10.1.1.254"), Gateway: ip("10.1.1.254")},
				{First: ip("fd00::1"), Last: ip("fd00::ffff:ffff:ffff:ffff"), Gateway: ip("fd00::1")},
			}}},
		},
		{
			"two networks behind Multus",
			`{"cniVersion":"1.0.0","name":"m","type":"multus","delegates":[
			  {"cniVersion":"1.0.0","name":"a","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/30"}},
			  {"cniVersion":"1.0.0","name":"b","type":"bridge","ipam":{"type":"host-local","subnet":"10.2.0.0/30"}}]}`,
			[]Conf{
				{"a", "/var/lib/cni/networks", []Range{{First: ip("10.1.0.1"), Last: ip("10.1.0.2"), Gateway: ip("10.1.0.1")}}},
				{"b", "/var/lib/cni/networks", []Range{{First: ip("10.2.0.1"), Last: ip("10.2.0.2"), Gateway: ip("10.2.0.1")}}},
			},
		},
		{
			"a list of plugins, whose name and version it hands on",
			`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"portmap"},
			  {"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/30"}],[{"subnet":"10.2.0.0/30"}]]}},{"type":"x","ipam":{"type":"dhcp"}}]}`,
			[]Conf{{"n", "/var/lib/cni/networks", []Range{{First: ip("10.1.0.1"), Last: ip("10.1.0.2"), Gateway: ip("10.1.0.1")}, {First: ip("10.2.0.1"), Last: ip("10.2.0.2"), Gateway: ip("10.2.0.1")}}}},
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			got, err := readConf(t, row.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, got, sameAddr); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadConfRefuses(t *testing.T) {
	for _, row := range []struct{ reason, text, want string }{
		{"no JSON", "plugins:", "10-net.conf: parsing a CNI configuration: invalid character"},
		{"no IPAM", `{"name":"n","type":"bridge"}`, "none of its plugins has host-local"},
		{"another IPAM", `{"name":"n","type":"bridge","ipam":{"type":"whereabouts","subnet":"10.0.0.0/24"}}`, "none of its plugins has host-local"},
		{"a list without host-local", `{"name":"n","plugins":[{"type":"portmap"}]}`, "none of its plugins has host-local"},
		{"a subnet that the runtime fills in", `{"name":"n","type":"calico","ipam":{"type":"host-local","subnet":"usePodCidr"}}`, "set at run time"},
		{"ranges that come with each ADD", `{"name":"n","type":"bridge","ipam":{"type":"host-local"}}`, "no IP ranges specified"},
		{"no name", `{"type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/24"}}`, "has no name"},
		{"a broken plugin in a list", `{"name":"n","plugins":[{"type":"a"},{"type":"b","ipam":{"type":"host-local","subnet":"10.0.0.1/24"}}]}`, "invalid range set"},
	} {
		if _, err := readConf(t, row.text); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: error %v does not say %q", row.reason, err, row.want)
		}
	}
	if _, err := ReadConf(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestReadLast(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"last_reserved_ip": "10.0.0.1\n", "last_reserved_ip.0": "10.0.0.9", "last_reserved_ip.1": "fd00::9",
		"last_reserved_ip.2": "", "last_reserved_ip.3": "soon", "last_reserved_ipv4": "10.0.0.7", "10.0.0.8": "c\r\neth0", "lock": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "last_reserved_ip.4"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := ReadLast(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]netip.Addr{ip("10.0.0.1"), ip("10.0.0.9"), ip("fd00::9")}, got, sameAddr); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := ReadLast(filepath.Join(dir, "none")); err != nil || got != nil {
		t.Errorf("a missing directory: got %v and error %v", got, err)
	}
}
