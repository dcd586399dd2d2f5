// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func addrs(list ...string) (ips []netip.Addr) {
	for _, s := range list {
		ips = append(ips, netip.MustParseAddr(s))
	}
	return ips
}

const twoNetworks = `[
  {"name": "cbr0", "interface": "eth0", "ips": ["10.0.0.2", "fd00::2"], "mac": "aa:bb:cc:dd:ee:ff", "default": true, "dns": {}},
  {"name": "default/storage", "interface": "net1", "ips": ["192.168.7.9"], "device-info": {"type": "pci"}, "mtu": 9000},
  {"name": "default/dhcp", "interface": "net2"}
]`

func TestConvert(t *testing.T) {
	begun := ago(3 * day)
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = stamp(ago(day)) }
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   podsource.Pod
	}{
		{"no address yet: its start limits what it may hold", pod(), podsource.Pod{StartedAt: begun}},
		{"dual stack", pod(podIPs("10.0.0.2", "fd00::2")), podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2"), StartedAt: begun}},
		{"podIP alone, as reported by kubelets before dual stack", pod(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"podIP and other podIPs", pod(podIPs("fd00::2"), func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }),
			podsource.Pod{IPs: addrs("fd00::2", "10.0.0.2"), StartedAt: begun}},
		{"host-local names its files after IPv4 addresses", pod(podIPs("::ffff:10.0.0.2", "10.0.0.2")),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"a pod that is being deleted is live", pod(podIPs("10.0.0.2"), deleted, container(running())),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"the node has not reported for long: the pod may run", pod(phase(corev1.PodUnknown, "NodeLost"), podIPs("10.0.0.2")),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"the IDs of containers are not that of the sandbox", pod(container(running(), ended(ago(day)))), podsource.Pod{StartedAt: begun}},
		{"secondary networks", pod(podIPs("10.0.0.2"), annotated(NetworkStatusAnnotation, twoNetworks)),
			podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2", "192.168.7.9"), StartedAt: begun}},
		{"the older key", pod(annotated("k8s.v1.cni.cncf.io/networks-status", twoNetworks)),
			podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2", "192.168.7.9"), StartedAt: begun}},
		{"both keys, with different addresses", pod(annotated(NetworkStatusAnnotation, `[{"ips":["10.0.0.2"]}]`),
			annotated("k8s.v1.cni.cncf.io/networks-status", `[{"ips":["10.0.0.3"]}]`)),
			podsource.Pod{IPs: addrs("10.0.0.2", "10.0.0.3"), StartedAt: begun}},
		{"with prefix lengths", pod(annotated(NetworkStatusAnnotation, `[{"ips":["10.0.0.2/24","fd00::2/64"]}]`)),
			podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2"), StartedAt: begun}},
		{"a duplicate key: both lists count", pod(annotated(NetworkStatusAnnotation, `[{"ips":["10.0.0.2"],"ips":["10.0.0.3"]}]`)),
			podsource.Pod{IPs: addrs("10.0.0.2", "10.0.0.3"), StartedAt: begun}},
		{"a zone is not in the name of a reservation", pod(annotated(NetworkStatusAnnotation, `[{"ips":["fe80::1%net1"]}]`)),
			podsource.Pod{IPs: addrs("fe80::1"), StartedAt: begun}},
		{"no attachment", pod(annotated(NetworkStatusAnnotation, `[]`)), podsource.Pod{StartedAt: begun}},
		{"an empty annotation, as after a detachment", pod(annotated(NetworkStatusAnnotation, " \n")), podsource.Pod{StartedAt: begun}},
		{"an entry without addresses", pod(annotated(NetworkStatusAnnotation, `[{"ips":null},{}]`)), podsource.Pod{StartedAt: begun}},
		{"the annotation that requests networks is another one", pod(annotated("k8s.v1.cni.cncf.io/networks", "storage@net1")), podsource.Pod{StartedAt: begun}},
		{"finished", pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(day)))),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun, Finished: true, FinishedAt: ago(day)}},
		{"finished at an unknown time", pod(phase(corev1.PodFailed, "Evicted"), podIPs("10.0.0.2")),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun, Finished: true}},
	} {
		row.want.NamespacedName, row.want.UID = types.NamespacedName{Namespace: "default", Name: "web"}, "6ba7b810"
		got, err := Convert(row.pod)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
			continue
		}
		if diff := cmp.Diff(row.want, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// R2: a pod that can't be read is an error that names the pod.
//
// Guard: [statusIPs] and [convert] return an error for a pod that can't be read.
func TestHazard07ConvertRefuses(t *testing.T) {
	const prefix = "pod default/web (UID 6ba7b810): "
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   string
	}{
		{"nil", nil, "a pod is nil"},
		{"the result of decoding an empty message", &corev1.Pod{}, "a pod must have a name and a UID"},
		{"no UID", pod(func(p *corev1.Pod) { p.UID = "" }), "pod default/web"},
		{"no name", pod(func(p *corev1.Pod) { p.Name = "" }), "6ba7b810"},
		{"an invalid address", pod(podIPs("10.0.0.2", "10.0.0.300")), prefix + `status.podIPs[1]: "10.0.0.300" is not an IP address`},
		{"an empty entry", pod(podIPs("10.0.0.2", "")), prefix + `status.podIPs[1]: "" is not an IP address`},
		{"a prefix in the status", pod(podIPs("10.0.0.2/24")), prefix + `status.podIPs[0]`},
		{"podIP alone", pod(func(p *corev1.Pod) { p.Status.PodIP = "pending" }), prefix + `status.podIP: "pending" is not an IP address`},
	} {
		got, err := Convert(row.pod)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got error %v, want one that says %q", row.reason, err, row.want)
		}
		if diff := cmp.Diff(podsource.Pod{}, got, equal); diff != "" {
			t.Errorf("%s: a pod beside the error (-want +got):\n%s", row.reason, diff)
		}
	}
}

// An annotation that can't be read is no error, since a tenant may have written it. Its pod
// claims the addresses that can be read, and may have more.
//
// Guard: [annotatedIPs] reports whether it could read everything, and [convert] sets MoreIPs.
func TestHazard67GarbageInTheAnnotation(t *testing.T) {
	annotation := func(text string) *corev1.Pod {
		return pod(podIPs("10.0.0.9"), annotated(NetworkStatusAnnotation, text))
	}
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		ips    string // beside 10.0.0.9
	}{
		{"no JSON", annotation("eth0: 10.0.0.2"), ""},
		{"truncated", annotation(twoNetworks[:len(twoNetworks)-9]), ""},
		{"text after the array", annotation(`[] []`), ""},
		{"an attachment without an array", annotation(`{"ips":["10.0.0.2"]}`), ""},
		{"null", annotation(`null`), ""},
		{"an attachment that is null", annotation(`[{"ips":["10.0.0.2"]},null]`), "10.0.0.2"},
		{"an attachment that is a number", annotation(`[1,{"ips":["10.0.0.2"]}]`), "10.0.0.2"},
		{"an address that is null", annotation(`[{"ips":[null,"10.0.0.2"]}]`), "10.0.0.2"},
		{"an address that is a number", annotation(`[{"ips":[10,"10.0.0.2"]}]`), "10.0.0.2"},
		{"an address without an array", annotation(`[{"ips":"10.0.0.2"}]`), ""},
		{"a duplicate key, the second can be read", annotation(`[{"ips":"10.0.0.3","ips":["10.0.0.2"]}]`), "10.0.0.2"},
		{"an invalid address", annotation(`[{"ips":["10.0.0.2","dhcp"]}]`), "10.0.0.2"},
		{"an empty address", annotation(`[{"ips":["","10.0.0.2/24"]}]`), "10.0.0.2"},
		{"the older key", pod(podIPs("10.0.0.9"), annotated("k8s.v1.cni.cncf.io/networks-status", "{")), ""},
		{"the older key, while the other can be read", pod(podIPs("10.0.0.9"), annotated("k8s.v1.cni.cncf.io/networks-status", "{"),
			annotated(NetworkStatusAnnotation, `[{"ips":["10.0.0.2"]}]`)), "10.0.0.2"},
	} {
		got, err := Convert(row.pod)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
			continue
		}
		want := podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "6ba7b810",
			StartedAt: ago(3 * day), IPs: addrs("10.0.0.9"), MoreIPs: true}
		if row.ips != "" {
			want.IPs = append(want.IPs, addrs(row.ips)...)
		}
		if diff := cmp.Diff(want, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if note := Note([]podsource.Pod{{}, got, got}); !strings.Contains(note, NetworkStatusAnnotation) || !strings.Contains(note, "of 2 pods can't be read, one is default/web") {
			t.Errorf("%s: the note is %q", row.reason, note)
		}
	}
	if note := Note([]podsource.Pod{{}}); note != "" {
		t.Errorf("all annotations can be read, and the note is %q", note)
	}

	// As for a starting pod, reservations older than its start are released.
	garbage := annotation("?")
	if got := verdict(t, 2*day, garbage); got != gc.Starting {
		t.Errorf("reserved since its start: got %v, want %v", got, gc.Starting)
	}
	if got := verdict(t, 4*day, garbage); got != gc.Released {
		t.Errorf("reserved before its start: got %v, want %v", got, gc.Released)
	}
	done := pod(phase(corev1.PodFailed, ""), container(ended(ago(day))), annotated(NetworkStatusAnnotation, "?"))
	if got := verdict(t, 2*day, done, agent()); got != gc.Released {
		t.Errorf("it has finished: got %v, want %v", got, gc.Released)
	}
}

// A kubelet that restarts gives a static pod a new start, while its sandbox stays up. So the
// pod may hold reservations that are older than its start.
//
// Guard: [static] pods have no start.
func TestHazard76StaticPod(t *testing.T) {
	pending := phase(corev1.PodPending, "")
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   gc.Verdict
	}{
		{"from a file, in kubelet", pod(pending, annotated("kubernetes.io/config.source", "file")), gc.Starting},
		{"from a URL", pod(pending, annotated("kubernetes.io/config.source", "http")), gc.Starting},
		{"its mirror in the API server", pod(pending, annotated("kubernetes.io/config.mirror", "5c7b9a1e")), gc.Starting},
		{"from the API server, in kubelet", pod(pending, annotated("kubernetes.io/config.source", "api")), gc.Released},
		{"from the API server", pod(pending), gc.Released},
	} {
		if got := verdict(t, 4*day, row.pod); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}

// A pod in the node's network is in the list, and claims nothing.
//
// Guard: [convert] leaves out the addresses of a pod in the node's network.
func TestHazard28HostNetworkClaimsNothing(t *testing.T) {
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
	}{
		{"with the node's address", pod(hostNetwork, podIPs("10.0.0.2"))},
		{"without an address yet: it will hold none", pod(hostNetwork)},
		{"an annotation that need not be read", pod(hostNetwork, annotated(NetworkStatusAnnotation, "?"))},
		{"an address that need not be read", pod(hostNetwork, podIPs("?"))},
	} {
		got, err := Convert(row.pod)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
			continue
		}
		want := podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "6ba7b810",
			StartedAt: ago(3 * day), HostNetwork: true}
		if diff := cmp.Diff(want, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		// R9: the list is not empty, so the pass releases.
		if got := verdict(t, past, row.pod); got != gc.Released {
			t.Errorf("%s: got %v, want %v", row.reason, got, gc.Released)
		}
	}
}
