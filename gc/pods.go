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

// A Pod identifies a pod in a report, and the source that listed it.
type Pod struct {
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	UID       types.UID `json:"uid,omitempty"`
	// Source is the name of the source, and Origin where it saw the pod: a network namespace and
	// a process, a cache file, a sandbox. From has both.
	Source string `json:"-"`
	Origin string `json:"-"`
	// NotRunning says that the pod is a sandbox that is not ready, or a network namespace without a process.
	NotRunning bool `json:"notRunning,omitempty"`

	container bool // Origin is a container ID
}

// From returns Source and Origin as one text.
func (p Pod) From() string {
	kind := map[bool]string{true: "container "}[p.container]
	if p.Source != "" && p.Origin != "" {
		return p.Source + ": " + kind + p.Origin
	}
	return p.Source + kind + p.Origin
}

// String returns a name of the pod for people: its name, or else its UID, or else From.
func (p Pod) String() string {
	if p.Name != "" {
		return p.Namespace + "/" + p.Name
	}
	return cmp.Or(string(p.UID), p.From(), "without a name")
}

// livePods has the pods of all answers, indexed for decide.
type livePods struct {
	byContainer map[string]*livePod       // by its container IDs
	unproven    map[string]*livePod       // the same for unproven entries
	claims      map[netip.Addr][]*livePod // those that claim an address, in any network
	dirs        []string                  // the networks that have a directory
	// Of the starting pods, which may hold a reservation that they do not name yet (R4), the
	// one that started first: it claims all that the others claim. Nil is none.
	starting   *livePod
	start      time.Time     // of it; zero if unknown, which is before all others
	nextFinish time.Duration // until the first finished pod stops holding anything
}

type livePod struct {
	*podsource.Pod
	ref    Pod // for the report
	answer int // the index of its answer
}

// indexPods leaves out pods that finished long ago: they no longer hold anything
// (hazards 12 and 13). Pods in the node's network claim no address (hazard 28); the node's own
// network namespace does (hazard 87). The reading now is from after the answers.
func (s *snapshot) indexPods(now reading) *livePods {
	l := &livePods{nextFinish: forever, dirs: s.dirs, unproven: make(map[string]*livePod), claims: make(map[netip.Addr][]*livePod)}
	l.byContainer = make(map[string]*livePod, min(s.listed, len(s.reservations)))
	for i, a := range slices.Concat(s.evidence...) {
		pods := make([]livePod, len(a.Pods))
		for j := range a.Pods {
			p := &a.Pods[j]
			holds := forever
			if p.HasFinished() {
				holds = holdFinished - s.clock.finishedFor(s.at, p)
			} else if p.Unproven && s.clock.beforeBoot(p.StartedAt) {
				holds = s.opts.lag() - s.clock.finishedFor(s.at, p)
			}
			if holds <= 0 {
				continue
			}
			l.nextFinish = min(l.nextFinish, holds)
			pods[j] = livePod{p, refOf(p, a.Source), i}
			l.add(&pods[j], now)
		}
	}
	for i := range s.reservations { // the owner of a damaged file may be any of a claimant's containers (hazard 84)
		r := &s.reservations[i]
		if r.Owner == hostlocal.Empty || r.Owner == hostlocal.Malformed {
			for _, p := range l.claimants(r) {
				if len(p.ContainerIDs) == 0 && !p.HostNetwork {
					l.addStarting(p, now)
				}
			}
		}
	}
	return l
}

func (l *livePods) add(p *livePod, now reading) {
	byContainer := l.byContainer
	if p.Unproven {
		byContainer = l.unproven
	}
	for _, id := range p.ContainerIDs {
		if first := byContainer[id]; first == nil || comparePods(p, first) > 0 {
			byContainer[id] = p
		}
	}
	isPod := p.Name != "" || p.UID != "" || len(p.ContainerIDs) > 0
	if p.HostNetwork && isPod || p.Unproven && len(p.ContainerIDs) > 0 {
		return
	}
	for _, ip := range p.IPs {
		all := l.claims[normalize(ip)]
		at, _ := slices.BinarySearchFunc(all, p, func(a, b *livePod) int { return comparePods(b, a) })
		l.claims[normalize(ip)] = slices.Insert(all, at, p)
	}
	if !p.HostNetwork && (p.MoreIPs || len(p.ContainerIDs) == 0 && len(p.IPs) == 0) {
		l.addStarting(p, now)
	}
}

// addStarting adds a pod that may hold a reservation which it does not name. A start in the future
// is unknown.
func (l *livePods) addStarting(p *livePod, now reading) {
	start := p.StartedAt
	if start.After(now.wall) {
		start = time.Time{}
	}
	if l.starting == nil || cmp.Or(l.start.Compare(start), comparePods(p, l.starting)) > 0 {
		l.starting, l.start = p, start
	}
}

// refOf returns the reference to a pod in a report. A pod that has neither a name nor a
// UID nor an origin is referred to by its container or address.
func refOf(p *podsource.Pod, source string) Pod {
	ref := Pod{p.Namespace, p.Name, p.UID, source, p.Origin, p.NotRunning, false}
	switch {
	case p.Origin != "" || p.Name != "" || p.UID != "":
	case len(p.ContainerIDs) > 0:
		ref.Origin, ref.container = p.ContainerIDs[0], true
	case len(p.IPs) > 0:
		ref.Origin = "address " + p.IPs[0].String()
	}
	return ref
}

// normalize returns an address as host-local names it.
func normalize(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }

// comparePods orders pods by their content, to choose one independently of the order of
// the sources: the greatest, which has a name if any has one.
func comparePods(p, q *livePod) int {
	return cmp.Or(cmp.Compare(p.Name, q.Name), cmp.Compare(p.Namespace, q.Namespace), cmp.Compare(p.UID, q.UID),
		cmp.Compare(p.Network, q.Network), slices.Compare(p.ContainerIDs, q.ContainerIDs),
		cmp.Compare(p.ref.Source, q.ref.Source), cmp.Compare(p.ref.Origin, q.ref.Origin))
}

// owner returns the live pod whose container holds r, or nil. A list may have IDs as docker ps (12
// digits) and crictl ps (13) cut them short.
func (l *livePods) owner(r *candidate) *livePod {
	id := r.ContainerID
	return cmp.Or(l.byContainer[id], l.byContainer[id[:min(12, len(id))]], l.byContainer[id[:min(13, len(id))]])
}

// claimants returns the pods that claim the address of a reservation, in its network or
// in any (R3), in a slice that is not to be changed. A network without a directory may be a
// name of any: Multus gives its own to the results of the plugins that it calls.
func (l *livePods) claimants(r *candidate) []*livePod {
	elsewhere := func(p *livePod) bool { return p.Network != r.Network && slices.Contains(l.dirs, p.Network) }
	all := slices.Clip(l.claims[r.IP])
	if slices.ContainsFunc(all, elsewhere) {
		return slices.DeleteFunc(slices.Clone(all), elsewhere)
	}
	return all
}

// distinct reports whether two entries are surely about different pods. Most sources
// know only a part of a pod, so two entries that can't be compared count as one pod. A
// static pod has one name and two UIDs, one at kubelet and one at the API server.
func distinct(p, q *livePod) bool {
	switch {
	case p.UID != "" && p.UID == q.UID:
		return false
	case p.Name != "" && q.Name != "":
		return p.NamespacedName != q.NamespacedName
	case p.UID != "" && q.UID != "":
		return true
	case len(p.ContainerIDs) > 0 && len(q.ContainerIDs) > 0:
		return !slices.ContainsFunc(p.ContainerIDs, func(id string) bool { return slices.Contains(q.ContainerIDs, id) })
	}
	return p.answer == q.answer && p.Origin != "" && q.Origin != "" && p.Origin != q.Origin
}

// conflicting returns the pods that are distinct from another one of the list, in one network:
// none, or at least two.
func conflicting(pods []*livePod) (found []*livePod) {
	pods = pods[:min(len(pods), 32)] // bounds the cost; far fewer show a conflict
	for _, p := range pods {
		if slices.ContainsFunc(pods, func(q *livePod) bool { return inOneNetwork(p, q) && distinct(p, q) }) {
			found = append(found, p)
		}
	}
	return found
}

// compareClaims returns the addresses that distinct live pods claim in one network, and the
// claimed addresses that are not reserved in any. Both are sorted and without repetitions. The
// node's own addresses are neither.
func (l *livePods) compareClaims(reservations []candidate) (dups, unreserved []Claim) {
	reserved := make(map[netip.Addr]bool, len(l.claims))
	for i := range reservations {
		if ip := reservations[i].IP; l.claims[ip] != nil {
			reserved[ip] = true
		}
	}
	ips := make([]netip.Addr, 0, len(l.claims))
	for ip := range l.claims {
		ips = append(ips, ip)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	for _, ip := range ips {
		claimants := slices.DeleteFunc(slices.Clone(l.claims[ip]), func(p *livePod) bool { return p.HostNetwork })
		if len(claimants) == 0 {
			continue
		}
		if !reserved[ip] {
			unreserved = append(unreserved, Claim{ip, []*Pod{&claimants[0].ref}})
		}
		d := Claim{IP: ip}
		for _, claimant := range conflicting(claimants) {
			if !slices.ContainsFunc(d.Pods, func(p *Pod) bool { return *p == claimant.ref }) {
				d.Pods = append(d.Pods, &claimant.ref)
			}
		}
		if len(d.Pods) > 0 {
			dups = append(dups, d)
		}
	}
	return dups, unreserved
}

// inOneNetwork reports whether two claims may be of one network (hazard 109).
func inOneNetwork(p, q *livePod) bool {
	return p.Network == "" || q.Network == "" || p.Network == q.Network
}
