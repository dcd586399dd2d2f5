// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math/big"
	"net/netip"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A Range is a part of a subnet from which host-local hands out addresses: all from
// First to Last but the Gateway.
type Range struct{ First, Last, Gateway netip.Addr }

// A RangeSet is what a container gets one address of: one or several ranges. A network
// with addresses of both families has two.
type RangeSet []Range

// SetRanges says from which ranges the networks hand out addresses, by their names, and
// replaces what was said before. The package hostlocal/cniconf reads them from CNI
// configurations. Networks without ranges, as those that flannel sets at run time, have
// no metrics of them.
func (c *Collector) SetRanges(ranges map[string][]RangeSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges = make(map[string][]*rangeSet)
	for network, sets := range ranges {
		for _, set := range sets {
			s := &rangeSet{ranges: slices.Clone(set), size: set.size()}
			for _, ip := range c.reserved[network] {
				s.count(ip)
			}
			c.ranges[network] = append(c.ranges[network], s)
		}
	}
}

// A rangeSet is one with what is reserved of it.
type rangeSet struct {
	ranges   RangeSet
	size     float64
	reserved int
}

func (s *rangeSet) count(ip netip.Addr) {
	if slices.ContainsFunc(s.ranges, func(r Range) bool { return r.First.Compare(ip) <= 0 && ip.Compare(r.Last) <= 0 && ip != r.Gateway }) {
		s.reserved++
	}
}

// size is how many addresses a set has for containers. More than 2^53 are rounded.
func (s RangeSet) size() float64 {
	var all float64
	for _, r := range s {
		if !r.First.IsValid() || !r.Last.IsValid() || r.Last.Less(r.First) {
			continue
		}
		first, last := new(big.Int).SetBytes(r.First.AsSlice()), new(big.Int).SetBytes(r.Last.AsSlice())
		size, _ := last.Sub(last, first).Float64()
		all += size + 1
		if r.Gateway.IsValid() && r.First.Compare(r.Gateway) <= 0 && r.Gateway.Compare(r.Last) <= 0 {
			all--
		}
	}
	return all
}

// noteReserved counts what a pass found reserved, of each range set.
func (c *Collector) noteReserved(report *gc.Report) {
	c.reserved = make(map[string][]netip.Addr)
	for i := range report.Reservations {
		e := &report.Reservations[i]
		if e.Verdict != gc.Released && e.Verdict != gc.Gone {
			c.reserved[e.Network] = append(c.reserved[e.Network], e.IP)
		}
	}
	for network, sets := range c.ranges {
		for _, s := range sets {
			s.reserved = 0
			for _, ip := range c.reserved[network] {
				s.count(ip)
			}
		}
	}
}

// rangeMetrics adds those of all range sets, which are numbered as in the configuration.
func (c *Collector) rangeMetrics(add func(*prometheus.Desc, prometheus.ValueType, float64, ...string)) {
	for network, sets := range c.ranges {
		for i, s := range sets {
			add(c.descs.rangeAddresses, prometheus.GaugeValue, s.size, network, strconv.Itoa(i))
			if c.judged {
				add(c.descs.rangeReserved, prometheus.GaugeValue, float64(s.reserved), network, strconv.Itoa(i))
			}
		}
	}
}
