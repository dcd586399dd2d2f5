// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// old is older than any minimum age here, recent is younger.
const (
	old    = 24 * time.Hour
	recent = time.Minute
)

// A change makes something of a pod that has run for two days without an
// address.
type change func(*corev1.Pod)

// pod makes a pod that is bound to the node, and then gives it its status, as
// kubelet does.
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

// setPodStatus has kubelet write a pod's status.
func (n *node) setPodStatus(pod *corev1.Pod) *corev1.Pod {
	n.t.Helper()
	got, err := n.client.CoreV1().Pods(n.namespace).UpdateStatus(n.t.Context(), pod, metav1.UpdateOptions{})
	n.must(err)
	return got
}

// remove deletes a pod, at once or, as seen from the API, in a while.
func (n *node) remove(name string, grace int64) {
	n.t.Helper()
	n.must(n.client.CoreV1().Pods(n.namespace).Delete(n.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

// backdate makes the server's own note of when the pod's status was written,
// which nobody can set while writing it, an older one.
func (n *node) backdate(pod *corev1.Pod, by time.Duration) {
	n.t.Helper()
	for i := range pod.ManagedFields {
		pod.ManagedFields[i].Time = ago(by)
	}
	metav1.SetMetaDataLabel(&pod.ObjectMeta, "backdated", "true") // the server takes no change of times alone
	got, err := n.client.CoreV1().Pods(n.namespace).Update(n.t.Context(), pod, metav1.UpdateOptions{})
	n.must(err)
	for _, entry := range got.ManagedFields {
		if entry.Subresource == "status" && time.Since(entry.Time.Time) < by {
			n.t.Fatalf("the server notes %v as the last change of the status", entry.Time)
		}
	}
}

func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: time.Now().Add(-d)} }

func phase(p corev1.PodPhase) change { return func(pod *corev1.Pod) { pod.Status.Phase = p } }

// started sets status.startTime; zero is a pod that kubelet has not seen.
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

// finished ends all containers of the pod, that long ago.
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

// evicted is what kubelet writes for a pod that it does not admit.
func evicted(since time.Duration) change {
	return func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory.", StartTime: ago(since)}
	}
}

// running has the pod's container run.
func running(pod *corev1.Pod) {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Image: "registry.example/main:1", ContainerID: "containerd://5c7b9a1e",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *ago(old)}},
	}}
}

// sandboxUp sets what kubelet says of the pod's sandbox, and since when.
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
