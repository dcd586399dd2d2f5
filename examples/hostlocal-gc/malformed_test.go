// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// garbage is text that no version of host-local wrote, with an escape sequence.
const garbage = "half a \x1b[2Jbackup\nof something\nelse\n"

// malformedNode has a live pod at 10.1.0.2, a malformed file at 10.1.0.3, and a leak at 10.1.0.4,
// each with an IPv6 address, all two hours old.
func malformedNode(t *testing.T) (*node, *podNetwork) {
	n := newNode(t)
	nw := n.network("podnet", "10.1.0.0/24", "fd00:1::/64")
	for _, name := range []string{"web", "spoiled", "gone"} {
		nw.add(sandbox(name), 2*time.Hour)
	}
	nw.write("10.1.0.3", garbage, 2*time.Hour)
	n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}, IPs: []string{"10.1.0.2", "fd00:1::2"}})
	return n, nw
}

// A malformed file is removed only if no live pod may hold the address.
func TestRemoveMalformed(t *testing.T) {
	web := pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}, IPs: []string{"10.1.0.2", "fd00:1::2"}}
	for _, row := range []struct {
		reason  string
		args    string // "" is the address
		change  func(n *node, nw *podNetwork)
		env     string
		removed bool
		status  int
		says    string // on stdout or stderr
	}{
		{reason: "nobody's", removed: true, says: `10.1.0.3  2h ago  "half a \x1b[2Jbackup\nof something\ne"`},
		{reason: "in another spelling", args: "::ffff:10.1.0.3", removed: true},
		{reason: "the pod is known by its address", removed: true, change: func(n *node, _ *podNetwork) {
			n.pods("pods.json", pod{Name: "web", IPs: []string{"10.1.0.2"}})
		}},
		{reason: "a pod in the node's network", removed: true, change: func(n *node, _ *podNetwork) {
			n.pods("pods.json", web, pod{Name: "proxy", HostNetwork: true, IPs: []string{"192.168.0.10"}}, pod{Name: "host", HostNetwork: true, IPs: []string{"10.1.0.3"}})
		}},

		{reason: "a live pod has the address (R3)", status: statusError, says: "10.1.0.3 is in-use and is not removed", change: func(n *node, _ *podNetwork) {
			n.pods("pods.json", web, pod{Name: "db", ContainerIDs: []string{sandbox("db")}, IPs: []string{"10.1.0.3"}})
		}},
		{reason: "a pod that has just finished has it (hazard 13)", status: statusError, says: "is in-use", change: func(n *node, _ *podNetwork) {
			n.pods("pods.json", web, pod{Name: "job", Finished: true, IPs: []string{"10.1.0.3"}})
		}},
		{reason: "a second interface in one network, whose address no source names (hazard 22)", args: "10.2.0.3 --network storage", status: statusError, says: "shop/web of source file may hold it", change: func(n *node, _ *podNetwork) {
			storage := n.network("storage", "10.2.0.0/24")
			storage.add(sandbox("web"), time.Hour)
			storage.write("10.2.0.3", garbage, 2*time.Hour)
		}},
		{reason: "just written", status: statusError, says: "too young", change: func(_ *node, nw *podNetwork) { nw.date("10.1.0.3", 13*time.Minute) }},
		{reason: "dated in the future", status: statusError, says: "too young", change: func(_ *node, nw *podNetwork) { nw.date("10.1.0.3", -time.Hour) }},
		{reason: "younger than --min-age", args: "10.1.0.3 --min-age 3h", status: statusError, says: "must be 3h0m0s older"},
		{reason: "younger than an ADD may take here", args: "10.1.0.3 --runtime-request-timeout 1h", status: statusError, says: "must be 2h10m0s older"},
		{reason: "the list is older (hazard 62)", status: statusError, says: "too young", change: func(n *node, _ *podNetwork) {
			at := time.Now().Add(-time.Hour - 50*time.Minute)
			if err := os.Chtimes(filepath.Join(n.dir, "pods.json"), at, at); err != nil {
				n.t.Fatal(err)
			}
		}},
		{reason: "the list is dated in the future (hazard 75)", status: statusError, says: "dated in the future", change: func(n *node, _ *podNetwork) {
			at := time.Now().Add(time.Hour)
			if err := os.Chtimes(filepath.Join(n.dir, "pods.json"), at, at); err != nil {
				n.t.Fatal(err)
			}
		}},
		{reason: "leaked: that is release's", args: "10.1.0.4", status: statusError, says: "10.1.0.4 is leaked and is not removed"},
		{reason: "in use", args: "10.1.0.2", status: statusError, says: "10.1.0.2 is in-use and is not removed"},
		{reason: "free", args: "10.1.0.9", status: statusError, says: "10.1.0.9 is not reserved in podnet"},
		{reason: "of a network that is not named", args: "10.1.0.3 --network other", status: statusError, says: "is not reserved in podnet, other", change: func(n *node, nw *podNetwork) {
			nw.write("10.1.0.3", sandbox("web"), time.Hour)
			if err := os.Remove(nw.file("10.1.0.3")); err != nil {
				n.t.Fatal(err)
			}
			n.network("other", "10.3.0.0/24")
		}},
		{reason: "in two of the networks", args: "10.1.0.3 --network other", status: statusError, says: "reserved in several", change: func(n *node, _ *podNetwork) {
			other := n.network("other", "10.1.0.0/24")
			other.add(sandbox("x"), time.Hour)
			other.write("10.1.0.3", garbage, 2*time.Hour)
		}},
		{reason: "the source fails", args: "10.1.0.3 --source file:none.json", status: statusError, says: "because of the error above"},
		{reason: "one network is misspelt", args: "10.1.0.3 --network pdonet", status: statusError, says: "because of the error above"},
		{reason: "two addresses, of which one is leaked", args: "10.1.0.3 10.1.0.4", removed: true, status: statusError, says: "10.1.0.4 is leaked and is not removed"},
		{reason: "all that are malformed", args: "all", removed: true},
		{reason: "no address", args: "podnet", status: statusUsage, says: "is no address"},
		{reason: "nobody says yes", args: "10.1.0.3 --yes=false", says: "Nothing was removed: --yes removes them."},
		{reason: "a variable says yes", args: "10.1.0.3 --yes=false", env: "HOSTLOCAL_GC_YES=true", says: "Nothing was removed: --yes "},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n, nw := malformedNode(t)
			if row.change != nil {
				row.change(n, nw)
			}
			args := []string{"remove-malformed", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json", "--yes"}
			switch row.args {
			case "":
				row.args = "10.1.0.3"
			case "all":
				row.args = ""
			}
			if row.env != "" { // a variable instead of --yes
				args, row.args = args[:len(args)-1], "10.1.0.3"
			}
			cmd := command(t, n.dir, append(args, strings.Fields(row.args)...)...)
			cmd.Env = append(cmd.Env, row.env)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			got := finish(t, cmd.Run(), &stdout, &stderr)
			if got.status != row.status || !strings.Contains(got.stdout+got.stderr, row.says) || strings.Contains(got.stdout, "\x1b") {
				t.Errorf("exit status %d, want %d, and without %q:\n%s%s", got.status, row.status, row.says, got.stdout, got.stderr)
			}
			if row.removed != (strings.Contains(got.stdout, "Removed "+filepath.Join("networks", "podnet", "10.1.0.3"))) {
				t.Errorf("removed is not %v:\n%s", row.removed, got.stdout)
			}
			for _, ip := range []string{"10.1.0.2", "10.1.0.4", "fd00:1::2", "fd00:1::3"} {
				if !nw.there(ip) {
					t.Errorf("%s was removed, too", ip)
				}
			}
			if left := nw.there("10.1.0.3"); left == row.removed && row.says != "is not reserved in podnet, other" {
				t.Errorf("the file is there: %v", left)
			}
		})
	}
}

// The kernel shows all addresses of a pod that has any there. A pod without any may hold this one,
// unless more is known.
func TestMayHold(t *testing.T) {
	now := time.Now()
	ips := func(text string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(text)} }
	r := &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr("10.1.0.3"), Owner: hostlocal.Malformed, ReservedAt: now.Add(-time.Hour)}
	other := &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr("10.1.0.2"), Owner: hostlocal.Owned, ContainerID: "b", ReservedAt: r.ReservedAt}
	done := &result{Report: gc.Report{Started: now, Reservations: []gc.Entry{{Reservation: other}, {Reservation: r}}}}
	for _, row := range []struct {
		reason string
		pod    podsource.Pod
		sees   bool
		want   bool
	}{
		{"it has another address, and the kernel was asked", podsource.Pod{IPs: ips("192.168.0.2")}, true, false},
		{"it has another address, and may have more", podsource.Pod{IPs: ips("192.168.0.2")}, false, true},
		{"it has another address, and one that could not be read", podsource.Pod{IPs: ips("192.168.0.2"), MoreIPs: true}, true, true},
		{"its address in this network is known, and it may have more", podsource.Pod{IPs: ips("10.1.0.2"), MoreIPs: true}, true, true},
		{"of its two interfaces one has a file that names it, and the kernel would show the other", podsource.Pod{ContainerIDs: []string{"b"}}, true, false},
		{"of its two interfaces one has a file that names it (hazard 22)", podsource.Pod{ContainerIDs: []string{"b"}}, false, true},
		{"its namespace shows no address (hazard 59)", podsource.Pod{ContainerIDs: []string{"a"}}, true, true},
		{"it was started later", podsource.Pod{StartedAt: now}, false, false},
		{"it was started before (R4)", podsource.Pod{StartedAt: now.Add(-2 * time.Hour)}, false, true},
		{"since when it is starting is unknown (R4)", podsource.Pod{}, false, true},
		{"of its container only the ID is known, and no file names it", podsource.Pod{ContainerIDs: []string{"a"}}, false, true},
		{"its status has the address of the other family alone (hazard 08)", podsource.Pod{IPs: ips("fd00:1::2")}, false, true},
		{"its ADD is under way", podsource.Pod{ContainerIDs: []string{"a"}, StartedAt: now}, true, true},
		{"it ended long ago (hazard 31)", podsource.Pod{FinishedAt: now.Add(-6 * time.Minute)}, false, false},
		{"it has just ended (hazard 56)", podsource.Pod{FinishedAt: now.Add(-4 * time.Minute)}, false, true},
		{"when it ended is not known", podsource.Pod{Finished: true}, false, true},
	} {
		if got := mayHold(&row.pod, r, done, row.sees); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
	keeps := podsource.Answer{Source: "netns", Supplementary: true, Networks: []string{podsource.EveryNetwork}}
	err := new(app).checkUnclaimed(r, done, []podsource.Answer{keeps})
	if err == nil || !strings.Contains(err.Error(), "no source here lists the pods of network podnet") {
		t.Errorf("beside a source that only keeps: %v", err)
	}
}
