// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzAnswer checks that decode returns every pod of the answer or an error, never both, and
// does not panic.
func FuzzAnswer(f *testing.F) {
	web := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1", Annotations: map[string]string{"k8s.v1.cni.cncf.io/network-status": `[{"ips":["10.0.0.3"]}]`}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}}},
	}
	evicted := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "evicted", UID: "2"},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Unix(1700000000, 0)}},
		}}},
	}
	for _, p := range []*corev1.Pod{web, evicted, {}} {
		text, err := p.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, text)
		f.Add(text, []byte(nil))
		f.Add(text, text[:len(text)/2])
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []byte{0x1b})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		pods, err := decode([][]byte{first, second})
		if err != nil {
			if pods != nil {
				t.Errorf("%d pods beside the error %v", len(pods), err)
			}
			return
		}
		if len(pods) != 2 {
			t.Fatalf("%d pods of 2", len(pods))
		}
		for i, text := range [][]byte{first, second} {
			var object corev1.Pod
			if err := object.Unmarshal(slices.Clone(text)); err != nil {
				t.Fatalf("pod %d can't be read, but decode returned no error: %v", i+1, err)
			}
			if pods[i].Name == "" || pods[i].Name != object.Name || pods[i].UID != object.UID {
				t.Errorf("pod %d is %s/%s (UID %s), and got %v", i+1, object.Namespace, object.Name, object.UID, pods[i])
			}
			if len(object.Status.PodIPs) > 0 && len(pods[i].IPs) == 0 && !pods[i].HostNetwork {
				t.Errorf("pod %d lost its addresses", i+1)
			}
		}
	})
}
