// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

const noneLeft = "no IP addresses available in range set"

// On a full network whose reservations all leaked, some with records in libcni's cache, every ADD
// succeeds.
func TestAllLeaked(t *testing.T) {
	for _, name := range []string{"no records", "stale records"} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			n.fill(old)
			if name == "stale records" {
				for i := range addresses {
					n.record(fmt.Sprintf("gone%d", i), fmt.Sprintf("/run/netns/gone%d", i), old)
				}
			}
			n.Make("control")
			if _, err := n.addAs(n.of("control"), "host-local"); err == nil || !strings.Contains(err.Error(), noneLeft) {
				t.Fatalf("the test is of no use: host-local alone says %v", err)
			}
			n.unplug("control")
			n.Make("first")
			begun := time.Now()
			ip, err := n.add("first")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the first ADD took %v", time.Since(begun).Round(time.Millisecond))
			held := map[string]netip.Addr{"first": ip}
			for i := range 5 {
				id := fmt.Sprint("more", i)
				held[id] = n.mustAdd(id)
			}
			n.keeps(held)
			if left := len(n.reserved()); left != len(held) {
				t.Errorf("%d reservations are left, want %d", left, len(held))
			}
			if last := n.passed(begun, 1); last.Released != addresses {
				t.Errorf("%+v", last)
			}
			if err := n.del("first"); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of 60 live containers among leaks none ever loses its address.
func TestSixtyLive(t *testing.T) {
	n := newTestNode(t)
	held := make(map[string]netip.Addr)
	for i := range 60 {
		id := fmt.Sprint("live", i)
		held[id] = n.mustAdd(id)
	}
	for ip := range n.reserved() { // no address is protected by its age
		cnitest.DateBack(n.t, n.file(ip), old)
	}
	n.fill(old)
	for i := range 20 {
		id := fmt.Sprint("new", i)
		begun := time.Now()
		held[id] = n.mustAdd(id)
		if i == 0 {
			t.Logf("the first ADD took %v", time.Since(begun).Round(time.Millisecond))
		}
		n.keeps(held)
	}
	if last := n.note(); last.Released != addresses-60 {
		t.Errorf("released %d, want %d: %s", last.Released, addresses-60, last.Found)
	}
}

// Younger reservations are kept, and the error is host-local's with the finding in its details.
func TestYoung(t *testing.T) {
	n := newTestNode(t)
	n.fill(20 * time.Second)
	got := n.call(call{command: "ADD", id: "a"})
	want := n.call(call{command: "ADD", id: "a", program: filepath.Join(bin, "host-local")})
	if got.code != want.code || errorMessage([]byte(got.out)) != errorMessage([]byte(want.out)) {
		t.Errorf("code %d and %s\nwant %d and %s", got.code, got.out, want.code, want.out)
	}
	if !strings.Contains(got.out, `"details"`) || !strings.Contains(got.out, "minimum age of 30s") || !strings.Contains(got.out, "253 young") {
		t.Errorf("the details do not say what was found: %s", got.out)
	}
	if left := len(n.reserved()); left != addresses {
		t.Errorf("%d reservations are left, want all", left)
	}
}

// The short minimum age counts only where the kernel and a cache that proved to be the node's have
// answered.
func TestHalfAMinute(t *testing.T) {
	for _, row := range []struct {
		reason string
		setUp  func(*testNode)
		minAge time.Duration
		heals  bool
	}{
		{"the cache names the ended containers", func(n *testNode) {
			for i := range addresses {
				n.record(fmt.Sprintf("gone%d", i), fmt.Sprintf("/run/netns/gone%d", i), 50*time.Second)
			}
		}, shortAge, true},
		{"the cache is older than the leaks", func(n *testNode) {
			n.reserve(address(0), "other", 50*time.Second)
			n.record("other", "/run/netns/other", old)
		}, shortAge, true},
		{"no cache", func(*testNode) {}, gc.DefaultMinAge, false},
		{"a cache of another node", func(n *testNode) { n.record("other", "/run/netns/other", old) }, gc.DefaultMinAge, false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			row.setUp(n)
			n.fill(50 * time.Second)
			n.Make("a")
			begun := time.Now()
			_, err := n.add("a")
			if healed := err == nil; healed != row.heals {
				t.Errorf("ADD says %v", err)
			}
			if last := n.passed(begun, 1); last.MinAge != row.minAge.String() {
				t.Errorf("%+v", last)
			}
		})
	}
}

// Only the cache knows containers whose namespace shows no address. With a cache that does not know
// them nothing is released, whatever the main plugin is: an address of bridge may be hidden, as in
// gVisor, and its interface shows that.
func TestContainersWithoutAddress(t *testing.T) {
	const live = 10
	for _, row := range []struct {
		reason string
		gc     func(*testNode) string
	}{
		{"no cache is named", func(*testNode) string { return `{"nested":true}` }},
		{"the wrong one", func(n *testNode) string { return fmt.Sprintf(`{"nested":true,"cacheDirs":[%q]}`, n.dir) }},
		{"one of other containers", func(n *testNode) string {
			other := filepath.Join(n.dir, "other")
			n.write(filepath.Join(other, network+"-x-eth0"),
				fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"x","ifName":"eth0","networkName":%q,"netns":"/run/netns/x"}`, network), old)
			return fmt.Sprintf(`{"nested":true,"cacheDirs":[%q]}`, other)
		}},
	} {
		for _, plugin := range []string{"vfio", "bridge"} {
			t.Run(row.reason+", "+plugin, func(t *testing.T) {
				n := newTestNode(t)
				for i := range live {
					n.mustAdd(fmt.Sprint("live", i))
					n.hide(fmt.Sprint("live", i))
					cnitest.DateBack(n.t, n.recordFile(fmt.Sprint("live", i)), 2*old)
				}
				for ip := range n.reserved() {
					cnitest.DateBack(n.t, n.file(ip), 2*old)
				}
				n.fill(old)
				right := n.gc
				n.gc = row.gc(n)
				n.bin, n.plugin = t.TempDir(), plugin
				for _, name := range []string{"host-local", "hostlocal-gc-ipam"} {
					copyFile(t, filepath.Join(bin, name), filepath.Join(n.bin, name))
				}
				got := n.call(call{command: "ADD", id: "a"})
				if got.code == 0 || len(n.reserved()) != addresses {
					t.Errorf("%d reservations are left, want all: %s", len(n.reserved()), got.out)
				}
				n.gc = right
				if got := n.call(call{command: "ADD", id: "a"}); got.code != 0 {
					t.Errorf("the right cache, and ADD fails: %s", got.out)
				}
				reserved := n.reserved()
				for i := range live {
					found := false
					for _, id := range reserved {
						found = found || id == fmt.Sprint("live", i)
					}
					if !found {
						t.Errorf("live%d has lost its address", i)
					}
				}
			})
		}
	}
}

// Records that are torn, empty, of another kind or no regular files keep what their name may refer
// to, and end nothing.
func TestOddRecords(t *testing.T) {
	n := newTestNode(t)
	for i, content := range []string{"", `{"kind":"cniC`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.9.0.99/24"}}`, "\x00\xff"} {
		id := fmt.Sprint("odd", i)
		n.reserve(address(i), id, old)
		n.write(n.recordFile(id), content, 0)
	}
	n.write(filepath.Join(n.cacheDir(), "lock"), "", old)
	n.write(filepath.Join(n.cacheDir(), "othernet-"+sandbox("gone9")+"-eth0"), `{"kind":"cniC`, 0)
	if err := os.Mkdir(filepath.Join(n.cacheDir(), network+"-"+sandbox("gone10")+"-eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.fill(old)
	ip := n.mustAdd("a")
	n.keeps(map[string]netip.Addr{"a": ip})
	reserved := n.reserved()
	for i := range 4 {
		if reserved[address(i)] != fmt.Sprint("odd", i) {
			t.Errorf("the reservation of odd%d is gone", i)
		}
	}
	if len(reserved) != 6 || reserved[address(9)] != "gone9" {
		t.Errorf("%d reservations are left, want the 4, that of a container which a torn record of another network names, and the new one", len(reserved))
	}
}

// An error in the plugin's own configuration is printed with host-local's error.
func TestBrokenGC(t *testing.T) {
	for _, row := range []struct{ reason, gc, want string }{
		{"a key that nobody knows", `{"nested":true,"cacheDir":"/x"}`, "cacheDir"},
		{"not of that type", `{"cacheDirs":"/x"}`, "cacheDirs"},
		{"no object", `true`, "gc"},
		{"a directory that is no path", `{"nested":true,"cacheDirs":["x"]}`, "absolute"},
		{"a process 1 that is not the machine's", `{}`, "hostPID"},
	} {
		n := newTestNode(t)
		n.gc = row.gc
		n.fill(old)
		got := n.call(call{command: "ADD", id: "a"})
		if got.code == 0 || !strings.Contains(errorMessage([]byte(got.out)), noneLeft) || !strings.Contains(got.out, row.want) {
			t.Errorf("%s: code %d, %s", row.reason, got.code, got.out)
		}
		if left := len(n.reserved()); left != addresses {
			t.Errorf("%s: %d reservations are left, want all", row.reason, left)
		}
	}
}
