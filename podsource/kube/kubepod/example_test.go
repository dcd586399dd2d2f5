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
	pod, err := kubepod.Convert(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "6ba7b810",
			Annotations: map[string]string{kubepod.NetworkStatusAnnotation: `[{"interface": "net1", "ips": ["192.168.7.9"]}]`},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}, {IP: "fd00::2"}}},
	})
	fmt.Println(pod, pod.IPs, err)

	_, err = kubepod.Convert(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "7c9e6679"},
		Status:     corev1.PodStatus{PodIP: "pending"},
	})
	fmt.Println(err)
	// Output:
	// default/web [10.244.1.2 fd00::2 192.168.7.9] <nil>
	// pod default/db (UID 7c9e6679): status.podIP: "pending" is not an IP address
}

// An annotation that can't be read is no error, since every user who may change the pod may
// write it. The note names the pod.
func ExampleNote() {
	pod, err := kubepod.Convert(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "6ba7b810",
			Annotations: map[string]string{kubepod.NetworkStatusAnnotation: `{"ips": 7}`},
		},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}}},
	})
	fmt.Println(pod.IPs, pod.MoreIPs, err)
	fmt.Println(kubepod.Note([]podsource.Pod{pod}))
	// Output:
	// [10.244.1.2] true <nil>
	// the annotation k8s.v1.cni.cncf.io/network-status of 1 pods can't be read, one is default/web: each may have more addresses than known
}
