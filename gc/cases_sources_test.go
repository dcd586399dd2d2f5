// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A source is a source of a case.
type source struct {
	name   string
	answer podsource.Answer
	err    error
	absent bool // from this process
	dated  bool
	age    time.Duration // of its list, if that has a date
}

// Pods answers as all sources of the case, after the lines that come when they are asked.
func (n *node) Pods(context.Context) (podsource.Answer, error) {
	n.looks++
	n.happens(map[int]string{1: "asked:", 2: "again:"}[n.looks])
	n.forget()
	var a podsource.Answer
	for _, s := range n.sources {
		if s.absent {
			continue
		}
		if s.err != nil {
			return podsource.Answer{}, s.err
		}
		if s.dated {
			s.answer.AsOf = n.clocks.Wall().Add(-s.age)
		}
		a.Parts = append(a.Parts, s.answer)
	}
	text, err := json.Marshal(a)
	n.answered = podsource.Answer{} // a copy that shares no memory
	err = errors.Join(err, json.Unmarshal(text, &n.answered))
	return n.answered, err
}

// happens does what lines say that come later.
func (n *node) happens(when string) {
	n.looking = true
	defer func() { n.looking = false }()
	for _, l := range n.later[when] {
		if err := n.do(l, nil); err != nil {
			n.err = fmt.Errorf("%d: %s: %w", l.at, strings.Join(l.words, " "), err)
		}
	}
}

// forget overwrites the last answer, as a source does that uses its memory again (hazard 64).
func (n *node) forget() {
	for _, a := range n.answered.Parts {
		for _, p := range a.Pods {
			clear(p.ContainerIDs)
			clear(p.IPs)
		}
		clear(a.Pods)
		clear(a.Networks)
		clear(a.SeesADDs)
		clear(a.Gaps)
		if a.Cache != nil {
			a.Cache.Entries, a.Cache.Since["podnet"] = nil, time.Unix(1, 0)
		}
	}
}

// kind returns a function that makes the answer of a source, or nil if it is none. Its name may end with a number.
func kind(name string) func() podsource.Answer {
	return gc.Declared[strings.TrimRight(name, "0123456789")]
}

// list changes what a source answers: a first word without a = changes its declarations, and keys add a pod.
func (n *node) list(name string, args []string) error {
	at := slices.IndexFunc(n.sources, func(s *source) bool { return s.name == name })
	if at < 0 {
		at, n.sources = len(n.sources), append(n.sources, &source{name: name, answer: kind(name)()})
	}
	s := n.sources[at]
	if len(args) == 0 {
		return nil
	}
	if !strings.Contains(args[0], "=") {
		return n.declare(s, args[0], args[1:])
	}
	var p podsource.Pod
	for _, arg := range args {
		switch key, value, _ := strings.Cut(arg, "="); key {
		case "name":
			namespace, name, ok := strings.Cut(value, "/")
			if !ok {
				namespace, name = "default", value
			}
			p.NamespacedName = types.NamespacedName{Namespace: namespace, Name: name}
			p.UID = cmp.Or(p.UID, types.UID(value))
		case "uid":
			p.UID = types.UID(value)
		case "id":
			p.ContainerIDs = strings.Split(value, ",")
		case "ip":
			for _, ip := range strings.Split(value, ",") {
				addr, _ := netip.ParseAddr(ip) // that of any other text is not valid
				p.IPs = append(p.IPs, addr)
			}
		case "network":
			p.Network = value
		case "started":
			p.StartedAt = n.clocks.Wall().Add(-n.duration(value))
		case "finished":
			if p.Finished = true; value != "" {
				p.FinishedAt = n.clocks.Wall().Add(-n.duration(value))
			}
		case "from":
			p.Origin = value
		case "more":
			p.MoreIPs = value == "yes"
		case "host":
			p.HostNetwork = value == "yes"
		case "unproven":
			p.Unproven = value == "yes"
		default:
			return fmt.Errorf("there is no key %s", key)
		}
	}
	if cache := s.answer.Cache; cache != nil {
		for _, id := range p.ContainerIDs {
			cache.Entries = append(cache.Entries, podsource.Attachment{Network: p.Network, ContainerID: id})
		}
	}
	s.answer.Pods = append(s.answer.Pods, p)
	return nil
}

// declare changes what a source declares, or whether it answers.
func (n *node) declare(s *source, what string, args []string) error {
	a, first := &s.answer, strings.Join(args, " ")
	some := func() []string {
		if first == "none" {
			return nil
		}
		return strings.Split(strings.ReplaceAll(first, " ", ""), ",")
	}
	ago := func(age string) (at time.Time) { // zero is unknown, or open
		if age != "-" {
			at = n.clocks.Wall().Add(-n.duration(age))
		}
		return at
	}
	switch what {
	case "fails":
		s.err = errors.New(cmp.Or(first, "away"))
	case "absent":
		s.absent = true
	case "answers":
		s.err, s.absent = nil, false
	case "empty":
		if a.Pods = nil; a.Cache != nil {
			a.Cache.Entries = nil
		}
	case "dated":
		s.dated, s.age = true, n.duration(first)
	case "written":
		a.AsOf = ago(first)
	case "speaks":
		a.Networks = some()
	case "adds":
		a.SeesADDs = some()
	case "addresses":
		a.SeesAddresses = first != "none"
	case "names":
		kinds := []string{"pods", "sandboxes", "any"}
		if a.Names = podsource.Kind(slices.Index(kinds, first)); !slices.Contains(kinds, first) {
			return fmt.Errorf("the kinds of containers are %v", kinds)
		}
	case "late", "at-once":
		a.AtOnce = what == "at-once"
	case "authoritative", "supplementary":
		a.Authoritative, a.Supplementary = a.Authoritative || what == "authoritative", a.Supplementary || what == "supplementary"
	case "since": // of a cache's entries, of podnet if no network is named; - is unknown
		a.Cache.Since[append(args, "podnet")[1]] = ago(args[0])
	case "ended": // an entry of a cache whose container is not live
		network, id, _ := strings.Cut(first, "/")
		a.Cache.Entries = append(a.Cache.Entries, podsource.Attachment{Network: network, ContainerID: id})
	case "gap": // from and to, as ages; - is open
		if first == "none" {
			a.Gaps = nil
			return nil
		}
		g := podsource.Gap{From: ago(args[0]), To: ago(args[1])}
		if len(args) > 2 {
			g.But = podsource.SandboxContainers
		}
		a.Gaps = append(a.Gaps, g)
	default:
		return fmt.Errorf("a source declares nothing called %s", what)
	}
	return nil
}
