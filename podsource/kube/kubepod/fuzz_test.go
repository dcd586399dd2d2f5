// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// FuzzConvert checks that Convert loses no address without saying so, and does not panic.
func FuzzConvert(f *testing.F) {
	for _, text := range []string{twoNetworks, `null`, `[null]`, `[{"ips":[null]}]`, `[{"ips":["::ffff:10.0.0.2","fe80::1%a"]}]`, `[[[[[`} {
		f.Add([]byte(`{"metadata":{"name":"web","uid":"1"},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.2"}]}}`), text)
	}
	for _, p := range []*corev1.Pod{
		{}, pod(podIPs("10.0.0.2", "fd00::2")), pod(podIPs("x")), pod(hostNetwork),
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
		got, reported := Convert(&p), len(p.Status.PodIPs) > 0 || p.Status.PodIP != ""
		switch mayFinish := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed; {
		case got.Name != p.Name || got.UID != p.UID || len(got.ContainerIDs) != 0:
			t.Errorf("got %+v of %s/%s %s", got, p.Namespace, p.Name, p.UID)
		case got.HasFinished() && !mayFinish || got.HasFinished() != got.Finished:
			t.Errorf("in phase %q it has finished: %t, at %v", p.Status.Phase, got.Finished, got.FinishedAt)
		case !got.StartedAt.IsZero() && static(&p):
			t.Error("a static pod has a start")
		case got.HostNetwork && (len(got.IPs) != 0 || got.MoreIPs):
			t.Errorf("a pod in the node's network claims %v", got.IPs)
		case !got.HostNetwork && reported && len(got.IPs) == 0 && !got.MoreIPs:
			t.Error("an address is missing")
		}
		for i, ip := range got.IPs {
			if !ip.IsValid() || ip.Is4In6() || ip.Zone() != "" || slices.Contains(got.IPs[:i], ip) {
				t.Errorf("%v can't be the name of a reservation, or is in the list twice", ip)
			}
		}
	})
}
