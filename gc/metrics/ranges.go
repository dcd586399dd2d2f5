// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// SetRanges sets the ranges from which the networks hand out addresses, by network name. It
// replaces those of an earlier call. The package hostlocal/cniconf reads ranges from CNI
// configurations. Networks without ranges, such as those that flannel sets at run time,
// have no metrics of ranges.
func (c *Collector) SetRanges(ranges map[string][]iprange.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges = make(map[string][]*rangeSet)
	for network, sets := range ranges {
		for _, set := range sets {
			s := &rangeSet{ranges: slices.Clone(set), size: set.Size()}
			s.count(c.reserved[network])
			c.ranges[network] = append(c.ranges[network], s)
		}
	}
}

// A rangeSet is a range set with the number of its reserved addresses.
type rangeSet struct {
	ranges   iprange.Set
	size     float64
	reserved int
}

func (s *rangeSet) count(ips []netip.Addr) {
	s.reserved = 0
	for _, ip := range ips {
		if s.ranges.Has(ip) {
			s.reserved++
		}
	}
}

// noteReserved counts the addresses of each range set that a pass found reserved.
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
			s.count(c.reserved[network])
		}
	}
}

// rangeMetrics adds the metrics of all range sets, which have the same numbers as in the
// configuration.
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
