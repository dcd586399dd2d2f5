// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// A config is what of a network configuration counts here. It is that of the main
// plugin, which passes its own on to its IPAM plugin:
//
//	{"name": "podnet", "type": "bridge",
//	 "ipam": {"type": "hostlocal-gc-ipam", "ranges": […], "gc": {"cacheDirs": ["/data/cni/results"]}}}
type config struct {
	network   string
	plugin    string // the main plugin
	dataDir   string
	cacheDirs []string
	nested    bool
}

// knownCacheDirs are directories in which libcni keeps results: its own, which
// containerd, CRI-O and all who use go-cni leave as it is, and that of Multus.
var knownCacheDirs = []string{cnicache.DefaultDir, "/var/lib/cni/multus/results"}

// addressing are the main plugins that configure the addresses which IPAM gave them
// in the container's network namespace. A container of these shows its address as long
// as it lives, or an interface without any (netns, Options.Networks).
var addressing = []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan"}

// addresses reports whether the main plugin is one of these.
func (c *config) addresses() bool { return slices.Contains(addressing, c.plugin) }

// parseConfig reads a configuration that host-local has accepted. What does not
// belong into "gc" is an error: a directory that is not read could cost a container
// its address.
func parseConfig(text []byte) (*config, error) {
	var whole struct {
		Name string `json:"name"`
		Type string `json:"type"`
		IPAM struct {
			DataDir string          `json:"dataDir"`
			GC      json.RawMessage `json:"gc"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, fmt.Errorf("reading the network configuration: %w", err)
	}
	var own struct {
		CacheDirs []string `json:"cacheDirs"`
		Nested    bool     `json:"nested"`
	}
	if whole.IPAM.GC != nil {
		d := json.NewDecoder(bytes.NewReader(whole.IPAM.GC))
		d.DisallowUnknownFields()
		if err := d.Decode(&own); err != nil {
			return nil, fmt.Errorf(`reading "gc" in the "ipam" of network %s (it may have "cacheDirs" and "nested"): %w`, whole.Name, err)
		}
	}
	if !hostlocal.ValidNetwork(whole.Name) {
		return nil, fmt.Errorf("reading the network configuration: %q is not the name of a CNI network", whole.Name)
	}
	c := &config{network: whole.Name, plugin: whole.Type, dataDir: whole.IPAM.DataDir, nested: own.Nested, cacheDirs: slices.Clone(knownCacheDirs)}
	if c.dataDir == "" {
		c.dataDir = hostlocal.DefaultDataDir
	}
	for _, dir := range own.CacheDirs {
		if !slices.Contains(c.cacheDirs, dir) {
			c.cacheDirs = append(c.cacheDirs, dir)
		}
	}
	return c, nil
}
