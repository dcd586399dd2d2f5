// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// FuzzAnswer checks that decode returns every pod of the answer or an error, never both, and
// does not panic.
func FuzzAnswer(f *testing.F) {
	web := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}}}}
	web.Name, web.UID = "web", "1"
	for _, p := range []*corev1.Pod{web, {}} {
		text, err := p.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, text)
		f.Add(text, text[:len(text)/2])
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []byte{0x1b})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		pods, err := decode([][]byte{first, second})
		if (err == nil) != (len(pods) == 2) {
			t.Fatalf("%d pods of 2, and error %v", len(pods), err)
		}
		for i := range pods {
			var object corev1.Pod
			if err := object.Unmarshal(slices.Clone([][]byte{first, second}[i])); err != nil {
				t.Fatalf("pod %d can't be read, but decode returned no error: %v", i+1, err)
			}
			if pods[i].Name == "" || pods[i].Name != object.Name || pods[i].UID != object.UID {
				t.Errorf("pod %d is %s/%s (UID %s), and got %v", i+1, object.Namespace, object.Name, object.UID, pods[i])
			}
		}
	})
}
