// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A Pod says in a report which pod is meant, and who told of it.
type Pod struct {
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	UID       types.UID `json:"uid,omitempty"`
	// From is the source, and where it saw the pod: a network namespace and a
	// process, a cache file, a sandbox.
	From string `json:"from,omitempty"`
}

// String names the pod for people, with what is known of it.
func (p *Pod) String() string {
	if p.Name != "" {
		return p.Namespace + "/" + p.Name
	}
	return cmp.Or(string(p.UID), p.From, "without a name")
}

// livePods are the pods of all answers, indexed the way decide looks things up.
type livePods struct {
	pods        []*podsource.Pod
	refs        []Pod            // for the report, by the same index
	answer      []int32          // whose entry it is, by the same index
	byContainer map[string]int32 // the pod of a container ID
	claims      []claim          // sorted by address
	starting    startingPods
	nextFinish  time.Duration // until the first finished pod stops to hold anything; zero: none does
}

// A claim is one address of one live pod.
type claim struct {
	ip  netip.Addr
	pod int32
}

// startingPods are those that may hold a reservation which they do not name yet
// (R4). The earliest of them claims all that any of the others does.
type startingPods struct {
	earliest, unknown int32 // a pod, or noPod
	since             time.Time
}

const noPod = -1

// indexPods leaves out pods that finished long ago: they hold nothing any more
// (hazards 12 and 13). Pods in the node's network claim no address (hazard 28).
// Ages count up to the reading at, from before the sources were asked; now is
// that after their answers.
func indexPods(answers []podsource.Answer, c *clock, at, now reading) *livePods {
	pods, ids, ips := 0, 0, 0
	for i := range answers {
		pods += len(answers[i].Pods)
		for j := range answers[i].Pods {
			ids += len(answers[i].Pods[j].ContainerIDs)
			ips += len(answers[i].Pods[j].IPs)
		}
	}
	l := &livePods{
		pods: make([]*podsource.Pod, 0, pods), refs: make([]Pod, 0, pods), answer: make([]int32, 0, pods),
		byContainer: make(map[string]int32, ids), claims: make([]claim, 0, ips),
		starting: startingPods{earliest: noPod, unknown: noPod},
	}
	for i := range answers {
		for j := range answers[i].Pods {
			p := &answers[i].Pods[j]
			if p.HasFinished() {
				left := holdFinished - c.finishedFor(at, p)
				if left <= 0 {
					continue
				}
				if l.nextFinish == 0 || left < l.nextFinish {
					l.nextFinish = left
				}
			}
			l.add(p, answers[i].Source, int32(i), c.startKnown(now, p.StartedAt))
		}
	}
	slices.SortFunc(l.claims, func(a, b claim) int {
		return cmp.Or(a.ip.Compare(b.ip), -l.compare(a.pod, b.pod))
	})
	return l
}

func (l *livePods) add(p *podsource.Pod, source string, answer int32, startKnown bool) {
	pod := int32(len(l.pods))
	l.pods, l.answer = append(l.pods, p), append(l.answer, answer)
	l.refs = append(l.refs, refOf(p, source))
	for _, id := range p.ContainerIDs {
		if first, ok := l.byContainer[id]; !ok || l.compare(pod, first) < 0 {
			l.byContainer[id] = pod
		}
	}
	if p.HostNetwork {
		return
	}
	for _, ip := range p.IPs {
		l.claims = append(l.claims, claim{normalize(ip), pod})
	}
	if p.MoreIPs || len(p.ContainerIDs) == 0 && len(p.IPs) == 0 {
		s := &l.starting
		switch {
		case !startKnown:
			if s.unknown == noPod || l.compare(pod, s.unknown) < 0 {
				s.unknown = pod
			}
		case s.earliest == noPod || p.StartedAt.Before(s.since):
			s.earliest, s.since = pod, p.StartedAt
		}
	}
}

func refOf(p *podsource.Pod, source string) Pod {
	return Pod{p.Namespace, p.Name, p.UID, from(p, source)}
}

// normalize returns an address as host-local names it.
func normalize(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }

// from says where a pod was seen. Of one that has no other name it says more.
func from(p *podsource.Pod, source string) string {
	origin := p.Origin
	if origin == "" && p.Name == "" && p.UID == "" {
		switch {
		case len(p.ContainerIDs) > 0:
			origin = "container " + p.ContainerIDs[0]
		case len(p.IPs) > 0:
			origin = "address " + p.IPs[0].String()
		}
	}
	if source == "" || origin == "" {
		return source + origin
	}
	return source + ": " + origin
}

// compare orders pods by what is known of them, so that which of two is looked
// at does not depend on the order of the sources.
func (l *livePods) compare(a, b int32) int {
	p, q := l.pods[a], l.pods[b]
	return cmp.Or(cmp.Compare(p.Name, q.Name), cmp.Compare(p.Namespace, q.Namespace), cmp.Compare(p.UID, q.UID),
		cmp.Compare(p.Network, q.Network), slices.Compare(p.ContainerIDs, q.ContainerIDs), cmp.Compare(l.refs[a].From, l.refs[b].From))
}

// ref returns what a report says of a pod.
func (l *livePods) ref(pod int32) *Pod {
	if pod == noPod {
		return nil
	}
	return &l.refs[pod]
}

// owner returns the live pod whose container holds r, or noPod.
func (l *livePods) owner(r *hostlocal.Reservation) int32 {
	if r.Owner == hostlocal.Owned {
		if pod, ok := l.byContainer[r.ContainerID]; ok {
			return pod
		}
	}
	return noPod
}

// claiming returns the claims on an address, in whatever network.
func (l *livePods) claiming(ip netip.Addr) []claim {
	from, _ := slices.BinarySearchFunc(l.claims, ip, func(c claim, ip netip.Addr) int { return c.ip.Compare(ip) })
	to := from
	for to < len(l.claims) && l.claims[to].ip == ip {
		to++
	}
	return l.claims[from:to]
}

// claimants returns the claims on a reservation: those on its address that don't
// name another network (R3).
func (l *livePods) claimants(r *hostlocal.Reservation) []claim {
	claims := l.claiming(r.IP)
	elsewhere := func(c claim) bool { n := l.pods[c.pod].Network; return n != "" && n != r.Network }
	if slices.ContainsFunc(claims, elsewhere) {
		claims = slices.DeleteFunc(slices.Clone(claims), elsewhere)
	}
	return claims
}

// distinct reports whether two entries are surely not about the same pod. Most
// sources know only one side of a pod, so what can't be told apart is not held
// against it. A static pod has one name and two UIDs: kubelet and the API server
// number it differently.
func (l *livePods) distinct(a, b int32) bool {
	p, q := l.pods[a], l.pods[b]
	switch {
	case a == b, p.UID != "" && p.UID == q.UID:
		return false
	case p.Name != "" && q.Name != "":
		return p.NamespacedName != q.NamespacedName
	case p.UID != "" && q.UID != "":
		return true
	case len(p.ContainerIDs) > 0 && len(q.ContainerIDs) > 0:
		return !slices.ContainsFunc(p.ContainerIDs, func(id string) bool { return slices.Contains(q.ContainerIDs, id) })
	}
	return l.answer[a] == l.answer[b] && p.Origin != "" && q.Origin != "" && p.Origin != q.Origin
}

// rivals returns those claimants, and the owner where there is one, that are
// distinct from another of them: none, or at least two.
func (l *livePods) rivals(claimants []claim, owner int32) (rivals []int32) {
	const most = 32 // of one address; it is a conflict with far fewer
	pods := make([]int32, 0, most+1)
	if owner != noPod {
		pods = append(pods, owner)
	}
	for _, c := range claimants[:min(len(claimants), most)] {
		pods = append(pods, c.pod)
	}
	for _, p := range pods {
		if slices.ContainsFunc(pods, func(q int32) bool { return l.distinct(p, q) }) {
			rivals = append(rivals, p)
		}
	}
	return rivals
}

// duplicates returns the addresses that two live pods surely claim, sorted.
func (l *livePods) duplicates() (dups []Duplicate) {
	for rest := l.claims; len(rest) > 0; {
		same := l.claiming(rest[0].ip)
		if len(same) > 1 {
			if rivals := l.rivals(same, noPod); len(rivals) > 0 {
				d := Duplicate{IP: rest[0].ip}
				for _, pod := range rivals {
					if ref := l.ref(pod); !slices.ContainsFunc(d.Pods, func(p *Pod) bool { return *p == *ref }) {
						d.Pods = append(d.Pods, ref)
					}
				}
				dups = append(dups, d)
			}
		}
		rest = rest[len(same):]
	}
	return dups
}

// unreserved returns the claimed addresses that are not reserved in any network,
// sorted, each once.
func (l *livePods) unreserved(reserved *reservations) (out []Unreserved) {
	for i, c := range l.claims {
		if i > 0 && l.claims[i-1].ip == c.ip || reserved.any(c.ip, func(*hostlocal.Reservation) bool { return true }) {
			continue
		}
		out = append(out, Unreserved{IP: c.ip, Pod: l.ref(c.pod)})
	}
	return out
}

// reservations are those of all networks, sorted by network and address.
type reservations struct {
	all      []hostlocal.Reservation
	networks [][]hostlocal.Reservation // the parts of all
}

func indexReservations(all []hostlocal.Reservation) *reservations {
	rs := &reservations{all: all}
	for begin, i := 0, 0; i < len(all); i++ {
		if i+1 == len(all) || all[i+1].Network != all[i].Network {
			rs.networks = append(rs.networks, all[begin:i+1])
			begin = i + 1
		}
	}
	return rs
}

// any reports whether a network has a reservation of the address for which is
// says so.
func (rs *reservations) any(ip netip.Addr, is func(*hostlocal.Reservation) bool) bool {
	return slices.ContainsFunc(rs.networks, func(n []hostlocal.Reservation) bool {
		at, found := slices.BinarySearchFunc(n, ip, func(r hostlocal.Reservation, ip netip.Addr) int { return r.IP.Compare(ip) })
		return found && is(&n[at])
	})
}
