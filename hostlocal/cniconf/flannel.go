// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// flannel returns the ranges that the plugin flannel gives host-local: a set for each subnet in the
// file of flannel's daemon (flannel-io/cni-plugin at 6f13a99, flannel.go loadFlannelSubnetEnv,
// flannel_linux.go getDelegateIPAM). If that can't be read, the ranges beside the error are those of
// the newest configuration that the plugin passed on and keeps for the DEL (delegateAdd).
func (c *config) flannel() ([]iprange.Set, error) {
	subnetFile, _ := c.SubnetFile.(string)
	text, err := readRegular(cmp.Or(subnetFile, "/run/flannel/subnet.env"))
	if err != nil {
		dataDir, _ := c.DataDir.(string)
		return c.passedOn(cmp.Or(dataDir, "/var/lib/cni/flannel")), fmt.Errorf("the range of flannel: %w", err)
	}
	var ranges []any
	for _, key := range []string{"FLANNEL_SUBNET=", "FLANNEL_IPV6_SUBNET="} {
		for line := range strings.Lines(string(text)) {
			value, found := strings.CutPrefix(line, key)
			if !found {
				continue
			}
			subnet, err := netip.ParsePrefix(strings.TrimSpace(value))
			if err != nil {
				return nil, fmt.Errorf("the range of flannel: %s%w", key, err)
			}
			ranges = append(ranges, []any{map[string]any{"subnet": subnet.Masked()}})
		}
	}
	ipam := map[string]any{"type": "host-local", "ranges": ranges}
	raw, err := json.Marshal(map[string]any{"type": "bridge", "ipam": ipam})
	if err != nil {
		return nil, err
	}
	// Versions before 0.3.0 allow one address of a family, and flannel's plugin has one of each.
	delegate := &config{Name: c.Name, CNIVersion: "0.3.1", raw: raw}
	return delegate.ranges()
}

// passedOn returns the ranges in the newest of flannel's files in dir, or nil.
func (c *config) passedOn(dir string) (ranges []iprange.Set) {
	entries, _ := os.ReadDir(dir) // without it the ranges are unknown
	var newest time.Time
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.ModTime().After(newest) {
			continue
		}
		text, err := readRegular(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		networks, _ := Parse(text) // another program's file has none
		for _, n := range networks {
			if n.Name == c.Name && n.Ranges != nil {
				newest, ranges = info.ModTime(), n.Ranges
			}
		}
	}
	return ranges
}
