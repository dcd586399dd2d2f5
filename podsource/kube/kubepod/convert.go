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
//     addresses no other field has (hazard 22). Anybody may write there who may
//     change the pod, so what can't be read is no error: the pod then counts as one
//     with more addresses than these, which may own any reservation made since it
//     started (MoreIPs, R4, hazard 67). [Note] names such pods.
//   - A pod in the node's network is seen but claims nothing, and its annotation
//     is not read (hazard 28).
//   - StartedAt is status.startTime, which is kubelet's reading of the node's
//     clock. Without it the start is unknown; the creation time is another
//     machine's clock and an earlier moment, and so no substitute (R4, hazards
//     32 and 36). The start of a static pod is unknown as well: a kubelet that is
//     restarted gives it a new one, while its sandbox lives on (hazard 76).
//   - A pod that is being deleted is as live as any. In phase Succeeded or Failed
//     it has Finished, unless a container is reported as running or the sandbox as
//     up. FinishedAt says when its containers ended, its sandbox went or its status
//     was last written, and is zero where none of these is known (hazards 12, 13,
//     31, 56 and 57).
//   - ContainerIDs stays empty. The IDs in a pod's status are those of its
//     containers, not of the sandbox that owns the reservation.
//
// The object must be of one piece, as the API server holds it. Where somebody put
// another status into it, as kubelet's Pods API does, its managed fields tell of
// the old one and have to be taken out first.
//
// What can't be read elsewhere is an error that names the pod, and then no pod of
// the list may be used (R2): an address in the status that does not parse, or an
// object that is no pod because it has no name or no UID.
func Convert(pod *corev1.Pod) (podsource.Pod, error) {
	p, err := convert(pod)
	if err != nil {
		return podsource.Pod{}, err
	}
	return p, nil
}

// Note says of which pods the network status annotation could not be read, for
// the Note of an answer. It is empty where there are none.
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
	return fmt.Sprintf("the annotation %s can't be read of %d pods, one is %s: any of them may have more addresses than are known",
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
		return p, fmt.Errorf("pod %s (UID %q): without a name and a UID it is no pod", p.NamespacedName, pod.UID)
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

// static reports whether kubelet has the pod from a file or a URL of its own, or
// whether it is what the API server shows of such a pod.
func static(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	source, known := pod.Annotations["kubernetes.io/config.source"] // kubelet, pkg/kubelet/types: ConfigSourceAnnotationKey
	return mirror || known && source != "api"
}

// statusIPs returns all addresses that a pod's status names.
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
