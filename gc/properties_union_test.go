// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the four properties of Union (see its comment, and R2 to R14) with random
// passes in which each answer counts by R2 and R9.

// U1: adding an entry never turns a keep into a release, nor does adding a member that declares
// nothing, and speaks only of networks and times of which the others speak. The exception is an
// entry of a member that sees ADDs, beside a cache: an ADD in flight explains why the cache has
// no record of the container yet, so the entry is part of the declaration.
func TestU1Adding(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		d, member, pod := c.clone(), rnd.IntN(len(c.looks[0])), randomPod(rnd)
		another := podsource.Answer{Source: "another", Pods: randomPods(rnd), AsOf: oneOf(rnd, c.looks[0][member].AsOf, someTime(rnd))}
		cache := false
		for _, a := range c.looks[0] {
			cache = cache || a.Cache != nil
			if a.Gaps == nil && a.Cache == nil {
				another.Networks = append(another.Networks, someOf(rnd, 2, a.Networks)...)
			}
		}
		another.Supplementary = maybe(rnd, 2) || len(another.Networks) == 0
		if cache && c.looks[0][member].SeesADDs != nil {
			pod.ContainerIDs = nil
		}
		look := rnd.IntN(len(c.looks) + 1) // one, or all
		place := rnd.IntN(len(c.looks[0]) + 1)
		for i := range d.looks {
			if look == i || look == len(c.looks) {
				d.looks[i][member].Pods = append(slices.Clone(d.looks[i][member].Pods), pod)
			}
			d.looks[i] = slices.Insert(d.looks[i], place, another)
		}
		before, after := c.judge(), d.judge()
		if wrong := c.differs(before, after, keptThenReleased); wrong != "" {
			return true, fmt.Sprintf("%s\nin source%d: %+v\nadded: %+v", wrong, member, pod, another)
		}
		return before != nil && after != nil, ""
	})
}

// A takeable declaration can be taken away from an answer that has it.
type takeable struct {
	name string
	take func(a *podsource.Answer) bool
}

var declarations = []takeable{
	{"names", func(a *podsource.Answer) bool { return take(&a.Names) }},
	{"at once", func(a *podsource.Answer) bool { return a.Names != 0 && take(&a.AtOnce) }},
	{"sees ADDs", func(a *podsource.Answer) bool { return take(&a.SeesADDs) }},
	{"sees addresses", func(a *podsource.Answer) bool { return take(&a.SeesAddresses) }},
	{"cache", func(a *podsource.Answer) bool { // one that lists Kubernetes pods makes other owners foreign
		if a.Cache == nil || a.Names == podsource.KubernetesPods {
			return false
		}
		a.Names, a.Networks, a.Supplementary, a.Cache = 0, nil, true, nil
		return true
	}},
	{"authoritative", func(a *podsource.Answer) bool { return take(&a.Authoritative) }},
}

func take[T any](x *T) bool {
	was := !reflect.ValueOf(x).Elem().IsZero()
	*x = *new(T)
	return was
}

// without returns the case without a declaration of a member, or nil if that has none.
func (c *propCase) without(rnd *rand.Rand, member int) (*propCase, takeable) {
	for _, i := range rnd.Perm(len(declarations)) {
		if d := c.edit(member, declarations[i].take); d != nil {
			return d, declarations[i]
		}
	}
	return nil, takeable{}
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
		for _, look := range c.looks {
			for i := range look {
				look[i].SeesAddresses = look[i].SeesAddresses && (i == member || !look[member].SeesAddresses)
			}
		}
		d, declaration := c.without(rnd, member)
		with := c.judge()
		if d == nil || with == nil {
			return false, ""
		}
		without := d.judge() // none: by R9 nothing is released
		wrong := c.differs(with, without, keptThenReleased)
		for i := range without {
			if keptThenReleased(without[i], with[i]) && wrong == "" {
				wrong = c.endsTooMuch(c.candidate(i), member, declaration.name, without[i].reason.Verdict())
			}
		}
		if wrong != "" {
			wrong = fmt.Sprintf("with %s of source%d, and without: %s", declaration.name, member, wrong)
		}
		return true, wrong
	})
}

// endsTooMuch says what is wrong if a declaration leads to the release of a reservation that
// is kept without it.
func (c *propCase) endsTooMuch(r *candidate, member int, declaration string, kept Verdict) string {
	a := &c.looks[0][member]
	asOf := propNow.mono
	if !a.AsOf.IsZero() {
		asOf -= max(0, propNow.wall.Sub(a.AsOf))
	}
	wrong := ""
	switch {
	case kept != Starting && kept != Foreign && kept != Young:
		wrong = "it was not starting, foreign or young"
	case kept == Young && !c.noADD && c.youngerThanSet(r):
		wrong = "it is younger than the minimum age that was set"
	case kept != Foreign && !(c.noADD && r.ReservedAt.Before(a.AsOf)) && asOf < r.seen:
		wrong = "the answer is from before it was first seen"
	case declaration == "names" && (a.Cache == nil && !podsource.Covers(a.Networks, r.Network) || !a.Names.Has(r.ContainerID)):
		wrong = "it is not of that network and kind"
	default:
		return ""
	}
	return fmt.Sprintf("%s/%v of %q, which was %s: %s", r.Network, r.IP, r.ContainerID, kept, wrong)
}

// candidate returns what the clock of the case knows of a reservation.
func (c *propCase) candidate(i int) *candidate {
	seen := c.clock // see forgets other files
	return &seen.sees(propNow, c.all[i:i+1])[0]
}

// youngerThanSet reports whether r is younger than the minimum age, and its timestamp is not
// doubted only for the boot.
func (c *propCase) youngerThanSet(r *candidate) bool {
	age, byTimestamp := propNow.mono-r.seen, c.clock.trusted(propNow, r.ReservedAt)
	if byTimestamp {
		age = max(age, c.clock.since(propNow, r.ReservedAt))
	}
	return age < c.opts.MinAge && (byTimestamp || !c.clock.sinceSteps(propNow, r.ReservedAt))
}

// U2: a declaration counts only if it is made in every look. What one look releases, it does
// without a source that sees ADDs, and not below L (R4, R5). A pass takes a second look if that
// releases a reservation which the first one does not.
func TestU2Looks(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		one, two := c.clone(), c.clone()
		one.looks, two.looks = c.looks[:1], [][]podsource.Answer{c.looks[0], slices.Clone(c.looks[0])}
		s := one.snapshot()
		if s == nil {
			return false, ""
		}
		inOne, _ := decide(s)
		member := rnd.IntN(len(c.looks[0]))
		if none, declaration := two.without(rnd, member); none != nil {
			some := two.clone()
			declaration.take(&some.looks[rnd.IntN(2)][member])
			if wrong := c.differs(none.judge(), some.judge(), keptThenReleased); wrong != "" {
				return true, fmt.Sprintf("without %s of source%d, and with it in one look: %s", declaration.name, member, wrong)
			}
		}
		if wrong := c.differs(inOne, two.judge(), keptThenReleased); wrong != "" {
			return true, "with a second look, which a pass would not take: " + wrong
		}
		strict := one.clone()
		strict.opts.MinAge = max(c.opts.MinAge, DefaultMinAge)
		for i := range strict.looks[0] {
			if !slices.ContainsFunc(c.looks[0], func(a podsource.Answer) bool { return a.Cache != nil }) { // an ADD explains a missing entry
				strict.looks[0][i].SeesADDs = nil
			}
		}
		return true, c.differs(strict.judge(), inOne, keptThenReleased)
	})
}

// U3: a reservation that R3, R10 or MinAge keeps by one member's entries alone stays kept,
// whatever the other members list and declare.
func TestU3OneMemberAlone(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		c.noADD = false // it waives the minimum age
		member, alone := rnd.IntN(len(c.looks[0])), c.clone()
		for i := range alone.looks {
			alone.looks[i] = c.looks[i][member : member+1]
		}
		one, all := alone.judge(), c.judge()
		for i := range one {
			rule := one[i].reason.Rule()
			if rule != "R3" && rule != "R10" && (rule != "R5" || !c.youngerThanSet(c.candidate(i))) {
				one[i].reason = Unowned // the others may end what else keeps it
			}
		}
		if wrong := c.differs(one, all, keptThenReleased); wrong != "" {
			return true, fmt.Sprintf("with source%d alone, and with all: %s", member, wrong)
		}
		return one != nil && all != nil, ""
	})
}

// U4: the order of members, and a member or an entry that is there twice, change no verdict. An
// error of any member is an error. podsource tests the order in which they are asked.
func TestU4OrderAndDuplicates(t *testing.T) {
	forCases(t, func(rnd *rand.Rand, c *propCase) (bool, string) {
		order, d := rnd.Perm(len(c.looks[0])), c.clone()
		if maybe(rnd, 2) {
			order = append(order, order[0])
		}
		for i, look := range c.looks {
			d.looks[i] = nil
			for _, from := range order {
				d.looks[i] = append(d.looks[i], look[from])
			}
			if last := &d.looks[i][len(order)-1]; len(last.Pods) > 0 && maybe(rnd, 2) {
				last.Pods = append(slices.Clone(last.Pods), oneOf(rnd, last.Pods...))
			}
		}
		before, after := c.judge(), d.judge()
		wrong := c.differs(before, after, func(before, after decision) bool { return before.reason != after.reason })
		if (before == nil) != (after == nil) {
			wrong = "one of them is refused"
		}
		if wrong != "" {
			wrong = fmt.Sprintf("in the order %v: %s", order, wrong)
		}
		oneOf(rnd, d.looks...)[rnd.IntN(len(order))].Err = podsource.ErrIncomplete
		if d.judge() != nil {
			wrong = "an error of a member was lost"
		}
		return before != nil, wrong
	})
}
