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

// podsOf converts the lists of a runtime: a pod for each sandbox, with the containers in it, or an
// error (R2). The sandbox's ID comes first.
//
// StartedAt stays zero: it counts only for a pod whose container IDs or addresses are not all
// known (R4), and a runtime may date a sandbox later than its ADD.
func podsOf(sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) ([]podsource.Pod, error) {
	pods := make([]podsource.Pod, len(sandboxes))
	index := make(map[string]int, len(sandboxes))
	for i, item := range sandboxes {
		if item.GetId() == "" {
			return nil, fmt.Errorf("sandbox %d of %d has no ID", i+1, len(sandboxes))
		}
		m := item.GetMetadata()
		pods[i].NamespacedName = types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
		pods[i].UID, pods[i].ContainerIDs = types.UID(m.GetUid()), []string{item.GetId()}
		setReady(&pods[i], item.GetState())
		index[item.GetId()] = i
	}
	for i, c := range containers {
		if c.GetId() == "" || c.GetPodSandboxId() == "" {
			return nil, fmt.Errorf("container %d of %d has no ID, or none of its sandbox", i+1, len(containers))
		}
		at, listed := index[c.GetPodSandboxId()]
		if !listed { // it was made since, or the runtime has lost its record
			at = len(pods)
			index[c.GetPodSandboxId()] = at
			pods = append(pods, podsource.Pod{ContainerIDs: []string{c.GetPodSandboxId()}})
		}
		pods[at].ContainerIDs = append(pods[at].ContainerIDs, c.GetId())
	}
	return pods, nil
}

// setReady sets whether a sandbox runs.
func setReady(p *podsource.Pod, state runtimeapi.PodSandboxState) {
	p.NotRunning, p.Origin = state != runtimeapi.PodSandboxState_SANDBOX_READY, ""
	if p.NotRunning {
		p.Origin = fmt.Sprintf("sandbox %s, not ready", p.ContainerIDs[0])
	}
}

// noteOn says how many sandboxes have an error, and names one.
func noteOn(pods []podsource.Pod, errs []error) string {
	failed, one := 0, ""
	for i, err := range errs {
		if err != nil {
			failed, one = failed+1, fmt.Sprintf("%s: %.300v", pods[i].ContainerIDs[0], err)
		}
	}
	if failed == 0 {
		return ""
	}
	return fmt.Sprintf("not all addresses of %d of %d sandboxes are known, one is %s", failed, len(pods), one)
}

// dropStale removes addresses from sandboxes that are not ready, if a ready one has them, too.
// A runtime may still report the old address of a stopped sandbox when another one has it by
// now: that is no conflict (R10). Otherwise the address stays, since a sandbox that is not ready
// may still have it. In both cases the address is claimed, and the sandbox keeps its
// reservations by its ID (hazard 05).
func dropStale(pods []podsource.Pod) {
	taken := make(map[netip.Addr]bool)
	for _, p := range pods {
		for _, ip := range p.IPs {
			taken[ip] = taken[ip] || !p.NotRunning && !p.HostNetwork
		}
	}
	for i := range pods {
		if pods[i].NotRunning {
			pods[i].IPs = slices.DeleteFunc(pods[i].IPs, func(ip netip.Addr) bool { return taken[ip] })
		}
	}
}

// addresses returns the addresses in the status of a sandbox, and an error if there are others
// that can't be parsed. The first one may be empty, if there is none.
func addresses(n *runtimeapi.PodSandboxNetworkStatus) (ips []netip.Addr, err error) {
	all := append([]*runtimeapi.PodIP{{Ip: n.GetIp()}}, n.GetAdditionalIps()...)
	for i, text := range all {
		ip, invalid := netip.ParseAddr(text.GetIp())
		switch {
		case i == 0 && text.GetIp() == "":
		case invalid != nil || ip.Zone() != "":
			err = fmt.Errorf("its status has %q, which is not the IP address of a pod", text.GetIp())
		default:
			ips = append(ips, ip.Unmap())
		}
	}
	return ips, err
}
