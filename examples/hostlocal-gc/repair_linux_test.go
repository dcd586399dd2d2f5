// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
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
			here: func(c cniconf.Network) bool { return c.DataDir == hostlocal.DefaultDataDir },
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

// What was given up writes nothing when it has the lock.
func TestReserveAfterTheEnd(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	data, ip := t.TempDir(), netip.MustParseAddr("10.1.0.2")
	for range 100 {
		if err := (lost{ip, "podnet", "a", "eth0"}).reserve(ended, data); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(data, "podnet", "1*")); left != nil {
		t.Errorf("%v was written", left)
	}
}

// On a node whose data directory was removed, the command writes what its plan shows, and only with --yes.
func TestRepair(t *testing.T) {
	if !onNode(t) {
		return
	}
	const note = dir + "podnet/last_reserved_ip.0"
	for _, row := range []struct {
		reason, args string
		change       func(b *bed)
		written      bool
		status       int
		says         string
	}{
		{"plan", "", nil, false, statusDone, "Nothing was changed: --yes does this."},
		{"all", "--yes", nil, true, statusDone, "Reserved 10.244.1.2 in network podnet again."},
		{"one address, and another that no pod has", "--yes --ip 10.244.1.2 --ip 10.244.1.3", nil, true, statusError,
			"can't be reserved again: the kernel shows it in 0 network namespaces, instead of one\n  10.244.1.3\n"},
		{"others have addresses of another data directory, or of none", "--yes", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", `, "ranges": [[{"subnet": "10.244.1.0/29"}]]`)
			b.conf("20-other.conflist", `"name": "other",`, "bridge", `, "dataDir": "/run/x", "ranges": [[{"subnet": "10.244.1.96/29"}]]`)
			b.space("", 98, 1)
			b.space("", 198, 1)
		}, true, statusDone, "Reserved 10.244.1.2"},
		{"libcni before 1.2", "--yes", func(b *bed) {
			b.cached("", `"interfaces": [{"name": "br"}, {"name": "lo", "sandbox": "/run/netns/web"}],`)
		}, true, statusDone, "Reserved"},
		{"another interface", "--yes", func(b *bed) { b.cached(`"netns": "/run/netns/web", "ifName": "eth0",`, "") }, false, statusError,
			"interface eth0 in /run/netns/web"},
		{"the plugin's note of its last address stays: the next one may be that of a live pod without a file", "--yes", func(b *bed) {
			b.put(note, "10.244.1.200")
			must(b.t, os.Chmod(note, 0o400))
		}, true, statusDone, "Reserved 10.244.1.2"},
		{"a lock that is a link (R7)", "--yes", func(b *bed) {
			b.put("/etc/other", "")
			must(b.t, errors.Join(os.MkdirAll(dir+"podnet", 0o755), os.Symlink("/etc/other", dir+"podnet/lock")))
		}, false, statusError, "is no regular file, but L"},
		{"the directory is mounted elsewhere", "--yes --data-dir /run/networks", func(b *bed) { must(b.t, os.Mkdir("/run/networks", 0o755)) },
			false, statusDone, "Reserved"},
		{"the name of the directory is mistyped", "--yes --data-dir /var/lib/cni/netwroks", nil, false, statusError,
			"another data directory: --data-dir /var/lib/cni/networks"},
		{"no range is known", "--yes --cni-dir /none", func(b *bed) { must(b.t, os.RemoveAll("/var/lib/cni/results")) }, false, statusError,
			"can't be reserved again: libcni's cache has it in 0 live entries"},
		{"it is another one", "--yes --data-dir /run/networks", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", subnet+`, "dataDir": "/run/x"`)
			b.cached(`"netns": "/run/netns/web",`, "")
			b.podnet()
		}, false, statusError, "the files of network podnet are in another data directory: --data-dir /run/x"},
		{"it is Antrea's, and podnet has its own", "--yes --ip 10.244.1.2 --data-dir /run/antrea/cni/networks", func(b *bed) {
			b.put("/run/antrea/cni/networks/antrea/10.9.0.2", sandbox("x")+"\r\neth0")
			b.put(dir+"podnet/10.244.1.9", sandbox("0")+"\r\nlo")
		}, false, statusError, "another data directory: --data-dir /var/lib/cni/networks"},
		{"the same before podnet's first ADD", "--yes --ip 10.244.1.2 --data-dir /run/antrea/cni/networks", func(b *bed) {
			b.conf("20-antrea.conflist", `"name": "antrea",`, "antrea", "")
		}, false, statusError, "another data directory: --data-dir /var/lib/cni/networks"},
		{"a container that has ended has it in another network", "--yes", func(b *bed) {
			b.conf("20-storage.conflist", `"name": "storage",`, "macvlan", subnet)
			b.put(dir+"storage/10.244.1.2", sandbox("z")+"\r\neth0")
		}, false, statusError, "can't be reserved again: it is reserved in network storage, by "},
		{"the kernel is not asked", "--yes", func(b *bed) { b.args = "--source cri" }, false, statusError, "--source netns sees them"},
		{"two without an entry: one reason, and their pods", "--yes", func(b *bed) {
			must(b.t, os.Remove("/var/lib/cni/results/podnet-"+sandbox("0")+"-lo"))
			b.space("", 1, 1)
		}, false, statusError, "can't be reserved again: libcni's cache has it in 0 live entries, instead of one\n  10.244.1.2 "},
		{"Multus", "--yes --source cnicache:/var/lib/cni/multus/results", func(b *bed) { b.multus() }, true, statusDone, "Reserved"},
		{"Multus, and only its own entry is asked for", "--yes", func(b *bed) { b.multus() }, false, statusError,
			"--source cnicache:/var/lib/cni/multus/results"},
		{"the directory of another network can't be made", "--yes", func(b *bed) {
			b.conf("20-a.conflist", `"name": "a",`, "bridge", subnet)
			b.entry("a", "1", "10.244.1.3", "20-a.conflist", `"netns": "/run/netns/db",`, "")
			b.space("db", 1, 1)
			must(b.t, ns.WithNetNSPath("/run/netns/db", func(ns.NetNS) error { b.process(0); return nil }))
			b.put(dir+"a", "")
		}, true, statusError, "10.244.1.3: "},
		{"a directory has its name", "--yes", func(b *bed) {
			b.put(dir+"podnet/lock", "")
			must(b.t, os.Mkdir(dir+"podnet/10.244.1.2", 0o755))
		}, false, statusError, "10.244.1.2: a file has its name by now"},
		{"another process holds the lock", "--yes --timeout 1s", func(b *bed) {
			b.put(dir+"podnet/lock", "")
			lock, err := os.Open(dir + "podnet/lock")
			must(b.t, err)
			b.t.Cleanup(func() { _ = lock.Close() })
			must(b.t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
		}, false, statusError, "10.244.1.2: another process holds the lock: "},
		{"another pod has it by now", "--yes", func(b *bed) {
			b.put(dir+"podnet/10.244.1.2", sandbox("late")+"\r\nlo")
			b.space("", 0, 1)
		}, false, statusError, "can't be reserved again: it is reserved in network podnet, by "},
		{"a source gives no answer", "--yes --source file:/none", nil, false, statusError, "nothing was changed"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			b := newBed(t)
			b.kernel()
			b.podnet()
			b.runtime.ready = []string{sandbox("0")}
			b.space("web", 0, 1)
			must(t, ns.WithNetNSPath("/run/netns/web", func(ns.NetNS) error { b.process(0); return nil }))
			b.cached(`"netns": "/run/netns/web",`, "")
			if row.change != nil {
				row.change(b)
			}
			if got := b.check().stdout; row.args == "" && !strings.Contains(got, "It needs --source netns and --source cnicache") {
				t.Errorf("check without the cache: %s", got)
			}
			if strings.Contains(b.args, "netns") {
				b.args += " --source cnicache --cni-dir /etc/cni/net.d"
			}
			if got := b.check(); row.args == "" && !strings.Contains(got.stdout,
				"hostlocal-gc repair --source=cri --source=netns:nested --source=cnicache --cni-dir=/etc/cni/net.d\n") {
				t.Errorf("check: %s%s", got.stdout, got.stderr)
			}
			b.args += " " + row.args
			want, err := filepath.Glob(dir + "podnet/*")
			must(t, err)
			got := b.run("repair")
			if got.status != row.status || !strings.Contains(got.stdout+got.stderr, row.says) {
				t.Errorf("exit status %d, want %d with %q:\n%s%s", got.status, row.status, row.says, got.stdout, got.stderr)
			}
			if row.written {
				want = append([]string{dir + "podnet/10.244.1.2"}, append(want, dir+"podnet/lock")...)
				if last, _ := os.ReadFile(note); len(want) == 3 && string(last) != "10.244.1.200" {
					t.Errorf("the plugin's note has %q", last)
				}
				info, err := os.Stat(dir + "podnet/10.244.1.2")
				text, err2 := os.ReadFile(dir + "podnet/10.244.1.2")
				if must(t, errors.Join(err, err2)); info.Mode() != 0o600 || string(text) != sandbox("0")+"\r\nlo" {
					t.Errorf("the file has %v, %q", info.Mode(), text)
				}
				b.args = "--source cri --source netns:nested --source cnicache"
				const all = "Each address of a live pod in the ranges of /var/lib/cni/networks is reserved.\n"
				if again := b.run("repair"); row.status == statusDone && (again.status != statusDone || again.stdout != all) {
					t.Errorf("again: exit status %d: %s%s", again.status, again.stdout, again.stderr)
				}
			}
			left, _ := filepath.Glob(dir + "podnet/*")
			if diff := cmp.Diff(want, left); diff != "" {
				t.Errorf("in the network's directory (-want +got):\n%s", diff)
			}
		})
	}
}

// cached writes libcni's entry of a container that has 10.244.1.2 on lo, with these fields of it and of its result.
func (b *bed) cached(fields, ofResult string) {
	b.t.Helper()
	b.entry("podnet", "0", "10.244.1.2", "10-podnet.conflist", fields, ofResult)
}

// entry writes such an entry in a network with the configuration of a file.
func (b *bed) entry(network, id, ip, file, fields, ofResult string) {
	b.t.Helper()
	conf, err := os.ReadFile("/etc/cni/net.d/" + file)
	must(b.t, err)
	b.put("/var/lib/cni/results/"+network+"-"+sandbox(id)+"-lo", fmt.Sprintf(`{"kind": "cniCacheV1", "containerId": %q,
		"ifName": "lo", "networkName": %q, %s "config": %q,
		"result": {"cniVersion": "1.0.0", %s "ips": [{"address": "%s/24"}]}}`,
		sandbox(id), network, fields, base64.StdEncoding.EncodeToString(conf), ofResult, ip))
}

// multus makes Multus call the network's plugins: it keeps their entry in a directory of its own.
func (b *bed) multus() {
	b.t.Helper()
	const name, own = "/podnet-%s-lo", "/var/lib/cni/multus/results"
	must(b.t, os.MkdirAll(own, 0o755))
	must(b.t, os.Rename("/var/lib/cni/results"+fmt.Sprintf(name, sandbox("0")), own+fmt.Sprintf(name, sandbox("0"))))
	b.put("/etc/cni/net.d/00-multus.conf", `{"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus-shim"}`)
	b.entry("multus-cni-network", "0", "10.244.1.2", "00-multus.conf", `"netns": "/run/netns/web",`, "")
}
