// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// garbage is text that no version of host-local wrote, with an escape sequence.
const garbage = "half a \x1b[2Jbackup\nof something\nelse\n"

// A malformed file is removed only if no live pod may hold the address, and nothing else ever is.
func TestRemoveMalformed(t *testing.T) {
	ips := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	type situation struct {
		*flags
		nw           *podNetwork
		list, kernel podsource.Answer
		err          error // of the list
	}
	for _, row := range []struct {
		reason  string
		change  func(s *situation)
		removed bool
		says    string // in the output or the error
	}{
		{"nobody's", func(*situation) {}, true, "/podnet/10.1.0.3  2h ago\n"},
		{"nobody says yes", func(s *situation) { s.yes = false }, false, "Nothing was changed: --yes does this."},
		{"a live pod has the address (R3)", func(s *situation) { s.kernel.Pods = []podsource.Pod{{IPs: ips("10.1.0.3")}} }, false,
			"No file is malformed."},
		{"a pod may have more addresses", func(s *situation) { s.list.Pods[0].MoreIPs = true }, false, "shop/web of source cri may hold "},
		{"just written, as another one", func(s *situation) {
			cnitest.DateBack(t, s.nw.file("10.1.0.3"), 13*time.Minute)
			s.nw.write("10.1.0.9", garbage, 0)
		}, false, "kept: too young: a file must be "},
		{"dated in the future", func(s *situation) { cnitest.DateBack(t, s.nw.file("10.1.0.3"), -time.Hour) }, false, "too young"},
		{"younger than --min-age", func(s *situation) { s.minAge = 3 * time.Hour }, false, "must be 3h0m0s older"},
		{"younger than an ADD may take here", func(s *situation) { s.requestTimeout = time.Hour }, false, "must be 2h10m0s older"},
		{"the list is older (hazard 62)", func(s *situation) { s.list.AsOf = time.Now().Add(-110 * time.Minute) }, false, "too young"},
		{"the list is dated in the future (hazard 75)", func(s *situation) { s.list.AsOf = time.Now().Add(time.Hour) }, false,
			"dated in the future"},
		{"the kernel was not asked, or not all of it was seen", func(s *situation) { s.kernel.SeesAddresses = false }, false, "--source netns"},
		{"nobody lists the pods", func(s *situation) { s.list.Supplementary = true }, false, "lists the pods of network podnet"},
		{"libcni's cache does, of containerd and nerdctl", func(s *situation) {
			s.list.Supplementary, s.list.Cache = true, &podsource.Cache{}
		}, true, "Removed"},
		{"the source fails", func(s *situation) { s.err = errors.New("no such socket") }, false, "because of the error above"},
		{"one network is misspelt", func(s *situation) { s.networks = append(s.networks, "pdonet") }, false, "because of the error above"},
	} {
		n := newNode(t)
		s := &situation{nw: n.network("podnet", "10.1.0.0/24", "fd00:1::/64")}
		for _, name := range []string{"web", "spoiled", "gone"} {
			s.nw.add(sandbox(name), 2*time.Hour)
		}
		s.nw.write("10.1.0.3", garbage, 2*time.Hour)
		every := []string{podsource.EveryNetwork}
		web := podsource.Pod{ContainerIDs: []string{sandbox("web")}, IPs: ips("10.1.0.2", "fd00:1::2")}
		web.Namespace, web.Name = "shop", "web"
		s.list = podsource.Answer{Source: "cri", Networks: every, Pods: []podsource.Pod{web}}
		s.kernel = podsource.Answer{Source: "netns", Networks: every, Supplementary: true, SeesAddresses: true}
		var out strings.Builder
		a := &app{stdout: &out, stderr: &out}
		a.root() // sets the defaults of flags
		s.flags = &a.flags
		s.dataDir, s.networks, s.yes = n.dir+"/networks", []string{"podnet"}, true
		row.change(s)
		err := a.removeMalformed(t.Context(), podsource.Union(
			podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return s.list, s.err }),
			podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return s.kernel, nil })))
		a.printError(err)
		well := row.removed || row.says[0] == 'N'
		if !strings.Contains(out.String(), row.says) || n.there("podnet/10.1.0.3") == row.removed || (err == nil) != well {
			t.Errorf("%s: removed is not %t, or without %q:\n%s", row.reason, row.removed, row.says, &out)
		}
		for _, ip := range []string{"10.1.0.2", "10.1.0.4", "fd00:1::2", "fd00:1::3"} {
			if !n.there("podnet/" + ip) {
				t.Errorf("%s: %s was removed, too", row.reason, ip)
			}
		}
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
		want   bool
	}{
		{"it has another address", podsource.Pod{IPs: ips("192.168.0.2")}, false},
		{"the same of a container, and libcni's cache was not asked: the kernel may not show it (VFIO, gVisor)",
			podsource.Pod{ContainerIDs: []string{"a"}, IPs: ips("192.168.0.2")}, true},
		{"its address in this network is known, and it may have more", podsource.Pod{IPs: ips("10.1.0.2"), MoreIPs: true}, true},
		{"of its two interfaces one has a file, and the kernel would show the other", podsource.Pod{ContainerIDs: []string{"b"}}, false},
		{"its namespace shows no address (hazard 59)", podsource.Pod{ContainerIDs: []string{"a"}}, true},
		{"it is in the node's network", podsource.Pod{HostNetwork: true, ContainerIDs: []string{"a"}}, false},
		{"it was started later", podsource.Pod{StartedAt: now}, false},
		{"it was started before (R4)", podsource.Pod{StartedAt: now.Add(-2 * time.Hour)}, true},
		{"since when it is starting is unknown (R4)", podsource.Pod{}, true},
		{"its ADD is under way", podsource.Pod{ContainerIDs: []string{"a"}, StartedAt: now}, true},
		{"it ended long ago (hazard 31)", podsource.Pod{FinishedAt: now.Add(-6 * time.Minute)}, false},
		{"it has just ended (hazard 56)", podsource.Pod{FinishedAt: now.Add(-4 * time.Minute)}, true},
		{"when it ended is not known", podsource.Pod{Finished: true}, true},
	} {
		done.said = []podsource.Answer{{}, {Cache: new(podsource.Cache)}}
		if strings.HasPrefix(row.reason, "the same") {
			done.said = done.said[:1]
		}
		if got := mayHold(&row.pod, r, done); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}
