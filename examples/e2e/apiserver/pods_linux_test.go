// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// old is older than any minimum age here, recent is younger.
const (
	old    = 24 * time.Hour
	recent = time.Second
)

// A change changes a pod that has run for two days without an address.
type change func(*corev1.Pod)

// pod creates a pod that is bound to the node, and then writes its status, as kubelet does.
func (n *node) pod(name string, changes ...change) *corev1.Pod {
	n.t.Helper()
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName:   n.name,
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/main:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ago(2 * old)},
	}
	for _, c := range changes {
		c(want)
	}
	made, err := n.client.CoreV1().Pods(n.namespace).Create(n.t.Context(), want, metav1.CreateOptions{})
	n.must(err)
	made.Status = want.Status
	return n.setPodStatus(made)
}

// setPodStatus writes a pod's status, as kubelet does.
func (n *node) setPodStatus(pod *corev1.Pod) *corev1.Pod {
	n.t.Helper()
	got, err := n.client.CoreV1().Pods(n.namespace).UpdateStatus(n.t.Context(), pod, metav1.UpdateOptions{})
	n.must(err)
	return got
}

// remove deletes a pod with a grace period in seconds.
func (n *node) remove(name string, grace int64) {
	n.t.Helper()
	n.must(n.client.CoreV1().Pods(n.namespace).Delete(n.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

// backdate sets the times in the pod's managed fields back. They can't be set by the request
// that writes the status.
func (n *node) backdate(pod *corev1.Pod, by time.Duration) {
	n.t.Helper()
	for i := range pod.ManagedFields {
		pod.ManagedFields[i].Time = ago(by)
	}
	metav1.SetMetaDataLabel(&pod.ObjectMeta, "backdated", "true") // the server ignores an update of times alone
	got, err := n.client.CoreV1().Pods(n.namespace).Update(n.t.Context(), pod, metav1.UpdateOptions{})
	n.must(err)
	for _, entry := range got.ManagedFields {
		if entry.Subresource == "status" && time.Since(entry.Time.Time) < by {
			n.t.Fatalf("the server has %v as the time of the last change of the status", entry.Time)
		}
	}
}

func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: time.Now().Add(-d)} }

func phase(p corev1.PodPhase) change { return func(pod *corev1.Pod) { pod.Status.Phase = p } }

// started sets status.startTime; zero leaves it out.
func started(since time.Duration) change {
	return func(pod *corev1.Pod) {
		pod.Status.StartTime = ago(since)
		if since == 0 {
			pod.Status.StartTime = nil
		}
	}
}

func with(ips ...netip.Addr) change {
	return func(pod *corev1.Pod) {
		pod.Status.PodIP, pod.Status.PodIPs = ips[0].String(), nil
		for _, ip := range ips {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip.String()})
		}
	}
}

// finished sets the phase, and the given time as the end of the containers.
func finished(p corev1.PodPhase, since time.Duration) change {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = p
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", Image: "registry.example/main:1", ContainerID: "containerd://5c7b9a1e",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "Completed", StartedAt: *ago(2 * old), FinishedAt: *ago(since), ContainerID: "containerd://5c7b9a1e",
			}},
		}}
	}
}

// evicted sets the status that kubelet writes for a pod that it does not admit.
func evicted(since time.Duration) change {
	return func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory.", StartTime: ago(since)}
	}
}

// running sets the status of a running container.
func running(pod *corev1.Pod) {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Image: "registry.example/main:1", ContainerID: "containerd://5c7b9a1e",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *ago(old)}},
	}}
}

// sandboxUp sets the condition of the pod's sandbox, and the time of its last change.
func sandboxUp(status corev1.ConditionStatus, since time.Duration) change {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: status, LastTransitionTime: *ago(since)}}
	}
}

func onHostNetwork(pod *corev1.Pod) { pod.Spec.HostNetwork = true }

func annotated(key, value string) change {
	return func(pod *corev1.Pod) { metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value) }
}

func boundTo(node string) change { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }
