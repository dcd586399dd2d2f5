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
}

// pods are in the order of their ADDs, and so of their addresses.
var pods = []pod{
	{"shop", "cache-0", false, 76 * time.Hour, true, "power loss in mid-ADD: empty file", true},
	{"dns", "coredns", true, 75 * time.Hour, false, "running", false},
	{"shop", "cache-0", false, 75 * time.Hour, false, "running again since the power loss", false},
	{"shop", "web-1", true, 72 * time.Hour, false, "running", false},
	{"jobs", "report", true, 30 * time.Hour, false, "deleted, DEL never came", true},
	{"shop", "cart", false, 26 * time.Hour, false, "deleted, DEL never came", true},
	{"db", mysql, false, 20 * time.Hour, false, "running, but in another sandbox", false},
	{"shop", "web-2", false, 9 * time.Hour, false, "running", false},
	{"jobs", "backup", false, 3 * time.Hour, false, "finished, DEL never came", true},
	{"shop", "web-3", true, 20 * time.Second, false, "agent killed in mid-ADD", true},
}

// mysql has an address, while the file names a container that ended.
const mysql = "mysql-0"

// live is the agent's store: the attachments whose ADD has ended, and whose DEL has not.
func live(attachments []attachment) []podsource.Attachment {
	var all []podsource.Attachment
	for _, a := range attachments {
		if a.pod.lost {
			continue
		}
		if a.pod.name == mysql {
			a.containerID = containerID(a.pod, "made anew")
		}
		all = append(all, podsource.Attachment{Network: network, ContainerID: a.containerID, IfName: ifName, IPs: a.ips, Pod: a.pod.key()})
	}
	return all
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
