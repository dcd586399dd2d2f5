// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Convert says what is known of a pod that its node's kubelet, or the API
// server, reports. The caller picks the pods of this node.
//
//   - Its addresses are those in status.podIPs and status.podIP, and those of
//     every entry of its network status annotation: secondary networks, whose
//     addresses no other field has (hazard 22).
//   - A pod in the node's network is seen but claims nothing, and its annotation
//     is not read (hazard 28).
//   - StartedAt is status.startTime, which is kubelet's reading of the node's
//     clock. Without it the start is unknown; the creation time is another
//     machine's clock and an earlier moment, and so no substitute (R4, hazards
//     32 and 36).
//   - A pod that is being deleted is as live as any. In phase Succeeded or Failed
//     it has Finished, unless a container is reported as running or the sandbox as
//     up. FinishedAt says when its containers ended, its sandbox went or its status
//     was last written, and is zero where none of these is known (hazards 12, 13,
//     31 and 56).
//   - ContainerIDs stays empty. The IDs in a pod's status are those of its
//     containers, not of the sandbox that owns the reservation.
//
// The object must be of one piece, as the API server holds it. Where somebody put
// another status into it, as kubelet's Pods API does, its managed fields tell of
// the old one and have to be taken out first.
//
// What can't be read is an error that names the pod, and then no pod of the list
// may be used (R2): an address or an annotation that does not parse, or an
// object that is no pod because it has no name or no UID.
func Convert(pod *corev1.Pod) (podsource.Pod, error) {
	p, err := convert(pod)
	if err != nil {
		return podsource.Pod{}, err
	}
	return p, nil
}

func convert(pod *corev1.Pod) (podsource.Pod, error) {
	if pod == nil {
		return podsource.Pod{}, errors.New("a pod is nil")
	}
	p := podsource.Pod{
		NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		UID:            pod.UID,
		HostNetwork:    pod.Spec.HostNetwork,
	}
	p.Finished, p.FinishedAt = finished(pod)
	if pod.Name == "" || pod.UID == "" {
		return p, fmt.Errorf("pod %s (UID %q): without a name and a UID it is no pod", p.NamespacedName, pod.UID)
	}
	if pod.Status.StartTime != nil {
		p.StartedAt = pod.Status.StartTime.Time
	}
	if p.HostNetwork {
		return p, nil
	}
	ips, err := addresses(pod)
	if err != nil {
		return p, fmt.Errorf("pod %s (UID %s): %w", p.NamespacedName, pod.UID, err)
	}
	p.IPs = ips
	return p, nil
}

// addresses returns all addresses that pod names, each once.
func addresses(pod *corev1.Pod) ([]netip.Addr, error) {
	var ips []netip.Addr
	add := func(ip netip.Addr) {
		ip = ip.Unmap().WithZone("") // as host-local names its files
		if !slices.Contains(ips, ip) {
			ips = append(ips, ip)
		}
	}
	for i, podIP := range pod.Status.PodIPs {
		ip, err := netip.ParseAddr(podIP.IP)
		if err != nil {
			return nil, fmt.Errorf("status.podIPs[%d]: %q is not an IP address", i, podIP.IP)
		}
		add(ip)
	}
	if s := pod.Status.PodIP; s != "" { // empty until kubelet reports one
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("status.podIP: %q is not an IP address", s)
		}
		add(ip)
	}
	for _, key := range []string{NetworkStatusAnnotation, networksStatusAnnotation} {
		entries, err := networkStatus(pod.Annotations[key])
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", key, err)
		}
		for _, entry := range entries {
			for _, ip := range entry.IPs {
				add(ip)
			}
		}
	}
	return ips, nil
}
