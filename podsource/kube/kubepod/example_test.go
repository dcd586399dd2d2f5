// SPDX-License-Identifier: Apache-2.0

package kubepod_test

import (
	"fmt"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ExampleConvert() {
	pod := kubepod.Convert(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "6ba7b810",
			Annotations: map[string]string{kubepod.NetworkStatusAnnotation: `[{"interface": "net1", "ips": ["192.168.7.9"]}]`},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}, {IP: "fd00::2"}}},
	})
	fmt.Println(pod, pod.IPs)
	// Output: default/web [10.244.1.2 fd00::2 192.168.7.9]
}

// What can't be read is no error. The pod then may have more addresses, and the note names it.
func ExampleNote() {
	pod := kubepod.Convert(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "6ba7b810"},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}, {IP: "010.0.0.2"}}},
	})
	fmt.Println(pod.IPs, pod.MoreIPs)
	fmt.Println(kubepod.Note([]podsource.Pod{pod}))
	// Output:
	// [10.244.1.2] true
	// 1 pods may have more addresses than known, one is default/web: its status or k8s.v1.cni.cncf.io/network-status can't be read
}
