// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

const (
	network = "podnet"
	ifName  = "eth0"
	subnet4 = "10.244.1.0/24"
	subnet6 = "fd00:10:244:1::/64"
)

// reserve reserves the addresses of all pods with host-local's code, and dates them back to the
// pods' ADDs.
func reserve(ctx context.Context, dataDir string, now time.Time) (_ []attachment, err error) {
	// From here to Get this does the same as the plugin's ADD.
	plugin, err := disk.New(network, dataDir)
	if err != nil {
		return nil, fmt.Errorf("opening host-local's store: %w", err)
	}
	defer func() { err = errors.Join(err, plugin.Close()) }()
	var ranges []*allocator.IPAllocator
	for i, subnet := range []string{subnet4, subnet6} {
		set, err := rangeSet(subnet)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, allocator.NewIPAllocator(set, plugin, i))
	}

	var attachments []attachment
	for i := range pods {
		p := &pods[i]
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("reserving addresses: %w", err)
		}
		a := attachment{pod: p, containerID: containerID(p, p.age.String())}
		families := ranges[:1]
		if p.dual {
			families = ranges
		}
		for _, r := range families {
			got, err := r.Get(a.containerID, ifName, nil)
			if err != nil {
				return nil, fmt.Errorf("reserving an address for %s: %w", p.key(), err)
			}
			ip, _ := netip.AddrFromSlice(got.Address.IP)
			a.ips = append(a.ips, ip.Unmap())
			if err := pass(p, fileOf(dataDir, ip.Unmap()), now); err != nil {
				return nil, err
			}
		}
		attachments = append(attachments, a)
	}
	return attachments, nil
}

// pass dates a reservation back, and simulates the power failure.
func pass(p *pod, file string, now time.Time) error {
	if p.powerLoss {
		// host-local creates the file first and writes it later, without fsync.
		if err := os.Truncate(file, 0); err != nil {
			return err
		}
	}
	at := now.Add(-p.age)
	return os.Chtimes(file, at, at)
}

func rangeSet(subnet string) (*allocator.RangeSet, error) {
	_, ipNet, err := net.ParseCIDR(subnet)
	if err != nil {
		return nil, err
	}
	set := &allocator.RangeSet{{Subnet: cnitypes.IPNet(*ipNet)}}
	if err := set.Canonicalize(); err != nil {
		return nil, fmt.Errorf("range %s: %w", subnet, err)
	}
	return set, nil
}

// containerID makes up a sandbox ID, the same in every run.
func containerID(p *pod, salt string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(p.key().String()+" "+salt)))
}

// fileOf returns the file of a reservation, with the plugin's naming.
func fileOf(dataDir string, ip netip.Addr) string {
	return disk.GetEscapedPath(filepath.Join(dataDir, network), ip.String())
}
