// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// podsOf makes pods of a runtime's answer: all or an error (R2). statuses is nil
// when nobody asked for them, and has nil for a sandbox that vanished: that one
// is live by its ID, as it was when the list was made.
//
// A pod's StartedAt stays unknown. It would count only for a pod without a
// container ID (R4).
func podsOf(items []*runtimeapi.PodSandbox, statuses []*runtimeapi.PodSandboxStatus) ([]podsource.Pod, error) {
	pods := make([]podsource.Pod, len(items))
	ready := make([]bool, len(items))
	for i, item := range items {
		if item.GetId() == "" {
			return nil, fmt.Errorf("sandbox %d of %d has no ID", i+1, len(items))
		}
		m := item.GetMetadata()
		pods[i] = podsource.Pod{
			NamespacedName: types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()},
			UID:            types.UID(m.GetUid()),
			ContainerIDs:   []string{item.GetId()},
		}
		if statuses == nil || statuses[i] == nil {
			continue
		}
		status := statuses[i]
		ips, err := addresses(status.GetNetwork())
		if err != nil {
			return nil, fmt.Errorf("sandbox %s: %w", item.GetId(), err)
		}
		pods[i].IPs = ips
		pods[i].HostNetwork = status.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
		ready[i] = status.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	}
	dropStale(pods, ready)
	return pods, nil
}

// dropStale takes from sandboxes that are not ready the addresses that ready
// ones have. A runtime may go on to report what such a sandbox had when it
// stopped, and another may have it by now: that is no conflict (R10). As long as
// nobody else has it, it stays a claim, since who is not ready may still be up.
// Either way the address itself is claimed, and the sandbox keeps by its ID what
// it owns (hazard 05).
func dropStale(pods []podsource.Pod, ready []bool) {
	taken := make(map[netip.Addr]bool)
	for i := range pods {
		if ready[i] && !pods[i].HostNetwork {
			for _, ip := range pods[i].IPs {
				taken[ip] = true
			}
		}
	}
	for i := range pods {
		if !ready[i] {
			pods[i].IPs = slices.DeleteFunc(pods[i].IPs, func(ip netip.Addr) bool { return taken[ip] })
		}
	}
}

// addresses are those of a sandbox's status. The first is empty when there is
// none.
func addresses(n *runtimeapi.PodSandboxNetworkStatus) ([]netip.Addr, error) {
	var texts []string
	if ip := n.GetIp(); ip != "" {
		texts = append(texts, ip)
	}
	for _, ip := range n.GetAdditionalIps() {
		texts = append(texts, ip.GetIp())
	}
	var ips []netip.Addr
	for _, text := range texts {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			return nil, fmt.Errorf("its status has %q, which is not the IP address of a pod", text)
		}
		ips = append(ips, ip.Unmap())
	}
	return ips, nil
}
