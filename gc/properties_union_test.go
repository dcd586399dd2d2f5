// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

type typesUID = types.UID

// This file tests the four properties of Union (see its comment, and R2 to R14) with random
// passes in which each answer counts by R2 and R9.

// U1: adding an entry never turns a keep into a release. The exception is an entry of a member
// that sees ADDs, beside a cache: an ADD in flight explains why the cache has no record of the
// container yet, so the entry is part of the declaration.
func TestU1AddingAnEntry(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		member := rnd.IntN(len(c.looks[0]))
		pod := randomPod(rnd)
		if a := &c.looks[0][member]; a.SeesADDs != nil && slices.ContainsFunc(c.looks[0], func(a podsource.Answer) bool { return a.Cache != nil }) {
			pod.ContainerIDs = nil
		}
		look := rnd.IntN(len(c.looks) + 1) // one, or all
		d := c.clone()
		for i := range d.looks {
			if look == i || look == len(c.looks) {
				d.looks[i][member].Pods = append(slices.Clone(d.looks[i][member].Pods), pod)
			}
		}
		return compare(c, d, fmt.Sprintf("added to source%d: %+v", member, pod))
	})
}

// U1: nor does adding a member that declares nothing, and speaks only of networks and times
// of which the others speak.
func TestU1AddingAMember(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		a := podsource.Answer{Source: "another", Pods: randomPods(rnd)}
		if maybe(rnd, 2) {
			a.AsOf = propNow.wall.Add(-oneOf(rnd, propAges...))
		}
		a.Supplementary = maybe(rnd, 2)
		for _, o := range c.looks[0] {
			if o.Gaps == nil && o.Cache == nil {
				a.Networks = append(a.Networks, someOf(rnd, 2, o.Networks)...)
			}
		}
		a.Supplementary = a.Supplementary || len(a.Networks) == 0
		d := c.clone()
		place := rnd.IntN(len(d.looks[0]) + 1)
		for i := range d.looks {
			d.looks[i] = slices.Insert(d.looks[i], place, a)
		}
		return compare(c, d, fmt.Sprintf("added: %+v", a))
	})
}

func compare(c, d *propCase, what string) (bool, string) {
	before, err1 := c.judge()
	after, err2 := d.judge()
	if err1 != nil || err2 != nil {
		return false, ""
	}
	if wrong := keptThenReleased(before, after); wrong != "" {
		return true, wrong + "\n" + what
	}
	return true, ""
}

// declarations are the kinds of declarations that can be removed from an answer.
var declarations = []struct {
	name string
	// exists reports whether an answer has the declaration; remove removes it.
	exists func(a *podsource.Answer) bool
	remove func(a *podsource.Answer)
}{
	{"names", func(a *podsource.Answer) bool { return a.Names != 0 }, func(a *podsource.Answer) { a.Names = 0 }},
	{"at once", func(a *podsource.Answer) bool { return a.Names != 0 && a.AtOnce }, func(a *podsource.Answer) { a.AtOnce = false }},
	{"sees ADDs", func(a *podsource.Answer) bool { return a.SeesADDs != nil }, func(a *podsource.Answer) { a.SeesADDs = nil }},
	{"sees addresses", func(a *podsource.Answer) bool { return a.SeesAddresses }, func(a *podsource.Answer) { a.SeesAddresses = false }},
	{"cache", func(a *podsource.Answer) bool { return a.Cache != nil },
		func(a *podsource.Answer) { a.Names, a.Cache, a.Networks, a.Supplementary = 0, nil, nil, true }},
	{"authoritative", func(a *podsource.Answer) bool { return a.Authoritative }, func(a *podsource.Answer) { a.Authoritative = false }},
}

// U2: removing a declaration never turns a keep into a release. A declaration may only end a
// claim of R4, a foreign of R14, or the part of R5's default above MinAge, in its form and
// networks, and not by an answer from before the reservation was first seen.
//
// The check of caches makes an exception: with two sources that see addresses, the cache must
// explain those of both, so these cases have only one such source.
func TestU2TakingADeclarationAway(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		member := rnd.IntN(len(c.looks[0]))
		for i := range c.looks[0] {
			if i != member {
				for l := range c.looks {
					c.looks[l][i].SeesAddresses = c.looks[l][i].SeesAddresses && !c.looks[l][member].SeesAddresses
				}
			}
		}
		a := c.looks[0][member]
		declaration := declarations[rnd.IntN(len(declarations))]
		if !declaration.exists(&a) {
			return false, ""
		}
		d := c.edit(member, declaration.remove)
		with, err := c.judge()
		if err != nil {
			return false, ""
		}
		without, err := d.judge()
		if err != nil {
			return true, "" // R9: nothing is released
		}
		for i := range with {
			what := fmt.Sprintf("%s/%v of %q: %v with %s of source%d, %v without", with[i].Network, with[i].IP, with[i].ContainerID, with[i].Reason,
				declaration.name, member, without[i].Reason)
			switch wasReleased, isReleased := released(&with[i]), released(&without[i]); {
			case !wasReleased && isReleased:
				return true, what
			case wasReleased && !isReleased:
				if wrong := c.endsTooMuch(&a, declaration.name, &without[i]); wrong != "" {
					return true, what + ": " + wrong
				}
			}
		}
		return true, ""
	})
}

// U2: a declaration counts only if it is made in every look (R5).
func TestU2InOneLookOnly(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		member, declaration := rnd.IntN(len(c.looks[0])), declarations[rnd.IntN(len(declarations))]
		if len(c.looks) < 2 || !declaration.exists(&c.looks[0][member]) {
			return false, ""
		}
		c.looks[1] = slices.Clone(c.looks[0]) // the entries alike
		d := c.clone()
		declaration.remove(&d.looks[rnd.IntN(2)][member])
		inOne, err1 := d.judge()
		inNone, err2 := c.edit(member, declaration.remove).judge()
		if err1 != nil || err2 != nil {
			return false, ""
		}
		if wrong := keptThenReleased(inNone, inOne); wrong != "" {
			return true, fmt.Sprintf("without %s of source%d, and with it in one look: %s", declaration.name, member, wrong)
		}
		return true, ""
	})
}

// A release with a minimum age below L, or because a source sees ADDs, takes two looks (R4,
// R5).
func TestOneLook(t *testing.T) {
	forCases(t, func(_ *rand.Rand, c *propCase) (bool, string) {
		c.looks = c.looks[:1]
		cache := slices.ContainsFunc(c.looks[0], func(a podsource.Answer) bool { return a.Cache != nil })
		d := c.clone()
		d.opts.MinAge = max(c.opts.MinAge, DefaultMinAge)
		for i := range d.looks[0] {
			if !cache { // an ADD explains a missing entry of a cache
				d.looks[0][i].SeesADDs = nil
			}
		}
		one, err := c.judge()
		if err != nil {
			return false, ""
		}
		strict, _ := d.judge()
		return true, keptThenReleased(strict, one)
	})
}

// endsTooMuch says what is wrong if a declaration leads to the release of a reservation that
// is kept without it.
func (c *propCase) endsTooMuch(a *podsource.Answer, declaration string, kept *Entry) string {
	opts, _ := c.opts.withDefaults()
	at := propNow
	if !a.AsOf.IsZero() {
		at.mono -= max(0, propNow.wall.Sub(a.AsOf))
	}
	switch kept.Verdict {
	case Starting, Foreign:
	case Young:
		age, _ := c.clock.age(propNow, c.candidate(kept))
		if age < opts.MinAge && !c.noADD && !c.doubted(kept.Reservation) {
			return "it is younger than the minimum age that was set"
		}
	default:
		return "it was not starting, foreign or young"
	}
	asserted := c.noADD && kept.ReservedAt.Before(a.AsOf)
	if kept.Verdict != Foreign && !asserted && at.mono < c.candidate(kept).seen {
		return "the answer is from before it was first seen"
	}
	if declaration == "names" && (a.Cache == nil && !podsource.Covers(a.Networks, kept.Network) || !a.Names.Has(kept.ContainerID)) {
		return "it is not of that network and kind"
	}
	return ""
}

// candidate returns what the clock of the case knows of a reservation.
func (c *propCase) candidate(e *Entry) *candidate {
	seen := c.clock // see forgets other files
	return &seen.sees(propNow, []hostlocal.Reservation{*e.Reservation})[0]
}

// doubted reports whether a reservation's time is doubted for the boot, and for nothing else.
func (c *propCase) doubted(r *hostlocal.Reservation) bool {
	return c.clock.sinceSteps(propNow, r.ReservedAt) && !c.clock.trusted(propNow, r.ReservedAt)
}

// U3: a reservation that R3, R10 or MinAge keeps by one member's entries alone stays kept,
// whatever the other members list and declare.
func TestU3OneMemberAlone(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		c.noADD = false // it waives the minimum age
		member := rnd.IntN(len(c.looks[0]))
		alone := c.clone()
		for i := range alone.looks {
			alone.looks[i] = c.looks[i][member : member+1]
		}
		one, err1 := alone.judge()
		all, err2 := c.judge()
		if err1 != nil || err2 != nil {
			return false, ""
		}
		opts, _ := c.opts.withDefaults()
		for i := range one {
			age, _ := c.clock.age(propNow, c.candidate(&one[i]))
			switch rule := one[i].Reason.Rule(); {
			case !released(&all[i]):
			case rule == "R3" && !released(&one[i]), rule == "R10", rule == "R5" && age < opts.MinAge && !c.doubted(one[i].Reservation):
				return true, fmt.Sprintf("%s/%v of %q: %v with source%d alone, %v with all", one[i].Network, one[i].IP, one[i].ContainerID, one[i].Reason, member, all[i].Reason)
			}
		}
		return true, ""
	})
}

// U4: the order of members changes no verdict.
func TestU4OrderOfMembers(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		d := c.clone()
		order := rnd.Perm(len(c.looks[0]))
		for i := range d.looks {
			d.looks[i] = nil
			for _, from := range order {
				d.looks[i] = append(d.looks[i], c.looks[i][from])
			}
		}
		return same(c, d, fmt.Sprintf("in the order %v", order))
	})
}

// U4: a member or an entry that is there twice changes no verdict.
func TestU4Duplicates(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		d := c.clone()
		member := rnd.IntN(len(c.looks[0]))
		if maybe(rnd, 2) {
			for i := range d.looks {
				d.looks[i] = append(d.looks[i], d.looks[i][member])
			}
			return same(c, d, fmt.Sprintf("with source%d twice", member))
		}
		return same(c, c.edit(member, func(a *podsource.Answer) {
			if len(a.Pods) > 0 {
				a.Pods = append(slices.Clone(a.Pods), a.Pods[rnd.IntN(len(a.Pods))])
			}
		}), fmt.Sprintf("with an entry of source%d twice", member))
	})
}

func same(c, d *propCase, what string) (bool, string) {
	before, err1 := c.judge()
	after, err2 := d.judge()
	if (err1 == nil) != (err2 == nil) {
		return true, fmt.Sprintf("%v before, %v %s", err1, err2, what)
	}
	for i := range before {
		if before[i].Verdict != after[i].Verdict || before[i].Reason != after[i].Reason {
			return true, fmt.Sprintf("%s/%v of %q: %v, and %s %v", before[i].Network, before[i].IP, before[i].ContainerID, before[i].Reason, what, after[i].Reason)
		}
	}
	return err1 == nil, ""
}

// A pass takes a second look if two looks release a reservation that one look does not (R5).
func TestSecondLook(t *testing.T) {
	forCases(t, func(_ *rand.Rand, c *propCase) (bool, string) {
		c.looks = c.looks[:1]
		s, one, err := c.snapshot()
		if err != nil {
			return false, ""
		}
		c.looks = [][]podsource.Answer{c.looks[0], c.looks[0]}
		two, err := c.judge()
		if wrong := keptThenReleased(one, two); wrong != "" && !s.wantsSecondLook() {
			return true, "with a second look, which a pass would not take: " + wrong
		}
		return err == nil, ""
	})
}
