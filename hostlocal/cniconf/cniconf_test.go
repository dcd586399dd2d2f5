// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

var equal = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// r returns a range.
func r(first, last, gateway string) iprange.Range {
	return iprange.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last), Gateway: netip.MustParseAddr(gateway)}
}

// subnet is the range set of most rows.
const subnet = `"type": "host-local", "subnet": "10.1.0.0/16"`

var tenOne = []iprange.Set{{r("10.1.0.1", "10.1.255.254", "10.1.0.1")}}

// rows are configurations of a single plugin or of a list.
var rows = []struct {
	reason string
	conf   string
	want   []Network
	err    string // a part of the error; "" for none
}{
	{
		"a single plugin, and the default data directory",
		`{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": {` + subnet + `}}`,
		[]Network{{"podnet", hostlocal.DefaultDataDir, tenOne, "bridge"}}, "",
	},
	{
		"a data directory of its own, in canonical form",
		`{"name": "podnet", "type": "antrea", "ipam": {"dataDir": "/run/antrea/cni//networks/", ` + subnet + `}}`,
		[]Network{{"podnet", "/run/antrea/cni/networks", tenOne, "antrea"}}, "",
	},
	{
		"Antrea's agent calls host-local with the node's subnet, and with a data directory of its own",
		`{"name": "antrea", "plugins": [{"type": "antrea", "ipam": {"type": "host-local"}}]}`,
		[]Network{{"antrea", "/run/antrea/cni/networks", nil, "antrea"}}, "",
	},
	{
		"a list: its name applies to all plugins, and only those with host-local count",
		`{"cniVersion": "1.0.0", "name": "list", "plugins": [
			{"type": "ptp", "name": "other", "ipam": {` + subnet + `}},
			{"type": "macvlan", "ipam": {"type": "dhcp"}},
			{"type": "portmap", "capabilities": {"portMappings": true}}]}`,
		[]Network{{"list", hostlocal.DefaultDataDir, tenOne, "ptp"}}, "",
	},
	{
		"range sets, dual stack, with a part of a subnet",
		`{"cniVersion": "0.3.1", "name": "n", "type": "ptp", "ipam": {"type": "host-local", "ranges": [
			[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.9", "gateway": "10.1.2.254"}, {"subnet": "10.2.0.0/24"}],
			[{"subnet": "fd00::/64"}]]}}`,
		[]Network{{"n", hostlocal.DefaultDataDir, []iprange.Set{
			{r("10.1.2.3", "10.1.2.9", "10.1.2.254"), r("10.2.0.1", "10.2.0.254", "10.2.0.1")},
			{r("fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1")},
		}, "ptp"}}, "",
	},
	{
		"a subnet beside range sets comes first, as in the plugin",
		`{"cniVersion": "0.3.1", "name": "n", "type": "ptp", "ipam": {` + subnet + `, "ranges": [[{"subnet": "fd00::/64"}]]}}`,
		[]Network{{"n", hostlocal.DefaultDataDir, []iprange.Set{tenOne[0],
			{r("fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1")}}, "ptp"}}, "",
	},
	{
		"flannel adds the node's subnet at run time",
		`{"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}}]}`,
		[]Network{{"cbr0", hostlocal.DefaultDataDir, nil, "flannel"}}, "",
	},
	{
		"flannel passes its ipam on; its own dataDir is for something else",
		`{"name": "cbr0", "type": "flannel", "dataDir": "/var/lib/cni/flannel", "ipam": {"dataDir": "/data", "subnet": "ignored"}}`,
		[]Network{{"cbr0", "/data", nil, "flannel"}}, "",
	},
	{
		"flannel with an ipam in its delegate",
		`{"name": "cbr0", "type": "flannel", "delegate": {"ipam": {"type": "host-local", "dataDir": "/data"}}}`,
		[]Network{{"cbr0", "/data", nil, "flannel"}}, "",
	},
	{
		"flannel with another ipam",
		`{"name": "cbr0", "type": "flannel", "ipam": {"type": "whereabouts"}}`, nil, "",
	},
	{
		"Multus: a delegate is a configuration or a list, with a name of its own",
		`{"name": "multus-cni-network", "type": "multus", "delegates": [
			{"name": "first", "plugins": [{"type": "ptp", "ipam": {` + subnet + `}}]},
			{"name": "second", "type": "flannel"}]}`,
		[]Network{{"first", hostlocal.DefaultDataDir, tenOne, "ptp"}, {"second", hostlocal.DefaultDataDir, nil, "flannel"}}, "",
	},
	{
		"Multus in a list, and a delegate without host-local",
		`{"name": "multus", "plugins": [{"type": "multus", "delegates": [{"name": "calico", "type": "calico", "ipam": {"type": "calico-ipam"}}]}]}`,
		nil, "",
	},
	{
		"Calico's placeholder for the node's subnet",
		`{"name": "k8s-pod-network", "plugins": [{"type": "calico", "ipam": {"type": "host-local", "subnet": "usePodCidr"}}]}`,
		[]Network{{"k8s-pod-network", hostlocal.DefaultDataDir, nil, "calico"}}, "",
	},
	{
		"Calico's placeholders, dual stack, in any letter case",
		`{"name": "n", "type": "calico", "ipam": {"type": "host-local", "ranges": [[{"subnet": "usepodcidr"}], [{"subnet": "usePodCidrIPv6"}]]}}`,
		[]Network{{"n", hostlocal.DefaultDataDir, nil, "calico"}}, "",
	},
	{
		"the runtime sets the ranges",
		`{"name": "n", "type": "ptp", "capabilities": {"ipRanges": true}, "ipam": {"type": "host-local", "dataDir": "/data"}}`,
		[]Network{{"n", "/data", nil, "ptp"}}, "",
	},
	{
		"the runtime may set ranges, and the configuration has some",
		`{"name": "n", "type": "ptp", "capabilities": {"ipRanges": true}, "ipam": {` + subnet + `}}`,
		[]Network{{"n", hostlocal.DefaultDataDir, tenOne, "ptp"}}, "",
	},
	{"no ipam at all", `{"name": "lo", "type": "loopback"}`, nil, ""},
	{"another ipam, whose fields have other forms", `{"name": "n", "type": "macvlan", "ipam": {"type": "x", "ranges": ["10.0.0.0/8"], "subnet": 5, "dataDir": []}}`, nil, ""},
	{"delegates of another form are ignored", `{"name": "n", "type": "ptp", "delegates": {"a": 1}, "delegate": 5, "ipam": {` + subnet + `}}`,
		[]Network{{"n", hostlocal.DefaultDataDir, tenOne, "ptp"}}, ""},

	{
		"a bad plugin does not hide the others",
		`{"name": "n", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.0.0.1/24"}}, {"type": "macvlan", "ipam": {` + subnet + `}}]}`,
		[]Network{{"n", hostlocal.DefaultDataDir, tenOne, "macvlan"}}, `network "n", plugin "ptp": invalid range set 0: Network has host bits set`,
	},
	{
		"a bad delegate does not hide the others",
		`{"name": "m", "type": "multus", "delegates": [{"name": "a"}, 5, {"name": "b", "type": "flannel"}]}`,
		[]Network{{"b", hostlocal.DefaultDataDir, nil, "flannel"}}, `network "m", delegate 1: json`,
	},
	{"no ranges", `{"name": "n", "type": "ptp", "ipam": {"type": "host-local"}}`, nil, "no IP ranges specified"},
	{"no address in the range", `{"name": "n", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.0.0.0/31"}}`, nil, "too small"},
	{"a range outside of its subnet", `{"name": "n", "type": "ptp", "ipam": {` + subnet + `, "rangeStart": "10.2.0.0"}}`, nil, "not in network"},
	{"ranges that overlap", `{"cniVersion": "1.0.0", "name": "n", "type": "ptp", "ipam": {` + subnet + `, "ranges": [[{"subnet": "10.1.2.0/24"}]]}}`, nil, "overlaps"},
	{"an invalid subnet", `{"name": "n", "type": "ptp", "ipam": {"type": "host-local", "subnet": "podCidr"}}`, nil, "invalid CIDR"},
	{"an old version allows one address of a family", `{"cniVersion": "0.2.0", "name": "n", "plugins": [{"cniVersion": "1.0.0", "type": "ptp", "ipam": {` + subnet + `, "ranges": [[{"subnet": "10.9.0.0/16"}]]}}]}`, nil, "does not support more than 1 address"},
	{"a null address, at which the plugin's parser panics", `{"name": "n", "type": "ptp", "args": {"cni": {"ips": [null]}}, "ipam": {` + subnet + `}}`, nil, "panicked"},
	{"no name: host-local would use the data directory itself", `{"type": "ptp", "ipam": {` + subnet + `}}`, nil, "no name"},
	{"a name that leads out of the data directory", `{"name": "../n", "type": "ptp", "ipam": {` + subnet + `}}`, nil, "allows no such name"},
	{"a data directory that is not a string", `{"name": "n", "type": "flannel", "ipam": {"dataDir": 5}}`, nil, "dataDir is not a string"},
	{"neither a plugin nor a list", `{"name": "n"}`, nil, "neither"},
	{"an empty list", `{"name": "n", "plugins": []}`, nil, "neither"},
	{"a list in a list is ignored", `{"name": "n", "plugins": [{"plugins": [{"type": "flannel"}]}]}`, nil, "neither"},
	{"delegates nested too deep", strings.Repeat(`{"name": "m", "type": "multus", "delegates": [`, 10) + strings.Repeat(`]}`, 10), nil, "more than 8 deep"},
	{"not JSON", `name: n`, nil, "parsing a CNI configuration"},
	{"an array", `[]`, nil, "parsing a CNI configuration"},
	{"empty", ``, nil, "parsing a CNI configuration"},
	{"null", `null`, nil, "neither"},
}

func TestParse(t *testing.T) {
	for _, row := range rows {
		got, err := Parse([]byte(row.conf))
		if diff := cmp.Diff(row.want, got, equal); diff != "" {
			t.Errorf("Parse: %s (-want +got):\n%s", row.reason, diff)
		}
		if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
			t.Errorf("Parse: %v, want %q: %s", err, row.err, row.reason)
		}
	}
}

// TestDepth: delegates may be nested up to the limit.
func TestDepth(t *testing.T) {
	conf := `{"name": "n", "type": "flannel"}`
	for range maxDepth {
		conf = `{"name": "m", "type": "multus", "delegates": [` + conf + `]}`
	}
	if got, err := Parse([]byte(conf)); len(got) != 1 || err != nil {
		t.Errorf("Parse: %v, %v", got, err)
	}
}

// TestReadDir: it reads the files that libcni reads, in their order. An error names its file
// and does not hide the others.
func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	ipvlan := func(name string) string {
		return fmt.Sprintf(`{"name": %q, "type": "ipvlan", "ipam": {%s}}`, name, subnet)
	}
	for path, content := range map[string]string{
		"30-single.conf":        ipvlan("single"),
		"20-json.json":          ipvlan("json"),
		"10-list.conflist":      `{"name": "list", "plugins": [` + ipvlan("") + `]}`,
		"40-bad.conf":           `{`,
		"50-half.conflist":      `{"name": "half", "plugins": [5, ` + ipvlan("") + `]}`,
		"60-split.conflist":     `{"name": "split", "cniVersion": "1.1.0"}`,
		"split/b.conf":          ipvlan("other"),
		"split/a.conf":          `{"type": "ptp", "ipam": {` + subnet + `}}`,
		"split/c.conflist":      `{`,
		"70-inlined.conflist":   `{"name": "inlined", "loadOnlyInlinedPlugins": true, "plugins": [` + ipvlan("") + `]}`,
		"inlined/a.conf":        `{`,
		"80-outside.conflist":   `{"name": "../outside", "plugins": [` + ipvlan("") + `]}`,
		"85-huge.conf":          strings.Repeat(" ", maxFile) + `{}`,
		"README":                `{`,
		"00-old.conf.bak":       `{`,
		"00-directory.conf/x":   ``,
		"90-linked/target.conf": ``,
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadDir(dir)
	var names []string
	for _, n := range got {
		names = append(names, n.Name+" "+n.Plugin)
	}
	want := []string{
		"list ipvlan", "json ipvlan", "single ipvlan", "half ipvlan", "split ptp", "split ipvlan", "inlined ipvlan",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("ReadDir (-want +got):\n%s", diff)
	}
	lines := strings.Split(fmt.Sprint(err), "\n")
	for i, bad := range []string{"40-bad.conf", "50-half.conflist", "80-outside.conflist", "85-huge.conf"} {
		if len(lines) == 4 && strings.Contains(lines[i], bad) {
			continue
		}
		t.Errorf("ReadDir: %v, want an error for each bad file", err)
	}

	for _, none := range []string{"missing", "00-directory.conf"} {
		if got, err := ReadDir(filepath.Join(dir, none)); got != nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), none) {
			t.Errorf("ReadDir of %s: %v, %v", none, got, err)
		}
	}
	var bad *FileError
	if _, err := ReadFile(filepath.Join(dir, "40-bad.conf")); !errors.As(err, &bad) || !bad.First {
		t.Errorf("ReadFile: %v", err)
	}
}

// TestFlannel: flannel's range is in the file of its daemon or, without that, in what its plugin passed on.
func TestFlannel(t *testing.T) {
	old, newer := []iprange.Set{{r("10.9.0.1", "10.9.0.254", "10.9.0.1")}}, []iprange.Set{{r("10.8.0.1", "10.8.0.254", "10.8.0.1")}}
	for _, row := range []struct {
		reason, env, version string
		files                map[string]string // what the plugin passed on, in the order of their names
		want                 []iprange.Set
		err                  string
	}{
		{reason: "the daemon's file", env: "FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_SUBNET=10.9.0.1/24\nFLANNEL_MTU=1450\n", want: old},
		{reason: "both families, and a version of old", version: "0.2.0", env: "FLANNEL_SUBNET=10.9.0.1/24\nFLANNEL_IPV6_SUBNET=fd00::1/64",
			want: []iprange.Set{old[0], {r("fd00::1", "fd00::ffff:ffff:ffff:ffff", "fd00::1")}}},
		{reason: "a file without a subnet", env: "FLANNEL_MTU=1450\n", err: "no IP ranges specified"},
		{reason: "a subnet that is none", env: "FLANNEL_SUBNET=10.9.0.1\n", err: "FLANNEL_SUBNET="},
		{reason: "no file, and nothing passed on", err: "subnet.env"},
		{reason: "no file, and the newest that was passed on of this network", err: "subnet.env", want: newer, files: map[string]string{
			"a": `{"name": "cbr0", "type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`,
			"b": `{"name": "cbr0", "type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.8.0.0/24"}]]}}`,
			"c": `{"name": "other", "type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.7.0.0/24"}]]}}`,
			"d": `no JSON`,
		}},
	} {
		dir := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(dir, name)
			at := time.Unix(int64(name[len(name)-1]), 0)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
				t.Fatal(err)
			}
		}
		if row.env != "" {
			write("subnet.env", row.env)
		}
		for name, text := range row.files {
			write("flannel/"+name, text)
		}
		write("10-flannel.conflist", fmt.Sprintf(`{"name": "cbr0", "cniVersion": %q, "plugins": [{"type": "flannel", "subnetFile": %q, "dataDir": %q}]}`,
			row.version, dir+"/subnet.env", dir+"/flannel"))
		got, err := ReadFile(filepath.Join(dir, "10-flannel.conflist"))
		if len(got) != 1 || (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
			t.Fatalf("%s: %v, %v, want %q", row.reason, got, err, row.err)
		}
		if diff := cmp.Diff(row.want, got[0].Ranges, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// FuzzParse: Parse does not panic on any input, names every network, and returns no empty
// range.
func FuzzParse(f *testing.F) {
	for _, row := range rows {
		f.Add([]byte(row.conf))
	}
	f.Fuzz(func(t *testing.T, conf []byte) {
		networks, _ := Parse(conf)
		for _, n := range networks {
			if n.Name == "" || n.DataDir == "" || n.Plugin == "" {
				t.Errorf("%+v lacks a field", n)
			}
			for _, set := range n.Ranges {
				if slices.ContainsFunc(set, func(r iprange.Range) bool {
					return !r.Contains(r.First) || !r.Contains(r.Last) || !r.Gateway.IsValid()
				}) {
					t.Errorf("%+v has an invalid range", n)
				}
			}
		}
	})
}
