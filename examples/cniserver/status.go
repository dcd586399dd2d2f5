// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/big"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
)

// notAvailable is the code of a STATUS error if no ADD can be served
// (SPEC.md of CNI 1.1, section 5, "Error").
const notAvailable = 50

// status asks the delegate, and returns an error if a range set has no free address, since
// the next ADD would fail.
func (s *server) status(ctx context.Context, r *request, d *delegation) error {
	if _, err := s.delegate(ctx, "STATUS", r, d); err != nil {
		return err
	}
	conf, _, err := allocator.LoadIPAMConfig(d.config, "")
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "reading the ranges", err.Error())
	}
	reserved, err := s.store.List(ctx)
	if err != nil {
		return err
	}
	for i, set := range conf.Ranges {
		used := new(big.Int)
		for _, res := range reserved.Reservations {
			if res.Network == d.network && set.Contains(res.IP.AsSlice()) {
				used.Add(used, big.NewInt(1))
			}
		}
		if used.Cmp(capacity(set)) >= 0 {
			s.loop.Trigger()
			return types.NewError(notAvailable, fmt.Sprintf("network %s has no IP addresses available in range set %d", d.network, i),
				fmt.Sprintf("%v of %v are reserved in %s", used, capacity(set), set.String()))
		}
	}
	return nil
}

// capacity is the number of addresses in a range set without the gateways, which host-local
// reserves for no container.
func capacity(set allocator.RangeSet) *big.Int {
	sum := new(big.Int)
	for _, r := range set {
		first, last := toInt(r.RangeStart), toInt(r.RangeEnd)
		sum.Add(sum, last.Sub(last, first))
		if !r.Contains(r.Gateway) {
			sum.Add(sum, big.NewInt(1))
		}
	}
	return sum
}

func toInt(ip net.IP) *big.Int { return new(big.Int).SetBytes(ip.To16()) }
