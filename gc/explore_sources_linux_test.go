// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func (x *explorer) List(context.Context) (list hostlocal.Listing, err error) {
	x.mid.listed, list.Networks = x.s.smallWorld, slices.Compact(slices.Clone(x.set.networks[:]))
	for a, f := range x.s.files {
		if f.gen > 0 {
			list.Reservations = append(list.Reservations, x.reservation(a))
		}
	}
	return list, nil
}

// reservation returns a file as the library reads it, with the identity of a real one.
func (x *explorer) reservation(a int) hostlocal.Reservation {
	f, at := x.s.files[a], smallWall(x.s.wall[fileStamp+a]).Add(-4*time.Millisecond)
	if x.is("coarse") {
		at = smallWall(x.s.wall[fileStamp+a] &^ 1)
	}
	r := x.files[f.gen]
	if r.Network, r.IP, r.Owner, r.ReservedAt, r.ContainerID = x.set.networks[a], smallIPs[a], smallKinds[f.kind], at, ""; f.kind == whole {
		r.ContainerID, r.IfName = x.ids[f.owner], "eth0"
	}
	return r
}

func (x *explorer) Release(_ context.Context, all ...*hostlocal.Reservation) (result hostlocal.ReleaseResult, err error) {
	x.atGap()
	for _, r := range all {
		a, outcome := slices.Index(smallIPs[:], r.IP), hostlocal.Changed
		if x.s.files[a].gen == 0 {
			outcome = hostlocal.Gone
		} else if x.reservation(a) == *r {
			if x.s.at(a) >= 0 {
				x.violate("the address %v of a live container is released", r.IP)
			} else if r.Owner == hostlocal.Malformed || r.Network == "third" {
				x.violate("the file of %v is released (R7, R14)", r.IP)
			}
			x.s.files[a].gen, outcome = 0, hostlocal.Released
		}
		result.Outcomes, result.Errs = append(result.Outcomes, outcome), append(result.Errs, nil)
	}
	return result, nil
}

// Pods asks the sources one after the other.
func (x *explorer) Pods(context.Context) (all podsource.Answer, err error) {
	for _, kind := range x.set.sources {
		x.atGap()
		a, fault := x.answer(kind), x.s.fault
		if x.s.fault = 0; fault == empty && !a.Supplementary && !a.Authoritative {
			a.Pods, x.mid.refused = nil, true
		}
		for i := range x.mid.said {
			x.mid.said[i] <<= 3
		}
		x.mid.said[0] |= uint64(fault)
		for i := range 2 {
			entry := a.Cache != nil && slices.ContainsFunc(a.Cache.Entries, func(e podsource.Attachment) bool { return e.ContainerID == x.ids[i] })
			for _, p := range a.Pods {
				pod, ip := p.Name == smallPods[i], slices.Contains(p.IPs, smallIPs[i])
				for n, is := range []bool{pod, pod && p.Finished, false, slices.Contains(p.ContainerIDs, x.ids[i]), entry, false,
					ip && p.Name == smallPods[0], ip && p.Name != smallPods[0]} {
					if is {
						x.mid.said[1+n/3*2+i] |= 1 << (n % 3)
					}
				}
			}
		}
		if fault == away {
			x.mid.refused = true
			return all, errAway
		}
		all.Parts = append(all.Parts, a)
	}
	return all, nil
}

// answer returns what a source answers now, or what it repeats.
func (x *explorer) answer(kind simKind) (a podsource.Answer) {
	w, asOf := x.s.smallWorld, time.Time{}
	if kind == x.set.dated && w.held != nil {
		w = *w.held
		age := x.mid.at.now + x.mid.at.off - w.now - w.off
		if asOf = w.reading().wall; kind == fromKubelet {
			asOf, age = w.reading().now, x.mid.at.now-w.now
		}
		x.mid.refused = x.mid.refused || age > 600 && !x.noADD
	}
	var pods []podsource.Pod
	var ids []string
	var entries []podsource.Attachment
	var since time.Time
	for k := range w.conts {
		c, id, ips, at := &w.conts[k], x.ids[k], []netip.Addr(nil), smallWall(w.wall[contCached+k])
		for a, on := range c.addrs {
			if on {
				ips = append(ips, smallIPs[a])
			}
		}
		switch {
		case kind == fromRuntime && c.listed:
			pods = append(pods, sandbox(smallPods[c.pod], id))
		case kind == fromProcesses && c.state == added && x.visible(k):
			pods = append(pods, podsource.Pod{IPs: ips, Origin: "namespace of " + id})
		case kind == fromProcesses && c.state == inFlight && !c.hidden, kind == fromIntents && c.state == inFlight:
			pods = append(pods, adding(id))
		case kind == fromRecord && c.state == added && (c.addrs[0] || x.recorded(1)):
			ids = append(ids, id)
		case kind == fromCache && w.wall[contCached+k] > 0:
			if since.IsZero() || at.Before(since) {
				since = at
			}
			for _, n := range slices.Compact(slices.Clone(x.set.networks[:])) {
				if p := attached(n, id); x.is("pathless") {
					p.Unproven, p.StartedAt = true, at
					pods = append(pods, p)
				} else if p.IPs = ips; c.alive() {
					pods = append(pods, p)
				} else {
					entries = append(entries, stale(n, id))
				}
			}
		}
	}
	for i := 0; i < 2 && kind == fromKubelet; i++ {
		pod := startingPod(smallPods[i], smallWall(w.wall[podStart+i]))
		for _, c := range w.conts {
			if c.status && int(c.pod) == i {
				if pod.IPs, pod.MoreIPs = []netip.Addr{smallIPs[c.first]}, x.is("more"); pod.MoreIPs {
					pod.IPs = ips("192.0.2.1") // of another plugin
				}
			}
		}
		if pod.Finished = w.pods[i].ended; pod.Finished && !x.is("static") {
			pod.FinishedAt = smallWall(w.wall[podEnd+i])
		}
		if i == 0 && x.is("static") {
			pod.StartedAt = time.Time{}
		}
		if w.pods[i].there {
			pods = append([]podsource.Pod{pod}, pods...) // the later one first
		}
	}
	switch kind {
	case fromKubelet:
		a = kubeletAnswer(pods...)
	case fromRuntime:
		a = criAnswer(pods...)
	case fromProcesses:
		x.s.conts[0].hidden, x.s.conts[1].hidden = false, false
		if a = netnsAnswer(pods...); x.s.fault == partial {
			a = podsource.Answer{Source: a.Source, Supplementary: true}
		}
	case fromCache:
		a = cacheAnswer(pods, entries...)
		a.Cache.Since = since
	case fromRecord:
		a = recordAnswer([]string{network1}, ids...)
	default:
		a = podsource.Answer{Source: "intents", Pods: pods, Supplementary: true, SeesADDs: []string{network1}}
	}
	a.AsOf = asOf
	return a
}
