// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Convert converts a pod as the kubelet of its node, or the API server, reports it. The caller
// selects the pods of this node.
//
//   - The addresses are those in status.podIPs, in status.podIP, and in every entry of the
//     network status annotation, which has those of secondary networks (hazard 22). A pod
//     that is Running without any is taken for one whose addresses are not known yet (R4,
//     hazard 104).
//   - An address in another form, such as "010.0.0.2", is left out, and so is what can't be
//     read of an annotation, which every user who may change the pod may write. The pod then
//     may have more addresses (MoreIPs) and own any reservation made since it started (R4,
//     hazard 67). [Note] names such pods.
//   - A pod in the node's network claims nothing, and its addresses are not read
//     (hazard 28).
//   - StartedAt is status.startTime, which kubelet takes from the node's clock. Without it
//     the start is unknown. The creation time is earlier, and from the clock of another
//     machine, so it is not used (R4, hazards 32 and 36). The start of a static pod is
//     unknown as well: a kubelet that restarts gives it a new one, while its sandbox stays
//     up (hazard 76).
//   - A pod that is being deleted is live. A pod in phase Succeeded or Failed is Finished,
//     unless a container is reported as running or the sandbox as ready. FinishedAt is when
//     its containers ended or its status was last written, whichever is later, and zero if
//     neither is known (hazards 12, 13, 31, 56 and 57).
//   - ContainerIDs stays empty. The IDs in a pod's status are those of its containers, not
//     of the sandbox that owns the reservation.
//
// The object must be consistent, as the API server returns it. If its status was replaced,
// as in kubelet's Pods API, its managed fields are about the old status and must be removed
// first.
func Convert(pod *corev1.Pod) podsource.Pod {
	p := podsource.Pod{
		NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		UID:            pod.UID,
		HostNetwork:    pod.Spec.HostNetwork,
	}
	p.Finished, p.FinishedAt = finished(pod)
	if pod.Status.StartTime != nil && !static(pod) {
		p.StartedAt = pod.Status.StartTime.Time
	}
	if p.HostNetwork {
		return p
	}
	reported, whole := statusIPs(&pod.Status)
	annotated, annotationWhole := annotatedIPs(pod.Annotations)
	p.MoreIPs = !whole || !annotationWhole
	for _, ip := range append(reported, annotated...) {
		ip = ip.Unmap().WithZone("") // as host-local names its files
		if !slices.Contains(p.IPs, ip) {
			p.IPs = append(p.IPs, ip)
		}
	}
	return p
}

// Note returns a text about pods with addresses that can't be read, for the Note of an answer,
// and "" if there are none.
func Note(pods []podsource.Pod) string {
	spoiled := slices.DeleteFunc(slices.Clone(pods), func(p podsource.Pod) bool { return !p.MoreIPs })
	if len(spoiled) == 0 {
		return ""
	}
	return fmt.Sprintf("%d pods may have more addresses than known, one is %s: its status or %s can't be read",
		len(spoiled), spoiled[0].NamespacedName, NetworkStatusAnnotation)
}

// static reports whether kubelet has the pod from a file or a URL, or the pod is the API
// server's mirror of such a pod.
func static(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	source, known := pod.Annotations["kubernetes.io/config.source"] // kubelet, pkg/kubelet/types: ConfigSourceAnnotationKey
	return mirror || known && source != "api"
}

// statusIPs returns the addresses in a pod's status, and whether all of them could be read.
func statusIPs(status *corev1.PodStatus) (ips []netip.Addr, whole bool) {
	whole = true
	list := status.PodIPs
	if status.PodIP != "" { // empty until kubelet reports one
		list = append(slices.Clone(list), corev1.PodIP{IP: status.PodIP})
	}
	for _, podIP := range list {
		ip, err := netip.ParseAddr(podIP.IP)
		if err != nil {
			whole = false
			continue
		}
		ips = append(ips, ip)
	}
	return ips, whole
}
