// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// What the kernel and libcni's cache show, beside the runtime and without it.

// The runtime loses the record of a sandbox whose process and network namespace still exist. Only the kernel shows it.
//
// Guard: [netns.Source.Pods] lists the address. With the runtime alone it is released.
func TestHazard33RecordLost(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) { n.recordLost("victim", nil, []string{kernel}) })
}

// The same for a pod in gVisor, which moves the addresses from the network namespace to its own network stack. Only its
// entry in libcni's cache is left.
//
// Guard: [cnicache.Source.Pods] names the container. With the runtime and the kernel its addresses are released.
func TestHazard59NoAddressInTheKernel(t *testing.T) {
	newNode(t, current(), withGVisor).recordLost(gvisorPods+"-victim", []string{kernel}, []string{kernel, cache}, inSeconds)
}

// recordLost checks that a pod whose record the runtime has lost would lose its addresses with the runtime and few
// other sources, and keeps them with each of many until its namespace is gone.
func (n *node) recordLost(name string, few []string, many ...[]string) {
	n.t.Helper()
	live, victim := n.run("live"), n.run(name)
	network := n.netnsOf(victim)
	n.loseRecord(victim)
	n.age()
	inUse := verdicts(gc.InUse, live.ips...)
	same(n.t, "plan with few sources", "the hazard: they do not show the pod", joined(inUse, verdicts(gc.Leaked, victim.ips...)), n.plan(few...).verdicts)
	kept := func(reason string) {
		n.t.Helper()
		for _, sources := range many {
			same(n.t, fmt.Sprint("pass with ", sources), reason, joined(inUse, verdicts(gc.InUse, victim.ips...)), n.release(sources...).verdicts)
		}
	}
	kept("its namespace has processes")
	n.makeOld(10 * time.Second)
	kept("the same, younger than the default minimum age")
	n.killAllOf(victim)
	n.age()
	kept("its namespace is still mounted")
	n.removeNetns(network)
	same(n.t, "released", "nothing has them any more", holding(victim), n.release(many[0]...).released)
	n.wantLeft("after the pass", live)
}

// netnsOf returns the path of a pod's network namespace, which is in its entry of libcni's cache.
func (n *node) netnsOf(p pod) string {
	n.t.Helper()
	entry, err := os.ReadFile(n.cacheFile(p))
	n.must(err)
	path := regexp.MustCompile(`/run/netns/cni-[0-9a-f-]+`).Find(entry)
	if path == nil {
		n.t.Fatalf("the entry of %v has no network namespace: %s", p, entry)
	}
	return string(path)
}

// loseRecord removes the runtime's record of a running sandbox. It first moves the task out of containerd's state,
// since a running container can't be deleted.
func (n *node) loseRecord(p pod) {
	n.t.Helper()
	n.stop()
	tasks, err := filepath.Glob(n.path("state/*/k8s.io/" + p.id))
	n.must(err)
	if len(tasks) != 1 {
		n.t.Fatalf("%v has the tasks %q", p, tasks)
	}
	n.must(os.Rename(tasks[0], n.path("lost-"+p.id)))
	n.start()
	n.ctr(ofCRI, "containers", "delete", p.id)
	if n.name == current().name {
		n.ctr(ofCRI, "sandboxes", "rm", "--force", p.id)
	}
	n.restart()
	if _, listed := n.sandboxes()[p.id]; listed || len(n.processesOf(p)) == 0 {
		n.t.Fatalf("%v is listed: %t, or has ended", p, listed)
	}
}

// The node is healthy. The runtime has the plugin loopback set up lo, so libcni's cache has 127.0.0.1 and ::1 for each pod.
//
// Guard: [cnicache.Source.Pods] leaves out the addresses that no pod has for itself.
func TestHazard89HealthyNode(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.runSome("web", 16)
		loopback, err := filepath.Glob(cnicache.DefaultDir + "/cni-loopback-*-lo")
		n.must(err)
		same(t, "cached results of the plugin loopback", "each pod has one", 16, len(loopback))
		n.wantFinding(0, "OK", "")
	})
}

// writeStatuses writes pods with their addresses as kubelet reports them, and a starting one without. It returns the flag for the file.
func (n *node) writeStatuses(since time.Time, starting string, live []pod) (flag string) {
	n.t.Helper()
	pods := []map[string]any{{"namespace": namespace, "name": starting, "uid": "uid-" + starting, "startedAt": since}}
	for _, p := range live {
		pods = append(pods, map[string]any{"namespace": namespace, "name": p.name, "uid": "uid-" + p.name, "ips": p.ips, "startedAt": since})
	}
	text, err := json.Marshal(pods)
	n.must(errors.Join(err, os.WriteFile(n.path("pods.json"), text, 0o600)))
	return "--source=file:" + n.path("pods.json")
}

// chained is the option of a network with a second plugin.
func chained(n *node) { n.chained = true }

// retries runs a pod that a plugin fails until there is no address for it, and returns how often.
func (n *node) retries(name string) (count int) {
	n.t.Helper()
	for {
		_, err := n.tryRun(n.t.Context(), name)
		switch {
		case err != nil && strings.Contains(err.Error(), toldToFail):
			count++
		case err != nil && strings.Contains(err.Error(), noAddress):
			return count
		default:
			n.t.Fatalf("pod %s did not fail in the second plugin or for lack of an address: %v", name, err)
		}
	}
}

// The start of a pod takes longer than the minimum age, between its IPAM ADD and the end of the call. A leak of the
// same age is released, so the cache is proven, and nothing is kept for its age.
//
// Guard: [netns.Source.Pods] has the container of each ADD in flight, and [cnicache.Source.Pods] that of each ADD
// that has ended.
func TestHazard65StartTakesLongerThanTheMinimumAge(t *testing.T) {
	for command, reason := range map[string]string{
		"lease-ADD":   "it has no address yet: only the plugin's process shows it",
		"ADD":         "its address is configured, but it has no entry: without the process the cache would not be proven",
		"chained-ADD": "the same, in the second plugin of the chain",
		"START":       "the ADD has ended, and the runtime does not list it (hazard 71)",
	} {
		t.Run(command, func(t *testing.T) {
			n := newNode(t, current(), chained, func(n *node) { n.ownLoopback = true })
			n.runAgent()
			live := n.run("live")
			n.fail("victim")
			leaked := n.heldBy(otherContainers(n.reservations(), live)...)
			var starting *call
			if command == "START" {
				n.tell(command, "starting", maxWait.String())
				starting = n.begin("starting")
				n.await("the ADD to end", func(context.Context) error {
					if entries, err := os.ReadDir(cnicache.DefaultDir); err != nil || len(entries) < 2 {
						return fmt.Errorf("there are %d entries: %w", len(entries), err)
					}
					return nil
				})
			} else {
				starting = n.runHeld(command, "starting")
			}
			n.makeOld(10 * time.Second)
			before := n.reservations()
			held := slices.DeleteFunc(slices.Collect(maps.Keys(before)), func(ip netip.Addr) bool {
				return slices.Contains(leaked, ip) || slices.Contains(live.ips, ip)
			})
			same(t, "addresses of the pod that starts", "in dual stack", 2, len(held))
			for _, id := range otherContainers(before, live) {
				if _, listed := n.sandboxes()[id]; listed {
					t.Fatalf("the runtime lists %s already, so the test shows nothing", id)
				}
			}
			same(t, "plan of the runtime alone", "it may list both later, so neither is released",
				joined(verdicts(gc.InUse, live.ips...), verdicts(gc.Young, append(leaked, held...)...)), n.plan("--min-age", "3s").verdicts)
			want := joined(verdicts(gc.InUse, append(held, live.ips...)...), verdicts(gc.Leaked, leaked...))
			same(t, "plan of the kernel and the cache", reason, want, n.only("plan", inSeconds...).verdicts)
			same(t, "plan with the runtime", reason, want, n.plan(inSeconds...).verdicts)
			same(t, "released", "the leak alone", 2, len(n.release(inSeconds...).released))
			if command == "START" {
				n.untell(command, "starting")
			} else {
				n.resume()
			}
			n.wantLeft("after the pass the pod has started", live, n.wait(starting))
		})
	}
}

// The power fails on a node whose only sources are the kernel and libcni's cache. All reservations are leaks. They
// are older than the minimum age, and younger than the default one.
func TestHazard70PowerLossWithoutARuntimeToAsk(t *testing.T) {
	for _, c := range []struct {
		reason string
		live   int  // pods that were started after the boot
		lost   bool // the cache lost their entries
	}{
		{"before containerd runs stale entries are enough to prove the cache", 0, false},
		{"pods since the boot are in namespaces and in the cache", 2, false},
		{"live pods have no entry, so the cache may be another one, or was wiped", 2, true},
	} {
		t.Run(c.reason, func(t *testing.T) {
			onEach(t, func(t *testing.T, n *node) {
				dead := n.runSome("web", 5)
				n.reboot(true)
				n.must(n.stamp(10*time.Second, addressesOf(dead)...))
				var live []pod
				if c.live > 0 {
					n.start()
					n.importImage()
					live = n.runSome("live", c.live)
					n.must(n.stamp(10*time.Second, addressesOf(live)...))
				}
				released, left := holding(dead...), live
				if c.lost {
					for _, p := range live {
						n.must(os.Remove(n.cacheFile(p)))
					}
					released, left = nil, append(dead, live...)
				}
				p := n.only("release", inSeconds...)
				same(t, "released", c.reason, released, p.released)
				n.wantLeft(c.reason, left...)
			})
		})
	}
}

// Pods of Kubernetes and containers of ctr, nerdctl and another client share a network. Some of each are live, and
// some have leaked. With any of the sources no live one loses its address, and with runtime, kernel and cache every
// leak is released.
func TestHazard49Together(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		n.forClients()
		pods, containers := n.runSome("live", 2), podsOf(n.runEach("live", 1))
		deadPods, deadContainers := n.runSome("dead", 2), n.runEach("dead", 1)
		network := n.network
		n.configure("elsewhere") // no DEL finds their addresses
		n.awaitNetwork("elsewhere")
		for _, p := range deadPods {
			n.remove(p.id)
		}
		for _, c := range deadContainers {
			c.kill()
		}
		n.network = network
		n.age()
		inUse := verdicts(gc.InUse, addressesOf(pods)...)
		known := joined(inUse, verdicts(gc.Foreign, addressesOf(append(containers, podsOf(deadContainers)...))...))
		same(t, "pass with the runtime alone", "it does not list the others", joined(known, verdicts(gc.Released, addressesOf(deadPods)...)), n.release().verdicts)
		same(t, "pass with runtime, kernel and cache", "the kernel shows which of the others are live, the cache which are no words", joined(inUse,
			verdicts(gc.InUse, addressesOf(containers)...), verdicts(gc.Released, addressesOf(podsOf(deadContainers))...)), n.release(kernel, cache).verdicts)
		n.wantLeft("after all passes", append(pods, containers...)...)
	})
}
