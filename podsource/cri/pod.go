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

// podsOf converts the answer of a runtime: all sandboxes or an error (R2). statuses is nil if
// none were requested. It has nil for a sandbox that was removed since it was listed: that
// sandbox still keeps its reservations by its ID.
//
// StartedAt stays zero, since it counts only for a pod without a container ID (R4).
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

// dropStale removes addresses from sandboxes that are not ready, if a ready one has them, too.
// A runtime may still report the old address of a stopped sandbox when another one has it by
// now: that is no conflict (R10). Otherwise the address stays, since a sandbox that is not ready
// may still have it. In both cases the address is claimed, and the sandbox keeps its
// reservations by its ID (hazard 05).
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

// addresses returns the addresses in the status of a sandbox. Its first one may be empty, if
// there is none.
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
