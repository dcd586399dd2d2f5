// SPDX-License-Identifier: Apache-2.0

package cnicache

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// must ends the test on an error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// object is a part of an entry.
type object map[string]any

// written returns an entry of libcni with some fields changed. A nil field is left out.
func written(t *testing.T, change object) string {
	t.Helper()
	all := object{
		"kind": "cniCacheV1", "containerId": "ee3b0f0c", "ifName": "eth0", "networkName": "podnet",
		"netns": lives, "config": []byte(`{"name":"podnet"}`),
		"result": object{
			"interfaces": []object{{"name": "cni0"}, {"name": "eth0", "sandbox": "/var/run/netns/cni-9"}},
			"ips":        []object{{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}, {"address": "fd00::2/64"}},
		},
	}
	for k, v := range change {
		if all[k] = v; v == nil {
			delete(all, k)
		}
	}
	text, err := json.Marshal(all)
	must(t, err)
	return string(text)
}

// Two paths of network namespaces: one that written uses, and one that Living can't decide.
const lives, unclear = "/var/run/netns/cni-1", "/proc/self/fd/7"

// namespaces have the paths of those that exist, with the value true. The one at unclear may exist.
type namespaces struct{ sync.Map }

func (n *namespaces) living(context.Context) (func(string, time.Time) (bool, bool), error) {
	return func(path string, _ time.Time) (bool, bool) {
		exists, _ := n.Load(path)
		return exists == true || path == unclear, path != "" && path != unclear
	}, nil
}

// source returns a source with these directories, and the namespaces, of which those at the living paths exist.
func source(t *testing.T, dirs []string, living ...string) (*Source, *namespaces) {
	t.Helper()
	n := new(namespaces)
	for _, path := range living {
		n.Store(path, true)
	}
	s, err := New(Options{Dirs: dirs, Living: n.living})
	must(t, err)
	return s, n
}

// ask asks a new source.
func ask(t *testing.T, dirs []string, living ...string) podsource.Answer {
	t.Helper()
	s, _ := source(t, dirs, living...)
	a, err := s.Pods(t.Context())
	must(t, err)
	return a
}

// file writes a file with that modification time.
func file(t *testing.T, dir, name, text string, at time.Time) {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at))
}

// A node with libcni's cache, in which a reboot leaves the entries behind.
func TestSource(t *testing.T) {
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		dir := filepath.Join(t.TempDir(), "results")
		s, node := source(t, []string{dir})
		must(t, os.Mkdir(dir, 0o755))
		name := func(at podsource.Attachment) string { return at.Network + "-" + at.ContainerID + "-" + at.IfName }
		return gctest.Fixture{
			Source: s, Networks: []string{"podnet", "storage"},
			Attach: func(at podsource.Attachment) {
				path := "/run/netns/" + at.ContainerID
				node.Store(path, true)
				file(t, dir, name(at), written(t, object{"containerId": at.ContainerID, "networkName": at.Network, "netns": path,
					"result": object{"ips": []object{{"address": netip.PrefixFrom(at.IPs[0], 8).String()}}}}), time.Now())
			},
			Detach: func(at podsource.Attachment) { must(t, os.RemoveAll(filepath.Join(dir, name(at)))) },
			Break:  func() { must(t, os.Rename(dir, dir+".whole"), os.WriteFile(dir, nil, 0o600)) },
			Repair: func() { must(t, os.Remove(dir), os.Rename(dir+".whole", dir)) },
			Lose:   func() { must(t, os.RemoveAll(dir)) },
			Reboot: node.Clear,
		}
	})
}

// The answer for one file.
//
// Guard: [parseEntry] and [inName] find the container of a file, and [entry.claims] decides
// whether it is live.
func TestHazard70Entries(t *testing.T) {
	dir, at := t.TempDir(), time.Now().Add(-time.Hour)
	noIPs := podsource.Pod{ContainerIDs: []string{"ee3b0f0c"}, Network: "podnet", Origin: "CNI cache " + dir + "/podnet-ee3b0f0c-eth0"}
	live, unproven := noIPs, noIPs
	live.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	unproven.Network, unproven.Unproven, unproven.StartedAt = "", true, at // gc ends its claim, if that is from before the boot
	damaged, ended := unproven, podsource.Pod{}
	damaged.Origin += ", which is damaged"
	sandboxes := func(paths ...string) string {
		var all []object
		for _, path := range paths {
			all = append(all, object{"sandbox": path})
		}
		return written(t, object{"netns": nil, "result": object{"interfaces": all}})
	}
	for _, c := range []struct {
		reason, text, living string
		want                 podsource.Pod
	}{
		{"its namespace exists", written(t, nil), lives, live},
		{"its namespace is gone", written(t, nil), "", ended},
		{"the namespace of the result does not count if libcni recorded another", written(t, nil), "/var/run/netns/cni-9", ended},
		{"libcni before 1.2: that of the result counts", written(t, object{"netns": nil}), "/var/run/netns/cni-9", live},
		{"... and it is gone", written(t, object{"netns": nil}), lives, ended},
		{"Living can't decide, as if its clock was set (hazard 115)", written(t, object{"netns": unclear}), lives, unproven},
		{"one of two paths exists for certain", sandboxes(unclear, lives), lives, noIPs},
		{"one is gone for certain, the other can't be decided", sandboxes(unclear, "/var/run/netns/gone"), lives, unproven},
		{"no path at all", sandboxes(), lives, unproven},
		{"before CNI 0.3.0", written(t, object{"result": object{"ip4": object{"ip": "10.0.0.2"}, "ip6": object{"ip": "fd00::2"}}}), lives, live},
		{"an invalid address does not hide the container", written(t, object{"result": object{"ips": []object{{"address": "x"}}}}), lives, noIPs},
		{"empty", "", lives, damaged},
		{"torn", written(t, nil)[:200], lives, damaged},
		{"of another kind", written(t, object{"kind": "cniCacheV2"}), lives, damaged},
		{"a result alone, as early versions of libcni wrote it", `{"cniVersion":"0.3.1","ips":[{"address":"10.0.0.2/24"}]}`, lives, damaged},
		{"an ID that CNI does not allow", written(t, object{"containerId": "a/b"}), lives, damaged},
		{"a network that CNI does not allow", written(t, object{"networkName": "../x"}), lives, damaged},
		{"too long", strings.Repeat(" ", maxEntry) + written(t, nil), lives, damaged},
	} {
		file(t, dir, "podnet-ee3b0f0c-eth0", c.text, at)
		want := podsource.Answer{Source: "cnicache", Supplementary: true, Names: podsource.AnyContainer, AtOnce: true, Cache: &podsource.Cache{
			Entries: []podsource.Attachment{{Network: "podnet", ContainerID: "ee3b0f0c"}}, Since: map[string]time.Time{"podnet": at},
		}}
		if c.want.ContainerIDs != nil {
			want.Pods = []podsource.Pod{c.want}
		}
		if diff := cmp.Diff(want, ask(t, []string{dir}, c.living), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

// Each container has a result of the plugin loopback, as with containerd, and more addresses that no container has for
// itself. Its entries keep what is reserved for it, also from a range of link-local addresses.
//
// Guard: [parseEntry] leaves out addresses that are not global unicast.
func TestHazard89NotItsOwnAddresses(t *testing.T) {
	dir, data := t.TempDir(), gctest.NewDir(t)
	for id, ip := range map[string]string{"web": "10.0.0.2", "db": "10.0.0.3"} {
		id = gctest.ContainerID(id)
		data.Reserve("podnet", ip, id, time.Hour)
		for network, addresses := range map[string]string{"podnet": ip + "/24", "storage": "169.254.172.9/22 fe80::1/64",
			"cni-loopback": "127.0.0.1/8 ::1/128 ::ffff:127.0.0.1/104 0.0.0.0/0 ::/0 224.0.0.1/4 ff02::1/128"} {
			var ips []object
			for _, address := range strings.Fields(addresses) {
				ips = append(ips, object{"address": address})
			}
			entry := object{"containerId": id, "networkName": network, "result": object{"ips": ips}}
			file(t, dir, network+"-"+id+"-x", written(t, entry), time.Now())
		}
	}
	data.Reserve("storage", "169.254.172.9", gctest.ContainerID("db"), time.Hour)
	data.Reserve("podnet", "10.0.0.4", gctest.ContainerID("ended"), time.Hour)
	s, _ := source(t, []string{dir}, lives)
	record := &gctest.Source{Declares: podsource.Answer{Names: podsource.AnyContainer, AtOnce: true, Authoritative: true}}
	r, err := gc.New(data.Store, []string{"podnet", "storage"}, podsource.Union(s, record), gc.Options{})
	must(t, err)
	report, err := r.Reconcile(t.Context())
	gctest.Check(t, report, "podnet/10.0.0.2 in-use", "podnet/10.0.0.3 in-use", "podnet/10.0.0.4 released", "storage/169.254.172.9 in-use")
	if err != nil || len(report.Duplicates) > 0 || len(report.Unreserved) > 0 {
		t.Errorf("error %v, duplicates %v, unreserved %v", err, report.Duplicates, report.Unreserved)
	}
}

// A network's entries were not wiped since the oldest one, as long as each call finds one of the call before.
//
// Guard: [cache.follow] keeps the time only while an entry of the call before exists in the network, and the namespaces
// of all missing ones are surely gone.
func TestHazard70CacheSince(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	s, node := source(t, []string{dir, other})
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 12, minute, 0, 0, time.UTC) }
	special := map[byte]object{'x': {"netns": unclear}, 'l': {"networkName": "cni-loopback"}, 't': {"kind": "torn"}}
	file(t, dir, "lock", "", at(1)) // is no entry
	must(t, os.Chtimes(other, at(0), at(0)))
	for _, step := range []struct {
		reason, in, changes string // "+a10" is an entry of 12:10, l one of another network, and t a torn one
		living              bool   // the namespace of all but x, which is unclear
		want                int    // -1 is unknown
	}{
		{"others: one of another network, and one that may be", dir, "+l05 +t04", false, -1},
		{"the oldest of two", dir, "+a10 +b20", false, 10},
		{"the oldest ended, a new one comes, and the other is still there", dir, "-a +c30", false, 10},
		{"... and the first new one ends", dir, "-b", false, 10},
		{"no entry of the call before exists", dir, "+d40 -c", false, 40},
		{"another file of the same name", dir, "+d50", false, 50},
		{"an older one counts", dir, "+e45", false, 45},
		{"one is gone, and its namespace exists: removed because of its age", dir, "-e", true, 50},
		{"... and the time remains", dir, "", false, 50},
		{"a second one whose namespace is unclear", dir, "+x47", false, 47},
		{"... is gone: it may have been removed, too", dir, "-x", false, 50},
		{"the later one of two directories", other, "+f55", false, 55},
		{"... whichever that is", other, "+f03", false, 50},
		{"one has only the other network: its oldest entry, as another one may have been removed, too", dir, "-d -t", false, 5},
		{"one is wiped: the last change of the directory", dir, "-l", false, 58},
		{"... until there is a new one", dir, "+g59", false, 59},
	} {
		node.Store(lives, step.living)
		for change := range strings.FieldsSeq(step.changes) {
			path := filepath.Join(step.in, "podnet-"+change[1:2]+"-net-1") // if it is torn, podnet is only one of the networks it may mean
			if minute, err := strconv.Atoi(change[2:]); err == nil {
				file(t, step.in, filepath.Base(path), written(t, special[change[1]]), at(minute))
			} else {
				must(t, os.Remove(path))
			}
			must(t, os.Chtimes(step.in, at(58), at(58)))
		}
		a, err := s.Pods(t.Context())
		must(t, err)
		if since, known := a.Cache.Since["podnet"]; known != (step.want >= 0) || known && !since.Equal(at(step.want)) {
			t.Errorf("%s: got %v, want 12:%02d", step.reason, a.Cache.Since, step.want)
		}
	}
}

// All entries of podnet were wiped, and with containerd an older one of a long gone sandbox's loopback is still there. A
// container that shows no address keeps its own.
//
// Guard: [cache.follow] dates a network by its own entries.
func TestHazard113WipedNetwork(t *testing.T) {
	dir, data, web := t.TempDir(), gctest.NewDir(t), gctest.ContainerID("web")
	data.Reserve("podnet", "10.0.0.2", web, time.Hour)
	data.Reserve("podnet", "10.0.0.3", gctest.ContainerID("wiped"), 48*time.Hour)
	data.Reserve("podnet", "10.0.0.4", gctest.ContainerID("leaked"), 30*time.Minute)
	file(t, dir, "podnet-web-eth0", written(t, object{"containerId": web}), time.Now().Add(-time.Hour))
	file(t, dir, "cni-loopback-ended-lo", written(t, object{"networkName": "cni-loopback", "netns": "gone"}), time.Now().Add(-72*time.Hour))
	s, _ := source(t, []string{dir}, lives)
	kernel := &gctest.Source{Declares: podsource.Answer{Supplementary: true, SeesADDs: []string{"*"}, SeesAddresses: true}}
	r, err := gc.New(data.Store, []string{"podnet"}, podsource.Union(kernel, s), gc.Options{})
	must(t, err)
	report, err := r.Reconcile(t.Context())
	must(t, err)
	gctest.Check(t, report, "10.0.0.2 in-use", "10.0.0.3 foreign not-recorded", "10.0.0.4 released")
}

// A file name may have several meanings.
func TestInName(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"pod-net-ee3b0f0c-eth0", "pod/net pod/net-ee3b0f0c pod-net/ee3b0f0c"},
		{"podnet-" + strings.Repeat("-", 30) + "x", ""},
		{"podnet-ee3b0f0c", ""},
		{"a-.b-c", ""},
	} {
		var got []string
		for _, at := range inName(c.file) {
			got = append(got, at.Network+"/"+at.ContainerID)
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: got %s, want %s", c.file, got, c.want)
		}
	}
}

// Directories and links beside the entries, directories without entries, and calls at the same time: the race detector
// notices a missing lock.
func TestDirectories(t *testing.T) {
	dir, other, empty := t.TempDir(), t.TempDir(), t.TempDir()
	missing := filepath.Join(dir, "missing")
	file(t, dir, "podnet-ee3b0f0c-eth0", written(t, nil), time.Now())
	file(t, other, "macvlan-5c7b9a1e-net1", written(t, object{"containerId": "5c7b9a1e", "networkName": "macvlan"}), time.Now())
	must(t, os.Mkdir(filepath.Join(dir, "podnet-d1e2c7-eth0"), 0o755),
		os.Symlink(filepath.Join(other, "macvlan-5c7b9a1e-net1"), filepath.Join(dir, "podnet-5117-eth0")))
	s, _ := source(t, []string{dir, missing, empty, other}, lives)
	for range 4 {
		t.Run("at the same time", func(t *testing.T) {
			t.Parallel()
			want := []podsource.Attachment{{Network: "podnet", ContainerID: "ee3b0f0c"}, {Network: "macvlan", ContainerID: "5c7b9a1e"}}
			got, err := s.Pods(t.Context())
			if err != nil || got.Note != "" || len(got.Pods) != 2 || !cmp.Equal(want, got.Cache.Entries, cmpopts.EquateComparable(netip.Addr{})) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	const question = " holds no record; is it the directory of this node's runtime?"
	if got, want := ask(t, []string{empty, missing}).Note, empty+question+"; the directory "+missing+" does not exist"; got != want {
		t.Errorf("no directory has an entry: got %q, want %q", got, want)
	}
}

// If the cache can't be read, Pods returns an error and no declaration. So it does at the end of the context (R13).
func TestErrors(t *testing.T) {
	living := new(namespaces).living
	for want, opts := range map[string]Options{"Options.Living is missing": {}, "absolute": {Dirs: []string{"results"}, Living: living}} {
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	s, err := New(Options{Living: living})
	if err != nil || !slices.Equal(s.dirs, []string{DefaultDir}) || s.Rank() != podsource.RankCache {
		t.Errorf("got %+v, %v", s, err)
	}
	dir := t.TempDir()
	file(t, dir, "podnet-ee3b0f0c-eth0", written(t, nil), time.Now())
	for _, c := range []struct {
		reason, dir string
		err, want   error // of Living, and of Pods
	}{
		{"Living fails", dir, os.ErrPermission, os.ErrPermission},
		{"the context ends before an entry", dir, nil, context.Canceled},
		{"a file in the place of the directory", filepath.Join(dir, "podnet-ee3b0f0c-eth0"), nil, nil},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := New(Options{Dirs: []string{c.dir}, Living: func(ctx context.Context) (func(string, time.Time) (bool, bool), error) {
			cancel()
			lives, _ := living(ctx)
			return lives, c.err
		}})
		must(t, err)
		got, err := s.Pods(ctx)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || got.Names != 0 || got.Cache != nil || errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("%s: got %+v, %v", c.reason, got, err)
		}
	}
}

// FuzzEntry: any bytes are an entry with names that CNI allows, or an error.
func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"a","networkName":"n","result":{"ips":[{"address":"10.0.0.1/8"}]}}`))
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"a","networkName":"n","result":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := parseEntry(text)
		if err != nil {
			return
		}
		if len(e.attachments) != 1 || !name.MatchString(e.attachments[0].Network) || !name.MatchString(e.attachments[0].ContainerID) {
			t.Errorf("got %+v", e)
		}
		if slices.ContainsFunc(e.ips, func(ip netip.Addr) bool { return !ip.IsGlobalUnicast() }) {
			t.Errorf("got the addresses %v", e.ips)
		}
	})
}
