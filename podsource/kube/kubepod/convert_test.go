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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		{"no address yet: its start tells what it may hold", pod(), podsource.Pod{StartedAt: begun}},
		{"dual stack", pod(podIPs("10.0.0.2", "fd00::2")), podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2"), StartedAt: begun}},
		{"podIP alone, as kubelets before dual stack report it", pod(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"podIP beside others", pod(podIPs("fd00::2"), func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }),
			podsource.Pod{IPs: addrs("fd00::2", "10.0.0.2"), StartedAt: begun}},
		{"host-local names its files after IPv4 addresses", pod(podIPs("::ffff:10.0.0.2", "10.0.0.2")),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"being deleted is live", pod(podIPs("10.0.0.2"), deleted, container(running())),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"the node did not report for long: nobody knows that it ended", pod(phase(corev1.PodUnknown, "NodeLost"), podIPs("10.0.0.2")),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun}},
		{"containers' IDs are not the sandbox's", pod(container(running(), ended(ago(day)))), podsource.Pod{StartedAt: begun}},
		{"secondary networks", pod(podIPs("10.0.0.2"), annotated(NetworkStatusAnnotation, twoNetworks)),
			podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2", "192.168.7.9"), StartedAt: begun}},
		{"the older key", pod(annotated("k8s.v1.cni.cncf.io/networks-status", twoNetworks)),
			podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2", "192.168.7.9"), StartedAt: begun}},
		{"both keys, which need not agree", pod(annotated(NetworkStatusAnnotation, `[{"ips":["10.0.0.2"]}]`),
			annotated("k8s.v1.cni.cncf.io/networks-status", `[{"ips":["10.0.0.3"]}]`)),
			podsource.Pod{IPs: addrs("10.0.0.2", "10.0.0.3"), StartedAt: begun}},
		{"with prefix lengths", pod(annotated(NetworkStatusAnnotation, `[{"ips":["10.0.0.2/24","fd00::2/64"]}]`)),
			podsource.Pod{IPs: addrs("10.0.0.2", "fd00::2"), StartedAt: begun}},
		{"a key twice: neither list is lost", pod(annotated(NetworkStatusAnnotation, `[{"ips":["10.0.0.2"],"ips":["10.0.0.3"]}]`)),
			podsource.Pod{IPs: addrs("10.0.0.2", "10.0.0.3"), StartedAt: begun}},
		{"a zone is no part of a reservation's name", pod(annotated(NetworkStatusAnnotation, `[{"ips":["fe80::1%net1"]}]`)),
			podsource.Pod{IPs: addrs("fe80::1"), StartedAt: begun}},
		{"nothing is attached", pod(annotated(NetworkStatusAnnotation, `[]`)), podsource.Pod{StartedAt: begun}},
		{"an empty annotation, as after a detachment", pod(annotated(NetworkStatusAnnotation, " \n")), podsource.Pod{StartedAt: begun}},
		{"no addresses at all in an entry", pod(annotated(NetworkStatusAnnotation, `[{"ips":null},{}]`)), podsource.Pod{StartedAt: begun}},
		{"which networks it wants is another annotation", pod(annotated("k8s.v1.cni.cncf.io/networks", "storage@net1")), podsource.Pod{StartedAt: begun}},
		{"finished", pod(phase(corev1.PodSucceeded, ""), podIPs("10.0.0.2"), container(ended(ago(day)))),
			podsource.Pod{IPs: addrs("10.0.0.2"), StartedAt: begun, Finished: true, FinishedAt: ago(day)}},
		{"finished, and nothing says when", pod(phase(corev1.PodFailed, "Evicted"), podIPs("10.0.0.2")),
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

// R2: an item that can't be read is an error of the whole, and says whose.
//
// Guard: [statusIPs] and [convert] refuse what can't be read.
func TestHazard07ConvertRefuses(t *testing.T) {
	const whose = "pod default/web (UID 6ba7b810): "
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   string
	}{
		{"no pod", nil, "a pod is nil"},
		{"an empty message decodes to this", &corev1.Pod{}, "without a name and a UID it is no pod"},
		{"no UID", pod(func(p *corev1.Pod) { p.UID = "" }), "pod default/web"},
		{"no name", pod(func(p *corev1.Pod) { p.Name = "" }), "6ba7b810"},
		{"no address", pod(podIPs("10.0.0.2", "10.0.0.300")), whose + `status.podIPs[1]: "10.0.0.300" is not an IP address`},
		{"an empty entry", pod(podIPs("10.0.0.2", "")), whose + `status.podIPs[1]: "" is not an IP address`},
		{"a prefix where none belongs", pod(podIPs("10.0.0.2/24")), whose + `status.podIPs[0]`},
		{"podIP alone", pod(func(p *corev1.Pod) { p.Status.PodIP = "pending" }), whose + `status.podIP: "pending" is not an IP address`},
	} {
		got, err := Convert(row.pod)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: error %v does not say %q", row.reason, err, row.want)
		}
		if diff := cmp.Diff(podsource.Pod{}, got, equal); diff != "" {
			t.Errorf("%s: a pod comes with the error (-want +got):\n%s", row.reason, diff)
		}
	}
}

// Guard: [annotatedIPs] reads the addresses of the other networks.
func TestHazard22SecondNetworkByAnnotation(t *testing.T) {
	p := pod(podIPs("192.168.7.9"), annotated(NetworkStatusAnnotation, twoNetworks))
	if got := verdict(t, past, p); got != gc.InUse {
		t.Errorf("got %v, want %v: no other field has the address", got, gc.InUse)
	}
}

// What a tenant wrote into an annotation that can't be read makes its pod one with
// more addresses than these, and no error of the whole list. What can be read in it
// is claimed.
//
// Guard: [annotatedIPs] says whether it could read all, and [convert] that there
// may be more.
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
		{"cut short", annotation(twoNetworks[:len(twoNetworks)-9]), ""},
		{"text behind it", annotation(`[] []`), ""},
		{"one attachment without its array", annotation(`{"ips":["10.0.0.2"]}`), ""},
		{"null", annotation(`null`), ""},
		{"an attachment that is null", annotation(`[{"ips":["10.0.0.2"]},null]`), "10.0.0.2"},
		{"an attachment that is a number", annotation(`[1,{"ips":["10.0.0.2"]}]`), "10.0.0.2"},
		{"an address that is null", annotation(`[{"ips":[null,"10.0.0.2"]}]`), "10.0.0.2"},
		{"an address that is a number", annotation(`[{"ips":[10,"10.0.0.2"]}]`), "10.0.0.2"},
		{"one address without its array", annotation(`[{"ips":"10.0.0.2"}]`), ""},
		{"a key twice, the second is read", annotation(`[{"ips":"10.0.0.3","ips":["10.0.0.2"]}]`), "10.0.0.2"},
		{"an address that is none", annotation(`[{"ips":["10.0.0.2","dhcp"]}]`), "10.0.0.2"},
		{"an empty one", annotation(`[{"ips":["","10.0.0.2/24"]}]`), "10.0.0.2"},
		{"the older key", pod(podIPs("10.0.0.9"), annotated("k8s.v1.cni.cncf.io/networks-status", "{")), ""},
		{"the older key, and the other can be read", pod(podIPs("10.0.0.9"), annotated("k8s.v1.cni.cncf.io/networks-status", "{"),
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
		if note := Note([]podsource.Pod{{}, got, got}); !strings.Contains(note, NetworkStatusAnnotation) || !strings.Contains(note, "of 2 pods, one is default/web") {
			t.Errorf("%s: the note is %q", row.reason, note)
		}
	}
	if note := Note([]podsource.Pod{{}}); note != "" {
		t.Errorf("nothing was garbage, and the note is %q", note)
	}

	// As for a pod that is starting: what is older than its start is released.
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

// The start of a static pod is that of kubelet, which may have been restarted
// while the sandbox lived on: it may hold what was reserved before.
//
// Guard: [static] pods have no start.
func TestHazard76StaticPod(t *testing.T) {
	pending := phase(corev1.PodPending, "")
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
		want   gc.Verdict
	}{
		{"from a file, as kubelet has it", pod(pending, annotated("kubernetes.io/config.source", "file")), gc.Starting},
		{"from a URL", pod(pending, annotated("kubernetes.io/config.source", "http")), gc.Starting},
		{"its mirror, as the API server has it", pod(pending, annotated("kubernetes.io/config.mirror", "5c7b9a1e")), gc.Starting},
		{"from the API server, as kubelet has it", pod(pending, annotated("kubernetes.io/config.source", "api")), gc.Released},
		{"from the API server", pod(pending), gc.Released},
	} {
		if got := verdict(t, 4*day, row.pod); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}

// A pod in the node's network is there, and that is all.
//
// Guard: [convert] leaves out the addresses of a pod in the node's network.
func TestHazard28HostNetworkClaimsNothing(t *testing.T) {
	for _, row := range []struct {
		reason string
		pod    *corev1.Pod
	}{
		{"with the node's address", pod(hostNetwork, podIPs("10.0.0.2"))},
		{"without any yet: it will hold none", pod(hostNetwork)},
		{"an annotation that nobody needs to read", pod(hostNetwork, annotated(NetworkStatusAnnotation, "?"))},
		{"an address that nobody needs to read", pod(hostNetwork, podIPs("?"))},
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
		// R9: seen, so the pass is made.
		if got := verdict(t, past, row.pod); got != gc.Released {
			t.Errorf("%s: got %v, want %v", row.reason, got, gc.Released)
		}
	}
}

// R4: a pod that is stuck without an address holds back what is younger than it.
//
// Guard: [convert] says when the pod was started.
func TestHazard32Stuck(t *testing.T) {
	stuck := pod(phase(corev1.PodPending, ""), container(waiting("ContainerCreating")))
	if got := verdict(t, 4*day, stuck); got != gc.Released {
		t.Errorf("older than the pod: got %v, want %v", got, gc.Released)
	}
	if got := verdict(t, 2*day, stuck); got != gc.Starting {
		t.Errorf("younger than the pod: got %v, want %v", got, gc.Starting)
	}
}

// R4: the creation time stands for no start, and the scheduler's time for none.
//
// Guard: [convert] takes no other time for the start.
func TestHazard36StartUnknown(t *testing.T) {
	created := func(p *corev1.Pod) { p.CreationTimestamp = *stamp(ago(day)) }
	scheduled := condition(corev1.PodScheduled, corev1.ConditionTrue, ago(day))
	for _, row := range []struct {
		reason string
		start  *metav1.Time
	}{
		{"kubelet has not reported", nil},
		{"a zero time", &metav1.Time{}},
		{"in the future", stamp(ago(-day))},
	} {
		got, err := Convert(pod(phase(corev1.PodPending, ""), started(row.start), created, scheduled))
		if err != nil {
			t.Fatal(err)
		}
		if row.start == nil && !got.StartedAt.IsZero() {
			t.Errorf("%s: got start %v", row.reason, got.StartedAt)
		}
		if v := verdict(t, 4*day, pod(started(row.start), created, scheduled)); v != gc.Starting {
			t.Errorf("%s: got %v, want %v", row.reason, v, gc.Starting)
		}
	}
}
