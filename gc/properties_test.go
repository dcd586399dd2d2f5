// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

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
	propIPs      = []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("fd00::2")}
	propIDs      = []string{fmt.Sprintf("%064x", 1), fmt.Sprintf("%064x", 2), fmt.Sprintf("%064x", 3), "default-" + fmt.Sprintf("%064x", 4), "free text"}
	// Ages around MinAge, L and StartingFor.
	propAges = []time.Duration{-time.Minute, 0, time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 7*time.Minute - 1, 7 * time.Minute,
		8 * time.Minute, 14 * time.Minute, 14*time.Minute + 1, 20 * time.Minute, 2 * time.Hour, 30 * time.Hour}
)

// judge does with a case what ask and pass do. It returns the entries, or an error if no
// answer counts. The case determines the number of looks; TestSecondLook tests when a pass
// takes two.
func (c *propCase) judge() ([]Entry, error) {
	_, entries, err := c.snapshot()
	return entries, err
}

func (c *propCase) snapshot() (*snapshot, []Entry, error) {
	opts, err := c.opts.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	r := &Reconciler{opts: opts, clock: c.clock}
	s := &snapshot{reservations: r.clock.sees(propNow, c.all), clock: &r.clock, at: propNow, opts: &opts, networks: c.networks, noADD: c.noADD}
	for _, answers := range c.looks {
		if err := r.check(answers, s.at, false); err != nil {
			return nil, nil, err
		}
		s.addLook(answers, propNow, propNow)
	}
	var report Report
	report.addLook(c.looks[len(c.looks)-1])
	report.write(s, decide(s), &hostlocal.ReleaseResult{})
	return s, report.Reservations, nil
}

// released reports whether a pass would release the reservation.
func released(e *Entry) bool { return e.Reason == Unowned || e.Reason == EmptyOwner }

func maybe(rnd *rand.Rand, one int) bool { return rnd.IntN(one) == 0 }

func someOf[T any](rnd *rand.Rand, one int, from []T) (some []T) {
	for _, x := range from {
		if maybe(rnd, one) {
			some = append(some, x)
		}
	}
	return some
}

func randomCase(rnd *rand.Rand) *propCase {
	c := &propCase{opts: Options{MinAge: oneOf(rnd, 0, 0, time.Second, time.Minute, 10*time.Minute)}, networks: propNetworks[:1+rnd.IntN(3)]}
	c.noADD = maybe(rnd, 8)
	if maybe(rnd, 8) {
		c.opts.AllowForeign = []string{oneOf(rnd, "default-", "free", "*")}
	}
	for _, network := range propNetworks[:1+rnd.IntN(3)] {
		for _, ip := range someOf(rnd, 2, propIPs) {
			r := hostlocal.Reservation{Network: network, IP: ip, ReservedAt: propNow.wall.Add(-oneOf(rnd, propAges...)), Owner: hostlocal.Owned}
			switch rnd.IntN(16) {
			case 0:
				r.Owner = hostlocal.Empty
			case 1:
				r.Owner = hostlocal.Malformed
			case 2:
				r.Owner = hostlocal.Unreadable
			default:
				r.ContainerID, r.IfName = oneOf(rnd, propIDs...), "eth0"
			}
			c.all = append(c.all, r)
		}
	}
	c.clock = randomClock(rnd, c.all)
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

// randomClock returns a clock with what a process may have seen before a pass.
func randomClock(rnd *rand.Rand, all []hostlocal.Reservation) clock {
	var c clock
	c.observe(reading{wall: propNow.wall.Add(-time.Hour), mono: propNow.mono - time.Hour, boot: propNow.boot - time.Hour})
	switch rnd.IntN(4) {
	case 0:
		c.steps.TrustedSince = propNow.wall.Add(-oneOf(rnd, propAges[1:]...))
	case 1:
		c.steps.Back = time.Hour
	}
	for i := range all {
		if maybe(rnd, 2) {
			c.files = append(c.files, sight[file]{fileOf(&all[i]), propNow.mono - oneOf(rnd, propAges[1:]...)})
		}
	}
	c.observe(propNow)
	return c
}

func randomAnswer(rnd *rand.Rand) (a podsource.Answer) {
	a.Pods = randomPods(rnd)
	a.Supplementary, a.Authoritative = maybe(rnd, 3), maybe(rnd, 2)
	if a.Networks = every; maybe(rnd, 3) {
		if a.Networks = someOf(rnd, 2, propNetworks); len(a.Networks) == 0 {
			a.Supplementary = true
		}
	}
	if maybe(rnd, 4) {
		a.AsOf = propNow.wall.Add(-oneOf(rnd, propAges[:10]...))
	}
	a.Names, a.AtOnce = oneOf(rnd, podsource.KubernetesPods, podsource.SandboxContainers, podsource.AnyContainer), maybe(rnd, 2)
	if maybe(rnd, 4) {
		a.Gaps = []podsource.Gap{{From: propNow.wall.Add(-oneOf(rnd, propAges...)), To: propNow.wall.Add(-oneOf(rnd, propAges...)), But: oneOf(rnd, 0, podsource.SandboxContainers)}}
	}
	a.SeesAddresses = maybe(rnd, 3)
	if maybe(rnd, 3) {
		a.SeesADDs = oneOf(rnd, every, propNetworks[:1])
	}
	if maybe(rnd, 4) {
		a.Cache = &podsource.Cache{}
		if maybe(rnd, 2) {
			a.Cache.Since = propNow.wall.Add(-oneOf(rnd, propAges...))
		}
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

func randomPod(rnd *rand.Rand) (p podsource.Pod) {
	if maybe(rnd, 2) {
		p.Namespace, p.Name = "default", oneOf(rnd, "web", "db")
	}
	if maybe(rnd, 3) {
		p.UID = oneOf[typesUID](rnd, "1", "2")
	}
	p.ContainerIDs, p.IPs = someOf(rnd, 5, propIDs), someOf(rnd, 5, propIPs)
	if maybe(rnd, 4) {
		p.Network = oneOf(rnd, propNetworks...)
	}
	p.MoreIPs, p.HostNetwork, p.Finished = maybe(rnd, 10), maybe(rnd, 10), maybe(rnd, 8)
	p.Unproven = maybe(rnd, 8)
	if maybe(rnd, 8) {
		p.FinishedAt = propNow.wall.Add(-oneOf(rnd, propAges...))
	}
	if maybe(rnd, 2) {
		p.StartedAt = propNow.wall.Add(-oneOf(rnd, propAges...))
	}
	if maybe(rnd, 3) {
		p.Origin = oneOf(rnd, "here", "there")
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

// keptThenReleased describes a reservation that a pass would keep before a change and
// release after it.
func keptThenReleased(before, after []Entry) string {
	for i := range before {
		if !released(&before[i]) && released(&after[i]) {
			return fmt.Sprintf("%s/%v of %q: %v before, %v after", before[i].Network, before[i].IP, before[i].ContainerID, before[i].Reason, after[i].Reason)
		}
	}
	return ""
}

// edit returns the case with one member changed in all looks.
func (c *propCase) edit(member int, change func(*podsource.Answer)) *propCase {
	d := c.clone()
	for i := range d.looks {
		change(&d.looks[i][member])
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
