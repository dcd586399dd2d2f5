// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	corev1 "k8s.io/api/core/v1"
)

// FuzzConvert checks that Convert returns a pod with its addresses or an error, never both,
// and does not panic.
func FuzzConvert(f *testing.F) {
	for _, text := range []string{twoNetworks, `[]`, `null`, ``, `[null]`, `[{"ips":[null]}]`, `[{"ips":["10.0.0.2/24"]}]`, `[{"ips":["::ffff:10.0.0.2","fe80::1%a"]}]`, `[[[[[`} {
		f.Add([]byte(`{"metadata":{"name":"web","uid":"1"},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.2"}]}}`), text)
	}
	for _, p := range []*corev1.Pod{
		{}, pod(), pod(podIPs("10.0.0.2", "fd00::2")), pod(podIPs("x")), pod(hostNetwork),
		pod(phase(corev1.PodFailed, "Evicted")), pod(phase(corev1.PodSucceeded, ""), container(ended(ago(past)), lost())),
		pod(phase(corev1.PodFailed, ""), condition(hasSandbox, no, ago(past)), written("status", stamp(ago(past)))),
	} {
		object, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(object, "")
	}
	f.Add([]byte(`{"status":{"containerStatuses":[{"state":{"terminated":{"finishedAt":null}}}],"conditions":[{}]}}`), "")
	f.Fuzz(func(t *testing.T, object []byte, annotation string) {
		var p corev1.Pod
		if json.Unmarshal(object, &p) != nil {
			t.Skip("the decoder of the API rejects it")
		}
		if annotation != "" {
			annotated(NetworkStatusAnnotation, annotation)(&p)
		}
		got, err := Convert(&p)
		if err != nil {
			if diff := cmp.Diff(podsource.Pod{}, got, equal); diff != "" {
				t.Errorf("a pod beside the error %v (-want +got):\n%s", err, diff)
			}
			return
		}
		if got.Name == "" || got.UID == "" || got.Name != p.Name || got.UID != p.UID || len(got.ContainerIDs) != 0 {
			t.Errorf("got %+v of %s/%s %s", got, p.Namespace, p.Name, p.UID)
		}
		mayFinish := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if got.HasFinished() && !mayFinish {
			t.Errorf("a pod in phase %q has finished", p.Status.Phase)
		}
		if got.HasFinished() != got.Finished {
			t.Errorf("Finished is not set, and FinishedAt is %v", got.FinishedAt)
		}
		if !got.StartedAt.IsZero() && static(&p) {
			t.Error("a static pod has a start")
		}
		if got.HostNetwork {
			if len(got.IPs) != 0 || got.MoreIPs {
				t.Errorf("a pod in the node's network claims %v", got.IPs)
			}
			return
		}
		if (len(p.Status.PodIPs) > 0 || p.Status.PodIP != "") && len(got.IPs) == 0 {
			t.Error("an address is missing")
		}
		for _, ip := range got.IPs {
			if !ip.IsValid() || ip.Is4In6() || ip.Zone() != "" {
				t.Errorf("%v can't be the name of a reservation", ip)
			}
		}
	})
}
