// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// The findings for what check read, gravest first.
func TestDiagnose(t *testing.T) {
	ip := netip.MustParseAddr
	at := func(text string, why gc.Reason) gc.Entry {
		return gc.Entry{Reservation: &hostlocal.Reservation{Network: "podnet", IP: ip(text)}, Reason: why, Verdict: why.Verdict()}
	}
	small := []cniconf.Network{{Name: "podnet", Ranges: []iprange.Set{{{First: ip("10.1.0.1"), Last: ip("10.1.0.3"), Gateway: ip("10.1.0.1")}}}}}
	large := []cniconf.Network{{Name: "podnet", Ranges: []iprange.Set{{{First: ip("fd00::1"), Last: ip("fd00::ffff:ffff:ffff:ffff"), Gateway: ip("fd00::1")}}}}}
	both := []cniconf.Network{{Name: "podnet", Ranges: slices.Concat(large[0].Ranges, small[0].Ranges)}}
	podnet := []string{"podnet"}
	unreserved := func(text, name string) []gc.Claim {
		return []gc.Claim{{IP: ip(text), Pods: []*gc.Pod{&gc.Pod{Name: name}}}}
	}
	elsewhere := &place{report: gc.Report{Reservations: []gc.Entry{at("10.1.0.2", gc.ContainerLive)}}}
	for _, row := range []struct {
		reason string
		place  place
		others []*place
		want   string // the words of the findings
		says   string // part of the first text
	}{
		{"all is well", place{judged: true, report: gc.Report{Networks: podnet, Reservations: []gc.Entry{at("10.1.0.2", gc.ContainerLive)}}, confs: small}, nil, "OK", "1 of 2 addresses reserved, all in use"},
		{"the range was another one once", place{judged: true, report: gc.Report{Networks: podnet, Reservations: []gc.Entry{at("10.1.0.2", gc.ContainerLive), at("10.9.0.2", gc.Unowned)}}, confs: small}, nil, "LEAKED", "1 of 2 addresses reserved, and 1 outside of the range, 1 leaked"},
		{"nothing is reserved now", place{judged: true, report: gc.Report{Networks: podnet}, confs: small}, nil, "OK", "0 of 2 addresses reserved."},
		{"nothing was ever reserved", place{judged: true, report: gc.Report{DataDir: "/d"}}, nil, "OK", "/d"},
		{"the user named a data directory that does not exist", place{judged: true, named: true, report: gc.Report{DataDir: "/d", DataDirMissing: true}}, nil, "MISSING", "there is no data directory /d"},
		{"a data directory that does not exist is host-local's before its first ADD", place{judged: true, report: gc.Report{DataDir: "/d", DataDirMissing: true}}, nil, "OK", "nothing was ever reserved"},
		{"the network's first pod has not come yet", place{judged: true, report: gc.Report{Networks: podnet, Missing: podnet}}, nil, "OK", "nothing was ever reserved"},
		{"the user named it", place{judged: true, asked: []string{"podnet"}, report: gc.Report{Networks: podnet, Missing: podnet}}, nil, "MISSING", "no directory"},
		{"the reservations could not be read, which check reports itself", place{judged: true, unread: true, report: gc.Report{DataDir: "/d"}}, nil, "", ""},
		{"somebody removed it", place{judged: true, report: gc.Report{Networks: podnet, Missing: podnet, Unreserved: unreserved("10.1.0.2", "web")}, confs: small}, nil, "MISSING", "1 address of a live pod is not reserved anywhere"},
		{"a live pod's address is free to host-local", place{judged: true, report: gc.Report{Networks: podnet, Unreserved: unreserved("10.1.0.2", "web")}, confs: small}, nil, "UNRESERVED OK", "10.1.0.2 (/web)"},
		{"it is of no range of host-local's", place{judged: true, report: gc.Report{Networks: podnet, Unreserved: unreserved("192.168.0.2", "web")}, confs: small}, nil, "OK", ""},
		{"it is reserved in another data directory", place{judged: true, report: gc.Report{Networks: podnet, Unreserved: unreserved("10.1.0.2", "web")}, confs: small}, []*place{elsewhere}, "OK", ""},
		{"the ranges are not known, and the kernel has seen another runtime's", place{judged: true, report: gc.Report{Networks: podnet, Unreserved: unreserved("172.17.0.2", "")}}, nil, "OK", ""},
		{"the ranges are not known, and it is a pod's", place{judged: true, report: gc.Report{Networks: podnet, Unreserved: unreserved("10.1.0.2", "web")}}, nil, "UNRESERVED OK", ""},
		{"two pods have one address, and the range is full of leaks", place{judged: true, confs: small, report: gc.Report{Networks: podnet,
			Duplicates:   []gc.Claim{{IP: ip("10.1.0.2"), Pods: []*gc.Pod{{Name: "a"}, {Name: "b"}}}},
			Reservations: []gc.Entry{at("10.1.0.2", gc.TwoPods), at("10.1.0.3", gc.Unowned)}}}, nil, "DUPLICATE FULL CONFLICT", "10.1.0.2"},
		{"full, and none is leaked or in use", place{judged: true, confs: small, report: gc.Report{Networks: podnet, Reservations: []gc.Entry{at("10.1.0.2", gc.TooYoung), at("10.1.0.3", gc.ForeignOwner)}}}, nil, "FULL", "none leaked: 1 young, 1 foreign"},
		{"nobody counts the addresses of an IPv6 subnet", place{judged: true, confs: large, report: gc.Report{Networks: podnet, Reservations: []gc.Entry{at("fd00::2", gc.ContainerLive)}}}, nil, "OK", "1 reservation, of a range that has far more addresses than a node can use, all in use"},
		{"beside an IPv6 subnet the IPv4 range is full", place{judged: true, confs: both, report: gc.Report{Networks: podnet, Reservations: []gc.Entry{
			at("10.1.0.2", gc.ContainerLive), at("10.1.0.3", gc.Unowned), at("fd00::2", gc.ContainerLive)}}}, nil, "FULL", "2 of 2 addresses reserved, 1 leaked"},
		{"leaks, and the range is unknown", place{judged: true, report: gc.Report{Networks: podnet, Reservations: []gc.Entry{at("10.1.0.2", gc.Unowned)}}}, nil, "LEAKED", "(no configuration of this network with this data directory has a range: see --range)"},
		{"nobody answers, and the lock is held", place{unknown: []string{"cri: away"}, locks: map[string]string{"podnet": "process 1 holds it"}, report: gc.Report{Networks: podnet}}, nil, "LOCKED UNKNOWN", "process 1"},
		{"nobody answers, and it is full", place{unknown: []string{"cri: away"}, confs: small, report: gc.Report{Networks: podnet, Reservations: []gc.Entry{at("10.1.0.2", gc.SourceFailed), at("10.1.0.3", gc.SourceFailed)}}}, nil, "UNKNOWN FULL", "cri: away"},
	} {
		var words []string
		found := diagnose(&row.place, append(row.others, &row.place))
		for _, f := range found {
			words = append(words, f.Word)
		}
		if got := strings.Join(words, " "); got != row.want || len(found) > 0 && !strings.Contains(found[0].Text+".", row.says) {
			t.Errorf("%s: %v, want %s that says %q", row.reason, found, row.want, row.says)
		}
	}
}

// The command that check prints judges as check did, and is safe to copy.
func TestProposedCommand(t *testing.T) {
	n := fullNode(t)
	dir := filepath.Join(n.dir, "it's $(here); \x1b[2J")
	if err := os.Rename(filepath.Join(n.dir, "networks"), dir); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"check", "--data-dir", dir, "--source", "file:pods.json", "--cni-dir", ".", "--min-age", "10m", "--allow-foreign", "default-",
		"--require-pod", "shop/web-0", "--require-pod", "shop/web-2", "--allow-empty", "--runtime-request-timeout", "3m",
	}
	got := run(t, n.dir, nil, args...)
	_, proposed, _ := strings.Cut(got.stdout, "\n  ")
	proposed, _, _ = strings.Cut(proposed, "\n")
	want := "hostlocal-gc release --allow-empty=true --allow-foreign=default- --min-age=10m --require-pod=shop/web-0" +
		" --require-pod=shop/web-2 --runtime-request-timeout=3m0s --source=file:pods.json --data-dir '" + n.dir + `/it'\''s $(here); ?[2J' --network podnet`
	if diff := cmp.Diff(want, proposed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for word, want := range map[string]string{"": "''", "a-b/c:1": "a-b/c:1", "a b": "'a b'", "a'b": `'a'\''b'`, "ü": "'ü'", "$x": "'$x'"} {
		if got := quoted(word); got != want {
			t.Errorf("%q is quoted as %s, want %s", word, got, want)
		}
	}
}

// check does not print OK if it could not read everything.
func TestCheckDoubts(t *testing.T) {
	const conf = `{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}`
	const networks = "UNKNOWN: the networks and their ranges are unknown: see what was not read\n"
	for _, row := range []struct {
		reason string
		change func(n *node, nw *podNetwork)
		dir    string
		status int
		first  string
	}{
		{"all can be read", nil, "cni", statusDone, "OK: podnet: "},
		{"a configuration that ends in the middle, as no plugin reads it", func(n *node, _ *podNetwork) { n.put("cni/10.conf", conf[:40]) }, "cni", statusError, networks},
		{"a range that is none", func(n *node, _ *podNetwork) { n.put("cni/10.conf", strings.ReplaceAll(conf, "/24", "/33")) }, "cni", statusError, networks},
		{"the user named a directory that does not exist", nil, "none", statusError, networks},
		{"a broken configuration beside one that a runtime takes", func(n *node, _ *podNetwork) { n.put("cni/20.conf", conf[:40]) }, "cni", statusDone, "OK: podnet: "},
		{"something is wrong all the same, and goes first", func(n *node, nw *podNetwork) {
			n.put("cni/10.conf", conf[:40])
			nw.add(sandbox("gone"), time.Hour)
		}, "cni", statusLeaked, "LEAKED: podnet: "},
	} {
		n := newNode(t)
		nw := n.network("podnet", "10.1.0.0/24")
		nw.add(sandbox("web"), time.Hour)
		n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}})
		if err := os.Mkdir(filepath.Join(n.dir, "cni"), 0o755); err != nil {
			t.Fatal(err)
		}
		n.put("cni/10.conf", conf)
		if row.change != nil {
			row.change(n, nw)
		}
		got := run(t, n.dir, nil, "check", "--data-dir", "networks", "--source", "file:pods.json", "--cni-dir", row.dir)
		if got.status != row.status || !strings.HasPrefix(got.stdout, row.first) {
			t.Errorf("%s: exit status %d, want %d, and first %q:\n%s%s", row.reason, got.status, row.status, row.first, got.stdout, got.stderr)
		}
	}
}

// An unreadable reservation precedes an unreadable configuration, and a real finding hides both.
func TestAddUnread(t *testing.T) {
	well, wrong := finding{Word: wordOK}, finding{Word: wordFull}
	for _, row := range []struct {
		reason        string
		findings      []finding
		notRead       string
		failed, known bool
		want          string
	}{
		{"all was read", []finding{well}, "", false, false, ""},
		{"nothing could be listed", nil, "", true, true, "the reservations"},
		{"a file could not be read, nor a configuration", []finding{well}, "10.conf", true, false, "the reservations"},
		{"a configuration", []finding{well}, "10.conf", false, false, "the networks"},
		{"a configuration, beside another", []finding{well}, "10.conf", false, true, ""},
		{"a file, on a node that is full", []finding{well, wrong}, "", true, false, ""},
	} {
		c := checked{Findings: row.findings, NotRead: row.notRead}
		c.addUnread(row.failed, row.known)
		if got := len(c.Findings) > len(row.findings); got != (row.want != "") || got && (c.Findings[0].Word != wordUnknown || !strings.HasPrefix(c.Findings[0].Text, row.want)) {
			t.Errorf("%s: %v, want %q", row.reason, c.Findings, row.want)
		}
	}
}
