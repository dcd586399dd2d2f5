// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A Collector turns reports into metrics. It is a [prometheus.Collector], made by
// [New]. Its methods may be called from several goroutines.
type Collector struct {
	descs descs

	mu       sync.Mutex // guards networks and all in it
	networks map[string]*network
}

// New returns a Collector. The networks that are named have their counters from
// here on, at zero, so that Prometheus sees the first increase; those that are
// not get them with their first report.
//
// Networks are told apart by their names only. For data dirs that hold networks
// of the same name make a Collector each, and register it with a label more
// ([prometheus.WrapRegistererWith]).
func New(networks ...string) *Collector {
	c := &Collector{descs: newDescs(), networks: make(map[string]*network)}
	for _, name := range networks {
		c.network(name)
	}
	return c
}

// OnReport takes what a pass returned. It is made to be [gc.Options].OnReport,
// keeps nothing of the report, and never waits for a scrape.
//
// A report without a network is of a pass that never began, because it gave up
// waiting for another one, say. It is ignored.
func (c *Collector) OnReport(report gc.Report, err error) {
	if report.Network == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.network(report.Network).note(&report, err)
}

// network returns the numbers of the network with that name. It needs c.mu,
// except in New.
func (c *Collector) network(name string) *network {
	name = strings.ToValidUTF8(name, "\uFFFD") // a label must be UTF-8; what hostlocal.New accepts is ASCII
	n, ok := c.networks[name]
	if !ok {
		n = newNetwork()
		c.networks[name] = n
	}
	return n
}

// Describe sends the descriptions of all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs.all() {
		ch <- d
	}
}

// Collect sends the metrics of all networks, as they are at one moment.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	// Whoever reads ch may be slow, and a pass must not wait for that.
	for _, m := range c.snapshot() {
		ch <- m
	}
}

func (c *Collector) snapshot() (all []prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.networks {
		all = append(all, n.metrics(&c.descs, name)...)
	}
	return all
}
