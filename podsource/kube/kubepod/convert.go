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

// Convert converts a pod as the kubelet of its node, or the API server, reports it. The caller
// selects the pods of this node.
//
//   - The addresses are those in status.podIPs, in status.podIP, and in every entry of the
//     network status annotation, which has those of secondary networks (hazard 22). Every
//     user who may change the pod may write the annotation, so one that can't be read is no
//     error: the pod then may have more addresses (MoreIPs) and own any reservation made
//     since it started (R4, hazard 67). [Note] names such pods.
//   - A pod in the node's network claims nothing, and its annotation is not read
//     (hazard 28).
//   - StartedAt is status.startTime, which kubelet takes from the node's clock. Without it
//     the start is unknown. The creation time is earlier, and from the clock of another
//     machine, so it is not used (R4, hazards 32 and 36). The start of a static pod is
//     unknown as well: a kubelet that restarts gives it a new one, while its sandbox stays
//     up (hazard 76).
//   - A pod that is being deleted is live. A pod in phase Succeeded or Failed is Finished,
//     unless a container is reported as running or the sandbox as ready. FinishedAt is when
//     its containers ended, its sandbox was removed or its status was last written, and zero
//     if none of these is known (hazards 12, 13, 31, 56 and 57).
//   - ContainerIDs stays empty. The IDs in a pod's status are those of its containers, not
//     of the sandbox that owns the reservation.
//
// The object must be consistent, as the API server returns it. If its status was replaced,
// as in kubelet's Pods API, its managed fields are about the old status and must be removed
// first.
//
// Any other part that can't be read is an error that names the pod: an address in the status
// that can't be parsed, or an object without a name or a UID. Then no pod of the list may be
// used (R2).
func Convert(pod *corev1.Pod) (podsource.Pod, error) {
	p, err := convert(pod)
	if err != nil {
		return podsource.Pod{}, err
	}
	return p, nil
}

// Note returns a text about pods whose network status annotation can't be read, for the
// Note of an answer, and "" if there are none.
func Note(pods []podsource.Pod) string {
	var first *podsource.Pod
	n := 0
	for i := range pods {
		if pods[i].MoreIPs {
			if n++; first == nil {
				first = &pods[i]
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("the annotation %s of %d pods can't be read, one is %s: each may have more addresses than known",
		NetworkStatusAnnotation, n, first.NamespacedName)
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
		return p, fmt.Errorf("pod %s (UID %q): a pod must have a name and a UID", p.NamespacedName, pod.UID)
	}
	if pod.Status.StartTime != nil && !static(pod) {
		p.StartedAt = pod.Status.StartTime.Time
	}
	if p.HostNetwork {
		return p, nil
	}
	reported, err := statusIPs(&pod.Status)
	if err != nil {
		return p, fmt.Errorf("pod %s (UID %s): %w", p.NamespacedName, pod.UID, err)
	}
	annotated, whole := annotatedIPs(pod.Annotations)
	p.MoreIPs = !whole
	for _, ip := range append(reported, annotated...) {
		ip = ip.Unmap().WithZone("") // as host-local names its files
		if !slices.Contains(p.IPs, ip) {
			p.IPs = append(p.IPs, ip)
		}
	}
	return p, nil
}

// static reports whether kubelet has the pod from a file or a URL, or the pod is the API
// server's mirror of such a pod.
func static(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	source, known := pod.Annotations["kubernetes.io/config.source"] // kubelet, pkg/kubelet/types: ConfigSourceAnnotationKey
	return mirror || known && source != "api"
}

// statusIPs returns all addresses in a pod's status.
func statusIPs(status *corev1.PodStatus) ([]netip.Addr, error) {
	var ips []netip.Addr
	for i, podIP := range status.PodIPs {
		ip, err := netip.ParseAddr(podIP.IP)
		if err != nil {
			return nil, fmt.Errorf("status.podIPs[%d]: %q is not an IP address", i, podIP.IP)
		}
		ips = append(ips, ip)
	}
	if s := status.PodIP; s != "" { // empty until kubelet reports one
		ip, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("status.podIP: %q is not an IP address", s)
		}
		ips = append(ips, ip)
	}
	return ips, nil
}
