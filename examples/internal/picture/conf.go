// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
)

// A Conf is what a CNI configuration says of a network that host-local serves.
type Conf struct {
	Network string
	DataDir string // "" for host-local's own default
	Ranges  []Range
}

// ReadConf reads a network configuration (.conf) or a list of plugins
// (.conflist). The ranges are read by the plugin's own code, so they are what
// the plugin hands out from.
func ReadConf(path string) (Conf, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Conf{}, fmt.Errorf("reading the CNI configuration: %w", err)
	}
	conf, err := parseConf(text)
	if err != nil {
		return Conf{}, fmt.Errorf("CNI configuration %s: %w", path, err)
	}
	return conf, nil
}

func parseConf(text []byte) (Conf, error) {
	var list struct {
		Name    json.RawMessage              `json:"name"`
		Version json.RawMessage              `json:"cniVersion"`
		Plugins []map[string]json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return Conf{}, err
	}
	if list.Plugins == nil {
		return parsePlugin(text)
	}
	var all Conf
	for i, plugin := range list.Plugins {
		if !usesHostLocal(plugin) {
			continue
		}
		// A runtime hands the list's name and version on to each plugin.
		plugin["name"], plugin["cniVersion"] = list.Name, list.Version
		text, err := json.Marshal(plugin)
		if err != nil {
			return Conf{}, fmt.Errorf("plugin %d: %w", i+1, err)
		}
		conf, err := parsePlugin(text)
		if err != nil {
			return Conf{}, fmt.Errorf("plugin %d: %w", i+1, err)
		}
		conf.Ranges = append(all.Ranges, conf.Ranges...)
		all = conf
	}
	if all.Ranges == nil {
		return Conf{}, errors.New("none of its plugins has host-local as its IPAM")
	}
	return all, nil
}

func usesHostLocal(plugin map[string]json.RawMessage) bool {
	var ipam struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(plugin["ipam"], &ipam) == nil && ipam.Type == "host-local"
}

func parsePlugin(text []byte) (Conf, error) {
	ipam, _, err := allocator.LoadIPAMConfig(text, "")
	if err != nil {
		return Conf{}, err
	}
	if ipam.Type != "host-local" {
		return Conf{}, fmt.Errorf("its IPAM is %q, not host-local", ipam.Type)
	}
	if ipam.Name == "" {
		return Conf{}, errors.New("it has no name")
	}
	conf := Conf{Network: ipam.Name, DataDir: ipam.DataDir}
	for _, set := range ipam.Ranges {
		for _, r := range set {
			conf.Ranges = append(conf.Ranges, Range{First: addr(r.RangeStart), Last: addr(r.RangeEnd), Gateway: addr(r.Gateway)})
		}
	}
	return conf, nil
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
