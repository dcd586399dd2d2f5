// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// inSeconds returns flags of the command for a minimum age of three seconds, with the sources
// that it needs.
func inSeconds() []string {
	return []string{"--source", "netns:nested", "--source", "cnicache", "--min-age", secondsAge.String()}
}

// Each retry of a pod leaks an address: a later plugin of the chain fails in ADD, and again in
// DEL, before the DEL of the plugin that has the address. The pool has the size of a /28.
//
// Guard: [gc.Options.MinAge] counts below L only with [netns.Source.Pods] and a proven
// [cnicache.Source.Pods].
func TestHazard39LeakPerRetryOnContainerd(t *testing.T) {
	const size = 13
	for _, c := range []struct {
		name, reason string
		others       int // pods in the same network
		freed        bool
	}{
		{"another pod runs", "its entry proves the cache, so the kernel and the cache show every holder", 1, true},
		{"no other pod", "no entry has a reservation, so the cache may be another one", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, current(), func(n *node) { n.chained, n.pool = true, size })
			n.runAgent()
			live := n.runSome("live", c.others)
			since := time.Now().Add(-time.Hour)
			release := func(flags ...string) pass {
				t.Helper()
				file := n.writePods(since, "victim", live)
				return n.release(n.network, append([]string{"--source", "file:" + file}, flags...)...)
			}
			n.tell("chained-ADD", "victim", "fail")
			n.tell("chained-DEL", "victim", "fail")
			leaks := 0
			for n.retry("victim") {
				leaks++
			}
			same(t, "leaks", "they fill the pool", size-c.others, leaks)
			same(t, "released", "the runtime alone may not list young sandboxes yet", nil, release("--min-age", secondsAge.String()).released)
			leaked := n.heldBy(n.network, otherContainers(n.reservations(n.network), live...)...)
			n.must(stamp(n.network, 10*time.Minute, leaked...))
			file := n.writePods(since, "victim", live)
			same(t, "plan with reservations older than the lag of the runtime", "without the kernel and the cache the starting pod claims them (R4)",
				joined(verdicts("in-use", addressesOf(live)...), verdicts("starting", leaked...)), n.plan(n.network, "--source", "file:"+file).verdicts)
			n.must(stamp(n.network, 0, leaked...))

			if !c.freed {
				n.must(stamp(n.network, time.Minute, leaked...))
				p := release(inSeconds()...)
				same(t, "released", c.reason, nil, p.released)
				for ip, reason := range p.reasons {
					same(t, "reason for "+ip.String(), "the default minimum age counts", "not-yet-listed", reason)
				}
				return
			}
			for leaks < 3*size && !t.Failed() {
				p := release(inSeconds()...)
				for _, ip := range addressesOf(live) {
					same(t, ip.String(), "its pod is live", "in-use", p.verdicts[ip])
				}
				for n.retry("victim") {
					leaks++
				}
			}
			n.untell("chained-ADD", "victim")
			n.untell("chained-DEL", "victim")
			var victim pod
			n.await("the pod to run", func(ctx context.Context) error {
				release(inSeconds()...)
				var err error
				victim, err = n.tryRun(ctx, "victim")
				return err
			})
			live = append(live, victim)
			n.await("all leaks to be released", func(context.Context) error {
				release(inSeconds()...)
				if left := n.reservations(n.network); len(left) > 2*len(live) {
					return fmt.Errorf("%v are reserved", left)
				}
				return nil
			})
			same(t, "reservations", c.reason, holding(live...), n.reservations(n.network))
			fmt.Printf("containerd#12130: %d pairs of addresses leaked from a pool of %d in the retries of one pod, which then ran\n", leaks, size)
		})
	}
}

// The start of a pod takes longer than the minimum age, between its IPAM ADD and the end of the
// call. A leak of the same age is released, so the cache is proven, and nothing is kept for its
// age.
//
// Guard: [netns.Source.Pods] has the container of each ADD in flight, and
// [cnicache.Source.Pods] that of each ADD that has ended.
func TestHazard65StartTakesLongerThanTheMinimumAgeOnContainerd(t *testing.T) {
	for _, c := range []struct{ command, reason string }{
		{"lease-ADD", "it has no address yet: only the plugin's process shows it"},
		{"ADD", "its address is configured, but it has no entry: without the process the cache would not be proven"},
		{"chained-ADD", "the same, in the second plugin of the chain"},
		{"START", "the ADD has ended, and the runtime does not list it (hazard 71)"},
	} {
		t.Run(c.command, func(t *testing.T) {
			n := newNode(t, current(), func(n *node) { n.chained, n.ownLoopback = true, true })
			n.runAgent()
			live := n.run("live")
			n.fail("victim")
			leaked := n.heldBy(n.network, otherContainers(n.reservations(n.network), live)...)
			var starting *call
			if c.command == "START" {
				n.tell(c.command, "starting", maxWait.String())
				starting = n.begin("starting")
				n.await("the ADD to end", func(context.Context) error {
					if entries, err := os.ReadDir(cnicache.DefaultDir); err != nil || len(entries) < 2 {
						return fmt.Errorf("there are %d entries: %w", len(entries), err)
					}
					return nil
				})
			} else {
				starting = n.runHeldIn(c.command, "starting")
			}
			before := n.reservations(n.network)
			all := slices.Collect(maps.Keys(before))
			n.must(stamp(n.network, 10*time.Second, all...))
			n.must(stampRecords(20 * time.Second)) // otherwise all reservations are older than the oldest record (hazard 70)
			held := slices.DeleteFunc(all, func(ip netip.Addr) bool { return slices.Contains(leaked, ip) || slices.Contains(live.ips, ip) })
			same(t, "addresses of the pod that starts", "in dual stack", 2, len(held))
			for _, id := range otherContainers(before, live) {
				if _, listed := n.sandboxes()[id]; listed {
					t.Fatalf("the runtime lists %s already, so the test shows nothing", id)
				}
			}
			same(t, "plan of the runtime alone", "it may list both later, so neither is released",
				joined(verdicts("in-use", live.ips...), verdicts("young", append(leaked, held...)...)),
				n.plan(n.network, "--min-age", secondsAge.String()).verdicts)
			want := joined(verdicts("in-use", append(held, live.ips...)...), verdicts("leaked", leaked...))
			p, err := hostlocalGC(t.Context(), append([]string{"plan", "--network", n.network, "-o", "json"}, inSeconds()...)...)
			n.must(err)
			same(t, "plan of the kernel and the cache", c.reason, want, p.verdicts)
			same(t, "plan with the runtime", c.reason, want, n.plan(n.network, inSeconds()...).verdicts)
			same(t, "released", "the leak alone", 2, len(n.release(n.network, inSeconds()...).released))
			if c.command == "START" {
				n.untell(c.command, "starting")
			} else {
				n.resume()
			}
			same(t, "reservations", "after the pass the pod has started", holding(live, n.wait(starting)), n.reservations(n.network))
		})
	}
}

// retry runs a pod that a plugin fails. It returns false if there was no address for it.
func (n *node) retry(name string) bool {
	n.t.Helper()
	p, err := n.tryRun(n.t.Context(), name)
	if err == nil || !strings.Contains(err.Error(), "gate: told to fail ADD") && !strings.Contains(err.Error(), "no IP addresses available") {
		n.t.Fatalf("pod %s did not fail in the second plugin or for lack of an address: %+v, %v", name, p, err)
	}
	return strings.Contains(err.Error(), "gate: told to fail ADD")
}

func addressesOf(pods []pod) (ips []netip.Addr) {
	for _, p := range pods {
		ips = append(ips, p.ips...)
	}
	return ips
}

// writePods writes a file with the pods as kubelet reports them: live ones with their addresses,
// and a starting one without.
func (n *node) writePods(since time.Time, starting string, live []pod) (file string) {
	n.t.Helper()
	pods := []map[string]any{{"namespace": namespace, "name": starting, "uid": "uid-" + starting, "startedAt": since}}
	for _, p := range live {
		pods = append(pods, map[string]any{"namespace": namespace, "name": p.name, "uid": "uid-" + p.name, "ips": p.ips, "startedAt": since})
	}
	text, err := json.Marshal(pods)
	n.must(err)
	file = n.path("pods.json")
	n.must(os.WriteFile(file, text, 0o600))
	return file
}

// The power fails on a node whose only sources are the kernel and libcni's cache. All
// reservations are leaks. They are older than the minimum age, and younger than the default
// one.
func TestPowerLossWithoutARuntimeToAskOnContainerd(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		live         int  // pods that were started after the boot
		wiped        bool // the cache was emptied after their start
		freed        bool
	}{
		{"before containerd runs", "stale entries are enough to prove the cache", 0, false, true},
		{"with pods since the boot", "they are in namespaces and in the cache", 2, false, true},
		{"the cache was wiped", "live pods have no entry, so the cache may be another one (hazard 70)", 2, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, n *node) {
				dead := n.runSome("web", 5)
				n.reboot(true)
				n.must(stamp(n.network, 10*time.Second, addressesOf(dead)...))
				var live []pod
				if c.live > 0 {
					n.start()
					n.importImage()
					live = n.runSome("live", c.live)
					n.must(stamp(n.network, 10*time.Second, addressesOf(live)...))
				}
				if c.wiped {
					n.must(empty(cnicache.DefaultDir))
				}
				args := append([]string{"release", "--network", n.network, "-o", "json"}, inSeconds()...)
				p, err := hostlocalGC(t.Context(), args...)
				n.must(err)
				if p.status != 0 {
					t.Fatalf("hostlocal-gc: %v", p)
				}
				released, left := holding(dead...), holding(live...)
				if !c.freed {
					released, left = nil, holding(append(dead, live...)...)
				}
				same(t, "released", "the first pass: "+c.reason, released, p.released)
				same(t, "reservations", c.reason, left, n.reservations(n.network))
				for _, ip := range addressesOf(live) {
					same(t, ip.String(), "its pod is live", "in-use", p.verdicts[ip])
				}
			})
		})
	}
}
