// SPDX-License-Identifier: Apache-2.0

// Package cniconf reads CNI configurations, and returns the networks of host-local in them
// with their data directories and ranges.
//
// It is a package of its own because it uses the plugin's parser, which imports netlink. The
// other packages of the library do not import it. A command or an agent may, to find the
// data directories of a node, or the number of addresses of a network.
//
// It reads the configuration of:
//   - a plugin whose ipam.type is host-local, alone or in a list;
//   - flannel, which gives host-local the subnet of the node that its daemon wrote;
//   - the delegates of a meta plugin such as Multus, each of which is a
//     configuration or a list of its own.
//
// [ReadDir] and [ReadFile] also read the subnets that flannel wrote for its plugin. Ranges that are
// known at run time only are nil: those of Calico's usePodCidr, of Antrea, of the capability
// ipRanges, and flannel's in a text.
package cniconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// A Network is a network whose addresses host-local allocates.
type Network struct {
	// Name is the network's name, and that of its directory in DataDir.
	Name string
	// DataDir is host-local's data directory; [hostlocal.DefaultDataDir] if the
	// configuration names none.
	DataDir string
	// Ranges are the range sets. A container gets one address of each set. It is nil if
	// they are known at run time only.
	Ranges []iprange.Set
	// Plugin is the type of the plugin that calls host-local, such as "bridge".
	Plugin string
}

// ErrNoName is an error of a network without a name. libcni before 0.8 took it, and host-local then uses
// the data directory itself as that of the network.
var ErrNoName = errors.New("the network has no name")

// maxDepth is how deep delegates may be nested.
const maxDepth = 8

// config has the fields of a plugin's or list's configuration that are used here. A field
// whose form may differ in other plugins is of type any, so that it is no error there.
type config struct {
	CNIVersion   string            `json:"cniVersion"`
	Name         string            `json:"name"`
	Type         string            `json:"type"`
	Plugins      []json.RawMessage `json:"plugins"`
	InlinedOnly  any               `json:"loadOnlyInlinedPlugins"`
	Delegates    json.RawMessage   `json:"delegates"`
	Delegate     json.RawMessage   `json:"delegate"`
	SubnetFile   any               `json:"subnetFile"` // flannel's, as is dataDir
	DataDir      any               `json:"dataDir"`
	Capabilities any               `json:"capabilities"`
	IPAM         *ipam             `json:"ipam"`

	raw []byte
}

type ipam struct {
	Type    string `json:"type"`
	DataDir any    `json:"dataDir"`
	Subnet  any    `json:"subnet"`
	Ranges  any    `json:"ranges"`
}

// Parse returns the networks of host-local in a configuration, which is that of a single
// plugin (.conf) or a list (.conflist). A configuration without host-local has none, which is
// not an error. If there are errors about some plugins of a list, or about some delegates,
// Parse returns the networks of the others beside the joined errors.
func Parse(conf []byte) ([]Network, error) {
	c, err := decode(conf)
	if err != nil {
		return nil, fmt.Errorf("parsing a CNI configuration: %w", err)
	}
	return c.networks(0, false)
}

func decode(conf []byte) (*config, error) {
	c := &config{raw: conf}
	if err := json.Unmarshal(conf, c); err != nil {
		return nil, err
	}
	return c, nil
}

// networks returns the networks of a plugin or of a list. depth counts the delegates around it. With
// read the files of flannel are read.
func (c *config) networks(depth int, read bool) (networks []Network, err error) {
	var errs []error
	each := func(what string, raws []json.RawMessage, networksOf func(*config) ([]Network, error)) {
		for i, raw := range raws {
			inner, err := decode(raw)
			if err != nil {
				errs = append(errs, fmt.Errorf("network %q, %s %d: %w", c.Name, what, i, err))
				continue
			}
			more, err := networksOf(inner)
			networks, errs = append(networks, more...), append(errs, err)
		}
	}
	var delegates []json.RawMessage
	_ = json.Unmarshal(c.Delegates, &delegates) // in another form they are not those of a meta plugin
	switch {
	case depth > maxDepth:
		return nil, fmt.Errorf("delegates are nested more than %d deep", maxDepth)
	case len(c.Plugins) > 0:
		each("plugin", c.Plugins, func(plugin *config) ([]Network, error) {
			plugin.Name, plugin.CNIVersion, plugin.Plugins = c.Name, c.CNIVersion, nil // as libcni does
			return plugin.networks(depth, read)
		})
	case len(delegates) > 0:
		each("delegate", delegates, func(delegate *config) ([]Network, error) { return delegate.networks(depth+1, read) })
	case c.Type == "":
		return nil, fmt.Errorf("network %q: neither the type of a plugin nor a list of plugins", c.Name)
	default:
		return c.plugin(read)
	}
	return networks, errors.Join(errs...)
}

// antreaDataDir is where Antrea's agent, which calls host-local in its own mount namespace, has the
// data directory on the node (antrea-io/antrea at 00d545e, build/charts/antrea/templates/agent/daemonset.yaml:
// the subdirectory cni of /var/run/antrea is /var/lib/cni there). The agent adds the node's subnet.
const antreaDataDir = "/run/antrea/cni/networks"

// plugin returns the network of a plugin if the plugin calls host-local.
func (c *config) plugin(read bool) ([]Network, error) {
	in := c.IPAM
	if c.Type == "flannel" { // it passes its own ipam on, with a type and the node's subnet added
		if in == nil {
			var delegate config
			_ = json.Unmarshal(c.Delegate, &delegate)
			in = cmp.Or(delegate.IPAM, &ipam{})
		}
		in.Type = cmp.Or(in.Type, "host-local")
	}
	if in == nil || in.Type != "host-local" {
		return nil, nil
	}
	if c.Name == "" {
		return nil, fmt.Errorf("plugin %q: %w", c.Type, ErrNoName)
	}
	if !hostlocal.ValidName(c.Name) { // runtimes refuse it, too
		return nil, fmt.Errorf("network %q, plugin %q: CNI allows no such name", c.Name, c.Type)
	}
	dataDir, ok := in.DataDir.(string)
	if !ok && in.DataDir != nil {
		return nil, fmt.Errorf("network %q, plugin %q: dataDir is not a string", c.Name, c.Type)
	}
	usual := hostlocal.DefaultDataDir
	if c.Type == "antrea" {
		usual = antreaDataDir
	}
	network := Network{Name: c.Name, DataDir: filepath.Clean(cmp.Or(dataDir, usual)), Plugin: c.Type}
	capabilities, _ := c.Capabilities.(map[string]any)
	var err error
	switch {
	case c.Type == "flannel" && read:
		network.Ranges, err = c.flannel()
	case c.Type == "flannel" || atRunTime(in.Subnet) || atRunTime(in.Ranges):
	case (capabilities["ipRanges"] == true || c.Type == "antrea") && in.Subnet == nil && in.Ranges == nil:
	default:
		network.Ranges, err = c.ranges()
	}
	if err != nil {
		err = fmt.Errorf("network %q, plugin %q: %w", c.Name, c.Type, err)
		if c.Type != "flannel" {
			return nil, err
		}
	}
	return []Network{network}, err
}

// atRunTime reports whether a subnet, or one in a list of range sets, is a placeholder
// that Calico replaces with the node's subnet.
func atRunTime(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.EqualFold(v, "usePodCidr") || strings.EqualFold(v, "usePodCidrIPv6")
	case []any:
		return slices.ContainsFunc(v, atRunTime)
	case map[string]any:
		return atRunTime(v["subnet"])
	}
	return false
}

// ranges returns the range sets as the plugin's own parser reads them.
func (c *config) ranges() (sets []iprange.Set, err error) {
	defer func() {
		if p := recover(); p != nil {
			sets, err = nil, fmt.Errorf("host-local's parser panicked: %v", p)
		}
	}()
	fields := make(map[string]any)
	if err := json.Unmarshal(c.raw, &fields); err != nil {
		return nil, err
	}
	fields["name"], fields["cniVersion"] = c.Name, c.CNIVersion
	conf, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	loaded, _, err := allocator.LoadIPAMConfig(conf, "")
	if err != nil {
		return nil, err
	}
	for _, set := range loaded.Ranges {
		var ranges iprange.Set
		for _, r := range set {
			ranges = append(ranges, iprange.Range{First: addr(r.RangeStart), Last: addr(r.RangeEnd), Gateway: addr(r.Gateway)})
		}
		sets = append(sets, ranges)
	}
	return sets, nil
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
