// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What TestCases, which is in another package, needs of this one.
var (
	InBubble      = inBubble
	NewReconciler = newReconciler
	// Declared makes an answer of each kind of source, without what a script adds.
	Declared = map[string]func() podsource.Answer{
		"plain":   func() podsource.Answer { return podsource.Answer{Source: "plain", Networks: every} },
		"kubelet": func() podsource.Answer { return kubeletAnswer() }, "cri": func() podsource.Answer { return criAnswer() },
		"netns": func() podsource.Answer { return netnsAnswer() }, "cache": func() podsource.Answer { return cacheAnswer(nil) },
		"record": func() podsource.Answer { return recordAnswer([]string{network1}) },
	}
)

// Clocks are the clocks of a node.
type Clocks = clocks

func NewClocks() *clocks { return &clocks{uptime: 30 * 24 * time.Hour} }

func (c *clocks) Wall() time.Time       { return c.wall() }
func (c *clocks) Step(by time.Duration) { c.step += by }
func (c *clocks) Boot(uptime time.Duration) {
	*c = clocks{base: time.Now(), step: c.step, uptime: uptime, noBoot: uptime == 0}
}

// ChangeList makes a reconciler call begin before it lists reservations, and change with each of them.
func ChangeList(r *Reconciler, begin func(), change func(*hostlocal.Reservation)) {
	r.disk = changedDisk{r.disk, begin, change}
}

type changedDisk struct {
	dataDir
	begin  func()
	change func(*hostlocal.Reservation)
}

func (d changedDisk) List(ctx context.Context) (hostlocal.Listing, error) {
	d.begin()
	list, err := d.dataDir.List(ctx)
	for i := range list.Reservations {
		d.change(&list.Reservations[i])
	}
	return list, err
}
