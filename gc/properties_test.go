// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var (
	propCases = flag.Uint64("prop.cases", 0, "how many random cases each property of Union is checked with; 0: 25,000, with -short 5,000")
	propFirst = flag.Uint64("prop.first", 0, "the first of them")
)

// A propCase is a random pass: the reservations, the answers in each look, and what the
// process has seen before.
type propCase struct {
	all      []hostlocal.Reservation
	looks    [][]podsource.Answer // one or two
	clock    clock
	opts     Options
	networks []string
	noADD    bool
}

var propNow = reading{wall: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), mono: 20 * time.Hour, boot: 24 * time.Hour}

var (
	propNetworks = []string{"a", "b", "c"}
	propIPs      = ips("10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::2")
	propIDs      = []string{hex64("1"), hex64("2"), hex64("3"), "default-" + hex64("4"), "free text"}
	// Ages around MinAge, L and StartingFor.
	propAges = []time.Duration{-time.Minute, 0, time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 7*time.Minute - 1,
		7 * time.Minute, 8 * time.Minute, 14 * time.Minute, 14*time.Minute + 1, 20 * time.Minute, 2 * time.Hour, 30 * time.Hour}
)

// judge does with a case what ask does, whose second look is like the only one of the case. It
// returns nil if an answer does not count.
func (c *propCase) judge() (decisions []decision) {
	s := c.snapshot()
	if s == nil {
		return nil
	}
	if decisions, _ = decide(s); decisions == nil {
		s.addLook(c.looks[0], propNow, propNow)
		decisions, _ = decide(s)
	}
	return decisions
}

func (c *propCase) snapshot() *snapshot {
	r := &Reconciler{opts: c.opts, clock: c.clock}
	s := &snapshot{clock: &r.clock, at: propNow, opts: &c.opts, networks: c.networks, noADD: c.noADD}
	s.reservations = r.clock.sees(propNow, c.all)
	for _, answers := range c.looks {
		if err := r.check(answers, s.at, false); err != nil {
			return nil
		}
		s.addLook(answers, propNow, propNow)
	}
	return s
}

// differs describes a reservation about which two decisions may not differ.
func (c *propCase) differs(before, after []decision, wrong func(before, after decision) bool) string {
	for i := range before {
		if r := &c.all[i]; after != nil && wrong(before[i], after[i]) {
			return fmt.Sprintf("%s/%v of %q: %v before, %v after", r.Network, r.IP, r.ContainerID, before[i].reason, after[i].reason)
		}
	}
	return ""
}

func keptThenReleased(before, after decision) bool {
	return !leaked(before.reason) && leaked(after.reason)
}

// edit returns the case with one member changed in all looks, or nil if it stays as it is.
func (c *propCase) edit(member int, change func(*podsource.Answer) bool) *propCase {
	d := c.clone()
	for i := range d.looks {
		if !change(&d.looks[i][member]) {
			return nil
		}
	}
	return d
}

// clone returns a copy whose answers can be changed, but not the slices in them.
func (c *propCase) clone() *propCase {
	d := *c
	d.looks = make([][]podsource.Answer, len(c.looks))
	for i := range d.looks {
		d.looks[i] = slices.Clone(c.looks[i])
	}
	return &d
}

func oneOf[T any](rnd *rand.Rand, values ...T) T { return values[rnd.IntN(len(values))] }

func maybe(rnd *rand.Rand, one int) bool { return rnd.IntN(one) == 0 }

func someOf[T any](rnd *rand.Rand, one int, from []T) []T {
	return slices.DeleteFunc(slices.Clone(from), func(T) bool { return !maybe(rnd, one) })
}

// someTime returns a time around those that matter.
func someTime(rnd *rand.Rand) time.Time { return propNow.wall.Add(-oneOf(rnd, propAges...)) }

func randomCase(rnd *rand.Rand) *propCase {
	c := &propCase{networks: propNetworks[:1+rnd.IntN(3)], noADD: maybe(rnd, 8)}
	c.opts, _ = Options{MinAge: oneOf(rnd, 0, 0, time.Second, time.Minute, 10*time.Minute)}.WithDefaults()
	if maybe(rnd, 8) {
		c.opts.AllowForeign = []string{oneOf(rnd, "default-", "free", "*")}
	}
	for _, network := range propNetworks[:1+rnd.IntN(3)] {
		for _, ip := range someOf(rnd, 2, propIPs) {
			r := hostlocal.Reservation{Network: network, IP: ip, ReservedAt: someTime(rnd), Owner: hostlocal.Owned}
			if r.ContainerID, r.IfName = oneOf(rnd, propIDs...), "eth0"; maybe(rnd, 5) {
				r.Owner, r.ContainerID, r.IfName = oneOf(rnd, hostlocal.Empty, hostlocal.Malformed, hostlocal.Unreadable), "", ""
			}
			c.all = append(c.all, r)
		}
	}
	// The clock has what a process may have seen before a pass.
	c.clock.observe(reading{wall: propNow.wall.Add(-time.Hour), mono: propNow.mono - time.Hour, boot: propNow.boot - time.Hour})
	c.clock.steps.Back = oneOf(rnd, 0, 0, 0, time.Hour)
	c.clock.steps.TrustedSince = oneOf(rnd, time.Time{}, time.Time{}, time.Time{}, propNow.wall.Add(-oneOf(rnd, propAges[1:]...)))
	for i := range c.all {
		if maybe(rnd, 2) {
			c.clock.files = append(c.clock.files, candidate{&c.all[i], propNow.mono - oneOf(rnd, propAges[1:]...)})
		}
	}
	c.clock.observe(propNow)
	c.looks = make([][]podsource.Answer, 1+rnd.IntN(2))
	for i := range 1 + rnd.IntN(4) {
		a := randomAnswer(rnd)
		a.Source = fmt.Sprintf("source%d", i)
		for l := range c.looks {
			if l > 0 && maybe(rnd, 4) { // other entries, the same declarations
				a.Pods = slices.Concat(someOf(rnd, 2, a.Pods), randomPods(rnd))
			}
			c.looks[l] = append(c.looks[l], a)
		}
	}
	return c
}

func randomAnswer(rnd *rand.Rand) podsource.Answer {
	a := podsource.Answer{
		Pods: randomPods(rnd), Networks: every, Supplementary: maybe(rnd, 3), Authoritative: maybe(rnd, 2), SeesAddresses: maybe(rnd, 3),
		Names: oneOf(rnd, podsource.KubernetesPods, podsource.SandboxContainers, podsource.AnyContainer), AtOnce: maybe(rnd, 2),
	}
	if maybe(rnd, 3) {
		a.Networks = someOf(rnd, 2, propNetworks)
		a.Supplementary = a.Supplementary || len(a.Networks) == 0
	}
	if maybe(rnd, 4) {
		a.AsOf = propNow.wall.Add(-oneOf(rnd, propAges[:10]...))
	}
	if maybe(rnd, 4) {
		a.Gaps = []podsource.Gap{{From: someTime(rnd), To: someTime(rnd), But: oneOf(rnd, 0, podsource.SandboxContainers)}}
	}
	if maybe(rnd, 3) {
		a.SeesADDs = oneOf(rnd, every, propNetworks[:1])
	}
	if maybe(rnd, 4) {
		a.Cache = &podsource.Cache{Since: map[string]time.Time{propNetworks[0]: someTime(rnd), oneOf(rnd, propNetworks...): someTime(rnd)}}
		for _, id := range someOf(rnd, 2, propIDs) {
			for _, network := range someOf(rnd, 2, propNetworks) {
				a.Cache.Entries = append(a.Cache.Entries, podsource.Attachment{Network: network, ContainerID: id})
				if maybe(rnd, 3) {
					a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{id}, Unproven: true})
				}
			}
		}
	}
	return a
}

func randomPods(rnd *rand.Rand) (pods []podsource.Pod) {
	for range rnd.IntN(4) {
		pods = append(pods, randomPod(rnd))
	}
	return pods
}

func randomPod(rnd *rand.Rand) podsource.Pod {
	p := podsource.Pod{
		UID: oneOf[types.UID](rnd, "", "", "", "", "1", "2"), ContainerIDs: someOf(rnd, 5, propIDs), IPs: someOf(rnd, 5, propIPs),
		MoreIPs: maybe(rnd, 10), HostNetwork: maybe(rnd, 10), Finished: maybe(rnd, 8), Unproven: maybe(rnd, 8),
		StartedAt: oneOf(rnd, time.Time{}, someTime(rnd)), Origin: oneOf(rnd, "", "", "here", "there"),
	}
	if maybe(rnd, 2) {
		p.NamespacedName = named(oneOf(rnd, "web", "db"))
	}
	if maybe(rnd, 4) {
		p.Network = oneOf(rnd, propNetworks...)
	}
	if maybe(rnd, 8) {
		p.FinishedAt = someTime(rnd)
	}
	return p
}

// forCases calls check with random cases. It fails with the first case that check finds
// wrong, and if fewer than a twentieth of the cases count.
func forCases(t *testing.T, check func(*rand.Rand, *propCase) (counts bool, wrong string)) {
	t.Parallel()
	counted, cases := 0, orUsual(*propCases, 25_000, 5_000)
	for seed := *propFirst; seed < *propFirst+cases; seed++ {
		rnd := rand.New(rand.NewPCG(seed, 3))
		c := randomCase(rnd)
		counts, wrong := check(rnd, c)
		if wrong != "" {
			t.Fatalf("case %d: %s\nreservations: %+v\nlooks: %+v\noptions: %+v, networks %v, asserted: %t",
				seed, wrong, c.all, c.looks, c.opts, c.networks, c.noADD)
		}
		if counts {
			counted++
		}
	}
	if counted < int(cases/20) {
		t.Errorf("only %d of %d cases count", counted, cases)
	}
}

// orUsual returns the number of random cases of a test: that of its flag, or else the usual
// one or that of -short.
func orUsual(asked, usual, short uint64) uint64 {
	switch {
	case asked > 0:
		return asked
	case testing.Short():
		return short
	}
	return usual
}
