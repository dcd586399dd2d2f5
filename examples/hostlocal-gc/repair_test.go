// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An address is reserved again only if everybody who knows it agrees, and the error names who does not.
func TestRepairable(t *testing.T) {
	const entry = "CNI cache /results/podnet-web-eth0"
	ip, next, v6 := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3"), netip.MustParseAddr("fd00::2")
	named := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	conf := func(ipam string) []byte {
		return []byte(`{"cniVersion": "1.0.0", "name": "podnet", "type": "calico", "ipam": {"type": "host-local", ` + ipam + `}}`)
	}
	type pod = podsource.Pod
	const netns, cache, cri, kube = 0, 1, 2, 3 // indexes of members
	of := func(m int, change func(p *pod)) func(*facts) { return func(f *facts) { change(&f.members[m].Pods[0]) } }
	none := func(m int) func(*facts) { return func(f *facts) { f.members[m].Pods = nil } }
	add := func(m int, p pod) func(*facts) {
		return func(f *facts) {
			p.IPs = []netip.Addr{ip}
			f.members[m].Pods = append(f.members[m].Pods, p)
		}
	}
	in := func(change func(e *cached)) func(*facts) {
		return func(f *facts) {
			e := f.entries[entry]
			change(&e)
			f.entries[entry] = e
		}
	}
	flannel := func(f *facts) {
		in(func(e *cached) { e.Config = []byte(`{"name": "podnet", "type": "vlan"}`) })(f)
		f.confs = []cniconf.Network{{Name: "podnet", DataDir: hostlocal.DefaultDataDir, Ranges: []iprange.Set{{{First: ip, Last: ip}}}}}
	}
	for _, row := range []struct {
		reason string
		change func(*facts)
		says   string // nothing: it can be reserved again
	}{
		{"all agree", func(*facts) {}, ""},
		{"no runtime lists it: its ADD has just ended, or it is nerdctl's", none(cri), ""},
		{"a finished pod had the address before", add(kube, pod{NamespacedName: named("job"), Finished: true}), ""},
		{"a pod on the node's network claims nothing", add(kube, pod{NamespacedName: named("proxy"), HostNetwork: true}), ""},
		{"the runtime reports the addresses of eth0, and this is another interface", func(f *facts) {
			in(func(e *cached) { e.IfName = "net1" })(f)
			of(cri, func(p *pod) { p.IPs[0] = next })(f)
		}, ""},
		{"its second interface has an entry of its own", func(f *facts) {
			f.members[cache].Pods = append(f.members[cache].Pods, pod{ContainerIDs: []string{"a"}, IPs: []netip.Addr{next}})
		}, ""},
		{"the runtime reports the other family alone", of(cri, func(p *pod) { p.IPs[0] = v6 }), ""},
		{"the range is set at run time", in(func(e *cached) { e.Config = conf(`"subnet": "usePodCidr"`) }), ""},
		{"the entry's configuration has no host-local, and the node's has", flannel, ""},

		{"it is reserved", func(f *facts) {
			f.reservations = []gc.Entry{{Reservation: &hostlocal.Reservation{Network: "storage", IP: ip, Owner: hostlocal.Owned, ContainerID: "x"}}}
		}, "it is reserved in network storage, by x"},
		{"the kernel was not asked, or not all of it was seen", func(f *facts) { f.members[netns].SeesAddresses = false }, "--source netns"},
		{"no namespace has it (gVisor, VFIO)", none(netns), "in 0 network namespaces, instead of one"},
		{"two namespaces have it", add(netns, pod{Origin: "ns 2"}), "2 network namespaces, ns 1, ns 2, instead of one"},
		{"the node itself has it", of(netns, func(p *pod) { p.HostNetwork = true }), "in no container, but in ns 1"},
		{"no process is in its namespace", of(netns, func(p *pod) { p.NotRunning = true }), "in no container, but in ns 1"},
		{"the cache was removed, too", none(cache), "libcni's cache has it in 0 live entries"},
		{"two live entries have it", add(cache, pod{Origin: "e 2"}), "2 live entries, " + entry + ", e 2"},
		{"the entry can't be read", in(func(e *cached) { e.err = errors.New("denied") }), entry + ": denied"},
		{"the interface has another address", in(func(e *cached) { e.onIf[0] = next }),
			"on eth0 in /run/netns/web, where the kernel shows [10.1.0.3]"},
		{"its sandbox is not ready", of(cri, func(p *pod) { p.NotRunning = true }), "does not run: shop/web of source cri"},
		{"its container has ended", of(cri, func(p *pod) { p.Finished = true }), "does not run: shop/web, which has finished"},
		{"the runtime gives it to another sandbox", add(cri, pod{NamespacedName: named("web"), ContainerIDs: []string{"b"}}),
			"shop/web of source cri has it, too"},
		{"the runtime gives its sandbox another one", of(cri, func(p *pod) { p.IPs[0] = next }), "has other addresses: [10.1.0.3]"},
		{"the API server gives it to another pod", of(kube, func(p *pod) { p.Name = "db" }), "shop/db of source kube has it, too"},
		{"it is not in the network's range", in(func(e *cached) { e.Config = conf(`"subnet": "10.2.0.0/24"`) }),
			"no configuration of network podnet"},
		{"no configuration of the network is known", in(func(e *cached) { e.Config = nil }), "no configuration of network podnet"},
		{"nor has the node's host-local a range", func(f *facts) { flannel(f); f.confs[0].Ranges = nil }, "no configuration of network podnet"},
		{"nor has the node's network this name", func(f *facts) { flannel(f); f.confs[0].Name = "cbr0" }, "no configuration of network podnet"},
		{"the network's files are elsewhere", in(func(e *cached) { e.Config = conf(`"subnet": "10.1.0.0/24", "dataDir": "/run/x"`) }),
			"--data-dir /run/x"},
	} {
		at := func() []netip.Addr { return []netip.Addr{ip} }
		f := &facts{
			members: []podsource.Answer{
				{Source: "netns", SeesAddresses: true, Pods: []pod{{IPs: at(), Origin: "ns 1"}}},
				{Source: "cnicache", Cache: &podsource.Cache{},
					Pods: []pod{{ContainerIDs: []string{"a"}, Network: "podnet", IPs: at(), Origin: entry}}},
				{Source: "cri", Pods: []pod{{NamespacedName: named("web"), ContainerIDs: []string{"a", "nginx"}, IPs: at()}}},
				{Source: "kube", Pods: []pod{{NamespacedName: named("web"), IPs: at()}}},
			},
			entries: map[string]cached{
				entry: {IfName: "eth0", NetNS: "/run/netns/web", Config: conf(`"subnet": "10.1.0.0/24"`), onIf: at()},
			},
			here: func(dir string) bool { return dir == hostlocal.DefaultDataDir },
		}
		row.change(f)
		got, err := f.judge(ip)
		if row.says != "" {
			if err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%s: %v, want %q", row.reason, err, row.says)
			}
		} else if want := (lost{ip, "podnet", "a", f.entries[entry].IfName}); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", row.reason, got, err, want)
		}
	}
}
