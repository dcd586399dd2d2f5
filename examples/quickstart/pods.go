// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A pod is a pod that got addresses on this node at some time.
type pod struct {
	namespace, name string
	dual            bool          // has an IPv6 address beside its IPv4 address
	age             time.Duration // age of its reservations
	powerLoss       bool          // power failed before its file was on the disk

	now  string // its state now
	lost bool   // its addresses leaked: no DEL frees them
	// listed is the source's entry for the pod, or nil if no source lists it.
	listed func(*attachment, time.Time) podsource.Pod
}

// pods are in the order of their ADDs, and so of their addresses.
var pods = []pod{
	{"shop", "cache-0", false, 76 * time.Hour, true, "power loss in mid-ADD: empty file", true, nil},
	{"dns", "coredns", true, 75 * time.Hour, false, "running, all in its status", false, withAddresses},
	{"shop", "cache-0", false, 75 * time.Hour, false, "running again since the power loss", false, withAddresses},
	{"shop", "web-1", true, 72 * time.Hour, false, "running, known to the runtime", false, withContainer},
	{"shop", "search", true, 50 * time.Hour, false, "running, status has IPv4 only", false, withIPv4Only},
	{"jobs", "report", true, 30 * time.Hour, false, "deleted, DEL never came", true, nil},
	{"shop", "cart", false, 26 * time.Hour, false, "deleted, DEL never came", true, nil},
	{"db", "mysql-0", false, 20 * time.Hour, false, "running, but in another sandbox", false, withOtherContainer},
	{"shop", "web-2", false, 9 * time.Hour, false, "running, all in its status", false, withAddresses},
	{"jobs", "backup", false, 3 * time.Hour, false, "finished 2h ago, DEL never came", true, finished},
	{"shop", "web-3", true, 8 * time.Minute, false, "started 9m ago, no IPs yet", false, withStartOnly},
	{"shop", "web-4", false, 20 * time.Second, false, "ADD in flight, not listed yet", false, nil},
}

// livePods is the source's answer, with the known part of each pod.
func livePods(attachments []attachment, now time.Time) []podsource.Pod {
	var live []podsource.Pod
	for i := range attachments {
		if a := &attachments[i]; a.pod.listed != nil {
			live = append(live, a.pod.listed(a, now))
		}
	}
	return live
}

// withAddresses is a pod as in the API: without container IDs.
func withAddresses(a *attachment, _ time.Time) podsource.Pod {
	return podsource.Pod{NamespacedName: a.pod.key(), IPs: a.ips}
}

// withIPv4Only is a dual-stack pod with a partial status.
func withIPv4Only(a *attachment, _ time.Time) podsource.Pod {
	return podsource.Pod{NamespacedName: a.pod.key(), IPs: a.ips[:1]}
}

// withContainer is a sandbox as a runtime may list it: with its ID and without addresses.
func withContainer(a *attachment, _ time.Time) podsource.Pod {
	return podsource.Pod{NamespacedName: a.pod.key(), ContainerIDs: []string{a.containerID}}
}

// withOtherContainer is a pod that has the address, while the file names a container that ended.
func withOtherContainer(a *attachment, _ time.Time) podsource.Pod {
	return podsource.Pod{
		NamespacedName: a.pod.key(),
		ContainerIDs:   []string{containerID(a.pod, "made anew")},
		IPs:            a.ips,
	}
}

// withStartOnly is a running pod whose status has only its start time yet.
func withStartOnly(a *attachment, now time.Time) podsource.Pod {
	return podsource.Pod{NamespacedName: a.pod.key(), StartedAt: now.Add(-9 * time.Minute)}
}

// finished is a pod that ended by itself. Its status keeps its addresses until the object is
// deleted, possibly for days.
func finished(a *attachment, now time.Time) podsource.Pod {
	return podsource.Pod{NamespacedName: a.pod.key(), IPs: a.ips, FinishedAt: now.Add(-2 * time.Hour)}
}

func (p *pod) key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.namespace, Name: p.name}
}

// An attachment is the reservation of one ADD.
type attachment struct {
	pod         *pod
	containerID string
	ips         []netip.Addr // the IPv4 address first
}
