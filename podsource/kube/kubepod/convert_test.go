// SPDX-License-Identifier: Apache-2.0

package kubepod

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// has returns a pod that was started three days ago, and has these addresses.
func has(list ...string) podsource.Pod {
	p := podsource.Pod{StartedAt: ago(3 * day)}
	for _, s := range list {
		p.IPs = append(p.IPs, netip.MustParseAddr(s))
	}
	return p
}

// hasMore returns a pod like has, which may have more addresses.
func hasMore(list ...string) podsource.Pod {
	p := has(list...)
	p.MoreIPs = true
	return p
}

const (
	oldKey      = "k8s.v1.cni.cncf.io/networks-status"
	twoNetworks = `[
  {"name": "cbr0", "interface": "eth0", "ips": ["10.0.0.2", "fd00::2"], "mac": "aa:bb:cc:dd:ee:ff", "default": true, "dns": {}},
  {"name": "default/storage", "interface": "net1", "ips": ["192.168.7.9"], "device-info": {"type": "pci"}, "mtu": 9000},
  {"name": "default/dhcp", "interface": "net2"}
]`
)

func TestConvert(t *testing.T) {
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = stamp(ago(day)) }
	podIP := func(ip string) change { return func(p *corev1.Pod) { p.Status.PodIP = ip } }
	networks := func(text string) change { return annotated(NetworkStatusAnnotation, text) }
	done := func(p podsource.Pod, at time.Time) podsource.Pod {
		p.Finished, p.FinishedAt = true, at
		return p
	}
	onHost := has()
	onHost.HostNetwork = true
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   podsource.Pod
	}{
		{"no address yet: its start limits what it may hold", pod(), has()},
		{"dual stack", pod(podIPs("10.0.0.2", "fd00::2")), has("10.0.0.2", "fd00::2")},
		{"podIP alone, as reported by kubelets before dual stack", pod(podIP("10.0.0.2")), has("10.0.0.2")},
		{"podIP and other podIPs", pod(podIPs("fd00::2"), podIP("10.0.0.2")), has("fd00::2", "10.0.0.2")},
		{"host-local names its files after IPv4 addresses", pod(podIPs("::ffff:10.0.0.2", "10.0.0.2")), has("10.0.0.2")},
		{"a pod that is being deleted is live", pod(podIPs("10.0.0.2"), deleted, container(running())), has("10.0.0.2")},
		{"the node has not reported for long: it may run", pod(phase(corev1.PodUnknown, "NodeLost"), podIPs("10.0.0.2")), has("10.0.0.2")},
		{"the IDs of containers are not that of the sandbox", pod(container(running(), ended(ago(day)))), has()},
		{"finished", pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(day)))), done(has("10.0.0.2"), ago(day))},
		{"finished at an unknown time", pod(phase(corev1.PodFailed, "Evicted"), podIPs("10.0.0.2")), done(has("10.0.0.2"), time.Time{})},

		{"an address in another form (hazard 67)", pod(podIPs("10.0.0.2", "010.0.0.3")), hasMore("10.0.0.2")},
		{"an invalid address (hazard 67)", pod(podIPs("10.0.0.300", "fd00::2")), hasMore("fd00::2")},
		{"an empty entry (hazard 67)", pod(podIPs("10.0.0.2", "")), hasMore("10.0.0.2")},
		{"a prefix length in the status (hazard 67)", pod(podIPs("10.0.0.2/24")), hasMore()},
		{"podIP alone can't be read (hazard 67)", pod(podIP("pending")), hasMore()},
		{"it has finished, and can't be read (hazard 67)", pod(phase(corev1.PodFailed, ""), podIP("?")), done(hasMore(), time.Time{})},

		{"secondary networks", pod(podIPs("10.0.0.2"), networks(twoNetworks)), has("10.0.0.2", "fd00::2", "192.168.7.9")},
		{"the older key", pod(annotated(oldKey, twoNetworks)), has("10.0.0.2", "fd00::2", "192.168.7.9")},
		{"both keys", pod(networks(`[{"ips":["10.0.0.2"]}]`), annotated(oldKey, `[{"ips":["fd00::2"]}]`)), has("10.0.0.2", "fd00::2")},
		{"with prefix lengths", pod(networks(`[{"ips":["10.0.0.2/24","fd00::2/64"]}]`)), has("10.0.0.2", "fd00::2")},
		{"a duplicate key: both lists count", pod(networks(`[{"ips":["10.0.0.2"],"ips":["10.0.0.3"]}]`)), has("10.0.0.2", "10.0.0.3")},
		{"a zone is not in the name of a file", pod(podIPs("fd00::2%eth0"), networks(`[{"ips":["fe80::1%net1"]}]`)), has("fd00::2", "fe80::1")},
		{"no attachment", pod(networks(`[]`)), has()},
		{"an empty annotation, as after a detachment", pod(networks(" \n")), has()},
		{"an entry without addresses", pod(networks(`[{"ips":null},{}]`)), has()},
		{"the annotation that requests networks is another one", pod(annotated("k8s.v1.cni.cncf.io/networks", "storage@net1")), has()},

		// An annotation that can't be read is no error, since a tenant may have written it.
		{"no JSON (hazard 67)", pod(podIPs("10.0.0.9"), networks("eth0: 10.0.0.2")), hasMore("10.0.0.9")},
		{"truncated", pod(networks(twoNetworks[:len(twoNetworks)-9])), hasMore()},
		{"text after the array", pod(networks(`[] []`)), hasMore()},
		{"an attachment without an array", pod(networks(`{"ips":["10.0.0.2"]}`)), hasMore()},
		{"null", pod(networks(`null`)), hasMore()},
		{"an attachment that is null", pod(networks(`[{"ips":["10.0.0.2"]},null]`)), hasMore("10.0.0.2")},
		{"an attachment that is a number", pod(networks(`[1,{"ips":["10.0.0.2"]}]`)), hasMore("10.0.0.2")},
		{"an address that is null", pod(networks(`[{"ips":[null,"10.0.0.2"]}]`)), hasMore("10.0.0.2")},
		{"an address that is a number", pod(networks(`[{"ips":[10,"10.0.0.2"]}]`)), hasMore("10.0.0.2")},
		{"an address without an array", pod(networks(`[{"ips":"10.0.0.2"}]`)), hasMore()},
		{"a duplicate key, the second can be read", pod(networks(`[{"ips":"10.0.0.3","ips":["10.0.0.2"]}]`)), hasMore("10.0.0.2")},
		{"an invalid address in it", pod(networks(`[{"ips":["10.0.0.2","dhcp"]}]`)), hasMore("10.0.0.2")},
		{"an empty address", pod(networks(`[{"ips":["","10.0.0.2/24"]}]`)), hasMore("10.0.0.2")},
		{"the older key, while the other can be read", pod(annotated(oldKey, "{"), networks(`[{"ips":["10.0.0.2"]}]`)), hasMore("10.0.0.2")},

		{"in the node's network, with the node's address (hazard 28)", pod(hostNetwork, podIPs("10.0.0.2")), onHost},
		{"... an annotation that need not be read", pod(hostNetwork, annotated(NetworkStatusAnnotation, "?")), onHost},
		{"... an address that need not be read", pod(hostNetwork, podIPs("?")), onHost},
	} {
		row.want.NamespacedName, row.want.UID = types.NamespacedName{Namespace: "default", Name: "web"}, "6ba7b810"
		got := Convert(row.pod)
		if diff := cmp.Diff(row.want, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		note, want := Note([]podsource.Pod{{}, got, got}), "2 pods may have more addresses than known, one is default/web"
		if strings.Contains(note, want) != row.want.MoreIPs || (note == "") == row.want.MoreIPs {
			t.Errorf("%s: the note is %q", row.reason, note)
		}
	}
}

// What a pass decides of 10.0.0.2, whose owner no pod names. Every pod was started three days ago.
func TestVerdicts(t *testing.T) {
	type pods []*corev1.Pod
	const source = "kubernetes.io/config.source"
	pending, failed, spoiled := phase(corev1.PodPending, ""), phase(corev1.PodFailed, ""), podIPs("10.0.0.9", "010.0.0.2")
	other := func(p *corev1.Pod) *corev1.Pod {
		p.Name, p.UID = "db", "7c9e6679"
		return p
	}
	for _, row := range []struct {
		reason   string
		reserved time.Duration // ago
		pods     pods
		want     gc.Verdict
	}{
		{"in the node's network: the list is not empty (hazard 28)", past, pods{pod(hostNetwork, podIPs("10.0.0.2"))}, gc.Released},
		{"... without an address: it will hold none (hazard 112)", past, pods{pod(hostNetwork, pending)}, gc.Released},

		{"an address that can't be read, reserved since its start (hazard 67)", past, pods{pod(spoiled)}, gc.Starting},
		{"... before its start (hazard 67)", 4 * day, pods{pod(spoiled)}, gc.Released},
		{"... beside another pod's that can (hazard 67)", 4 * day, pods{pod(spoiled), other(pod(podIPs("10.0.0.2")))}, gc.InUse},
		{"... of a pod that has finished (hazard 67)", past, pods{pod(failed, spoiled, container(ended(ago(day)))), agent()}, gc.Released},

		// A kubelet that restarts gives a static pod a new start, while its sandbox stays up.
		{"a static pod from a file, in kubelet (hazard 76)", 4 * day, pods{pod(pending, annotated(source, "file"))}, gc.Starting},
		{"... from a URL (hazard 76)", 4 * day, pods{pod(pending, annotated(source, "http"))}, gc.Starting},
		{"... its mirror (hazard 76)", 4 * day, pods{pod(pending, annotated("kubernetes.io/config.mirror", "5c7b9a1e"))}, gc.Starting},
		{"from the API server, in kubelet (hazard 76)", 4 * day, pods{pod(pending, annotated(source, "api"))}, gc.Released},
		{"from the API server (hazard 76)", 4 * day, pods{pod(pending)}, gc.Released},

		// spidernet-io/spiderpool#4888 and projectcalico/calico#13858.
		{"Running without podIPs: it has an address all the same (hazard 104)", past, pods{pod(container(running()))}, gc.Starting},
		{"two pods show one address (hazard 104)", past, pods{pod(podIPs("10.0.0.2")), other(pod(podIPs("10.0.0.2")))}, gc.Conflict},
	} {
		if got := verdict(t, row.reserved, row.pods...); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}
