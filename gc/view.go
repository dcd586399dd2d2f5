// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// checkPods refuses a list of which one item can't be what it says: then the
// rest can't be trusted either (R2).
func checkPods(pods []podsource.Pod) error {
	for i := range pods {
		p := &pods[i]
		for _, ip := range p.IPs {
			if !ip.IsValid() {
				return fmt.Errorf("pod %s: one of its addresses is not an address", podName(p))
			}
		}
		for _, id := range p.ContainerIDs {
			if id == "" || strings.ContainsAny(id, "/: \t\r\n") {
				return fmt.Errorf("pod %s: %q is not a container ID as CNI knows it; "+
					"wanted is the sandbox's ID, without a scheme", podName(p), id)
			}
		}
	}
	return nil
}

// podName names a pod for people, with what is known of it.
func podName(p *podsource.Pod) string {
	switch {
	case p.Name != "":
		return p.NamespacedName.String()
	case p.UID != "":
		return string(p.UID)
	case len(p.ContainerIDs) > 0:
		return p.ContainerIDs[0]
	case len(p.IPs) > 0:
		return "with address " + p.IPs[0].String()
	}
	return "without a name"
}

// A view is what the source said of the live pods, in the order in which decide
// asks for it.
type view struct {
	pods     []podsource.Pod
	byID     index   // the pods of live containers
	starting []start // pods that may hold what they don't name yet (R4)
}

type start struct {
	pod   int32
	since time.Time // zero when unknown
}

const nobody = -1

// newView leaves out the pods that finished at least finishedFor ago: they hold
// nothing any more (hazards 12 and 13). Ages count up to the moment at, from
// before the source was asked; now is the moment of its answer.
func newView(pods []podsource.Pod, c *clock, at, now moment, finishedFor time.Duration) *view {
	dead := func(p podsource.Pod) bool {
		return !p.FinishedAt.IsZero() && c.since(at, p.FinishedAt) >= finishedFor
	}
	if slices.ContainsFunc(pods, dead) {
		pods = slices.DeleteFunc(slices.Clone(pods), dead)
	}
	v := &view{pods: pods, byID: newIndex(pods)}
	for i := range pods {
		p := &pods[i]
		if len(p.ContainerIDs) == 0 && len(p.IPs) == 0 && !p.HostNetwork {
			s := start{pod: int32(i)}
			if c.startKnown(now, p.StartedAt) {
				s.since = p.StartedAt
			}
			v.starting = append(v.starting, s)
		}
	}
	return v
}

// name makes a string of a container ID: for a live container that which the
// source's answer holds already.
func (v *view) name(containerID []byte) (string, bool) {
	if id, ok := v.byID.id(containerID); ok {
		return id, true
	}
	return string(containerID), true
}

// owner returns the live pod whose container holds r, or nobody.
func (v *view) owner(r *hostlocal.Reservation) int32 {
	if r.Owner == hostlocal.Owned {
		if pod, ok := v.byID.pod(r.ContainerID); ok {
			return pod
		}
	}
	return nobody
}

// distinct reports whether two entries are surely not about the same pod. Most
// sources know only one side of a pod, so what can't be told apart is not held
// against it. Of one name under two UIDs the static pods are made: kubelet and
// the API server name them differently.
func (v *view) distinct(a, b int32) bool {
	p, q := &v.pods[a], &v.pods[b]
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
	return false
}

// A claim is one address of one live pod.
type claim struct {
	ip  netip.Addr
	pod int32
}

// claims are the addresses of the live pods, laid beside the reservations of one
// network.
type claims struct {
	first      []int32         // for each reservation the pod that has its address, or nobody
	more       map[int][]int32 // the further pods, where there are any
	unreserved []claim         // addresses without a reservation, sorted
}

// claimsOn lays the pods' addresses beside rs, which must be sorted by address.
// The addresses of pods in the node's network claim nothing (hazard 28).
func (v *view) claimsOn(rs []hostlocal.Reservation) claims {
	c := claims{first: make([]int32, len(rs))}
	for i := range c.first {
		c.first[i] = nobody
	}
	for i := range v.pods {
		p := &v.pods[i]
		if p.HostNetwork {
			continue
		}
		for _, ip := range p.IPs {
			ip = ip.Unmap().WithZone("")
			at, found := find(rs, ip)
			switch {
			case !found:
				c.unreserved = append(c.unreserved, claim{ip, int32(i)})
			case c.first[at] == nobody:
				c.first[at] = int32(i)
			default:
				if c.more == nil {
					c.more = make(map[int][]int32)
				}
				c.more[at] = append(c.more[at], int32(i))
			}
		}
	}
	slices.SortFunc(c.unreserved, func(a, b claim) int {
		if d := a.ip.Compare(b.ip); d != 0 {
			return d
		}
		return int(a.pod - b.pod)
	})
	return c
}

// named reports whether a pod that has the address of reservation i is known by
// its containers. If the reservation is its own, all others of that container
// match by themselves; if not, there is a conflict.
func (v *view) named(c *claims, i int) bool {
	return len(v.pods[c.first[i]].ContainerIDs) > 0 ||
		slices.ContainsFunc(c.more[i], func(pod int32) bool { return len(v.pods[pod].ContainerIDs) > 0 })
}

// rival returns a pod among the claimants of reservation i that is surely not
// the pod given, or nobody.
func (v *view) rival(c *claims, i int, pod int32) int32 {
	if c.first[i] != nobody && v.distinct(c.first[i], pod) {
		return c.first[i]
	}
	for _, other := range c.more[i] {
		if v.distinct(other, pod) {
			return other
		}
	}
	return nobody
}

// find looks an address up in reservations that are sorted by address.
func find(rs []hostlocal.Reservation, ip netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(rs, ip, func(r hostlocal.Reservation, ip netip.Addr) int { return r.IP.Compare(ip) })
}
