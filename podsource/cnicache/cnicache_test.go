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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// object is a part of an entry.
type object map[string]any

// written returns an entry of libcni with some fields changed. A nil field is left out.
func written(t *testing.T, change object) string {
	t.Helper()
	all := object{
		"kind": "cniCacheV1", "containerId": "ee3b0f0c", "ifName": "eth0", "networkName": "podnet",
		"netns": "/var/run/netns/cni-1", "config": []byte(`{"name":"podnet"}`),
		"result": object{
			"cniVersion": "1.0.0",
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
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// ask asks a source with one directory. The namespaces at the living paths exist. Of unclear
// and of no path only the time is compared, with lastBoot.
func ask(t *testing.T, dir string, living ...string) podsource.Answer {
	t.Helper()
	a, err := askAll(t, []string{dir}, living...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// unclear is a path that Living can't decide.
const unclear = "/proc/self/fd/7"

var lastBoot = time.Now().Add(-time.Hour)

func askAll(t *testing.T, dirs []string, living ...string) (podsource.Answer, error) {
	t.Helper()
	s, err := New(Options{Dirs: dirs, Living: func(context.Context) (func(string, time.Time) (bool, bool), error) {
		return func(path string, at time.Time) (bool, bool) {
			if path == "" || path == unclear {
				return at.After(lastBoot), false
			}
			return slices.Contains(living, path), true
		}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s.Pods(t.Context())
}

// file writes a file with that modification time.
func file(t *testing.T, dir, name, text string, at time.Time) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// The answer for one file.
//
// Guard: [parseEntry] and [inName] find the container of a file, and [entry.claims] decides
// whether it is live.
func TestHazard70Entries(t *testing.T) {
	const path = "/var/run/netns/cni-1"
	ips := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	live := []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}, IPs: ips, Network: "podnet"}}
	byName := []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}, Unproven: true}} // its network is not known
	noIPs := []podsource.Pod{{ContainerIDs: []string{"ee3b0f0c"}, Network: "podnet"}}
	now, beforeBoot := time.Now(), lastBoot.Add(-time.Hour)
	for _, c := range []struct {
		reason string
		text   string
		at     time.Time
		living string
		pods   []podsource.Pod
	}{
		{"its namespace exists", written(t, nil), now, path, live},
		{"... although the file's time is from before the boot", written(t, nil), beforeBoot, path, live},
		{"its namespace is gone", written(t, nil), now, "", nil},
		{"the namespace of the result does not count if libcni recorded another", written(t, nil), now, "/var/run/netns/cni-9", nil},
		{"libcni before 1.2: that of the result counts", written(t, object{"netns": nil}), now, "/var/run/netns/cni-9", live},
		{"... and it is gone", written(t, object{"netns": nil}), now, path, nil},
		{"Living can't decide", written(t, object{"netns": unclear}), now, path, byName},
		{"... for an entry from before the boot, whose claim gc ends", written(t, object{"netns": unclear}), beforeBoot, path, byName},
		{"one of two paths exists for certain", written(t, object{"netns": nil, "result": object{"interfaces": []object{{"sandbox": unclear}, {"sandbox": path}}}}), now, path, noIPs},
		{"one is gone for certain, the other can't be decided", written(t, object{"netns": nil, "result": object{"interfaces": []object{{"sandbox": unclear}, {"sandbox": "/var/run/netns/gone"}}}}), now, path, byName},
		{"no path at all, of this boot", written(t, object{"netns": nil, "result": object{}}), now, path, byName},
		{"... of an earlier boot", written(t, object{"netns": nil, "result": object{}}), beforeBoot, path, byName},
		{"an old result", written(t, object{"result": object{"ip4": object{"ip": "10.0.0.2/24"}, "ip6": object{"ip": "fd00::2/64"}}}), now, path, live},
		{"an invalid address does not hide the container", written(t, object{"result": object{"ips": []object{{"address": "x"}}}}), now, path, noIPs},
		{"empty", "", now, path, byName},
		{"torn", written(t, nil)[:200], now, path, byName},
		{"torn, from before the boot", written(t, nil)[:200], beforeBoot, path, byName},
		{"of another kind", written(t, object{"kind": "cniCacheV2"}), now, path, byName},
		{"a result alone, as early versions of libcni wrote it", `{"cniVersion":"0.3.1","ips":[{"address":"10.0.0.2/24"}]}`, now, path, byName},
		{"an ID that CNI does not allow", written(t, object{"containerId": "a/b"}), now, path, byName},
		{"a network that CNI does not allow", written(t, object{"networkName": "../x"}), now, path, byName},
		{"too long", strings.Repeat(" ", maxEntry) + written(t, nil), now, path, byName},
	} {
		t.Run(c.reason, func(t *testing.T) {
			dir := t.TempDir()
			file(t, dir, "podnet-ee3b0f0c-eth0", c.text, c.at)
			attached := podsource.Attachment{Network: "podnet", ContainerID: "ee3b0f0c"}
			pods := slices.Clone(c.pods)
			for i := range pods {
				if pods[i].Unproven {
					pods[i].StartedAt = c.at
				}
			}
			want := podsource.Answer{
				Source: "cnicache", Supplementary: true, Pods: pods, Names: podsource.AnyContainer, AtOnce: true,
				Cache: &podsource.Cache{Entries: []podsource.Attachment{attached}, Since: c.at},
			}
			got := ask(t, dir, c.living)
			for i := range got.Pods {
				want := "CNI cache " + filepath.Join(dir, "podnet-ee3b0f0c-eth0")
				if _, err := parseEntry([]byte(c.text)); err != nil || len(c.text) > maxEntry {
					want += ", which is damaged"
				}
				if p := &got.Pods[i]; p.Origin != want {
					t.Errorf("the origin is %q, want %q", p.Origin, want)
				}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(podsource.Pod{}, "Origin"),
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A cache was not wiped since its oldest record, as long as each call finds a record of the
// call before.
//
// Guard: [cache.next] keeps the time only while a record of the call before exists, and the
// namespaces of all missing ones are gone.
func TestHazard70CacheSince(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	var living []string
	s, err := New(Options{Dirs: []string{dir, other}, Living: func(context.Context) (func(string, time.Time) (bool, bool), error) {
		return func(path string, _ time.Time) (bool, bool) { return slices.Contains(living, path), true }, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 12, minute, 0, 0, time.UTC) }
	for _, empty := range []string{dir, other} {
		if err := os.Chtimes(empty, at(0), at(0)); err != nil {
			t.Fatal(err)
		}
	}
	const lives = "/var/run/netns/cni-1"
	for _, step := range []struct {
		reason string
		in     string
		write  map[string]int // files, and when
		remove []string
		living []string
		want   time.Time
	}{
		{"both have been empty since they were made", dir, nil, nil, nil, at(0)},
		{"a file that is no entry is no record", dir, map[string]int{"lock": 1}, nil, nil, at(1)},
		{"the oldest of two", dir, map[string]int{"podnet-a-eth0": 10, "podnet-b-eth0": 20}, nil, nil, at(10)},
		{"the oldest ended, and the other is still there", dir, nil, []string{"podnet-a-eth0"}, nil, at(10)},
		{"... and then a new one comes", dir, map[string]int{"podnet-c-eth0": 30}, nil, nil, at(10)},
		{"... and the first new one ends", dir, nil, []string{"podnet-b-eth0"}, nil, at(10)},
		{"no record of the call before exists", dir, map[string]int{"podnet-d-eth0": 40}, []string{"podnet-c-eth0"}, nil, at(40)},
		{"another file of the same name", dir, map[string]int{"podnet-d-eth0": 50}, nil, nil, at(50)},
		{"an older one counts", dir, map[string]int{"podnet-e-eth0": 45}, nil, nil, at(45)},
		{"a record is gone, and its namespace exists: removed because of its age", dir, nil, []string{"podnet-e-eth0"}, []string{lives}, at(50)},
		{"... and the time remains", dir, nil, nil, nil, at(50)},
		{"the later one of two directories", other, map[string]int{"podnet-f-eth0": 55}, nil, nil, at(55)},
		{"... whichever that is", other, map[string]int{"podnet-f-eth0": 5}, nil, nil, at(50)},
		{"one is wiped: the time of that", dir, nil, []string{"podnet-d-eth0"}, nil, at(58)},
		{"... until there is a new one", dir, map[string]int{"podnet-g-eth0": 59}, nil, nil, at(59)},
	} {
		living = step.living
		for name, minute := range step.write {
			text := written(t, nil)
			if name == "lock" {
				text = ""
			}
			file(t, step.in, name, text, at(minute))
		}
		for _, name := range step.remove {
			if err := os.Remove(filepath.Join(step.in, name)); err != nil {
				t.Fatal(err)
			}
		}
		when := at(58) // the last change of the directory, which counts if it is empty
		if len(step.write) == 0 && step.remove == nil {
			when = at(0)
		} else if step.write["lock"] > 0 {
			when = at(1)
		}
		if err := os.Chtimes(step.in, when, when); err != nil {
			t.Fatal(err)
		}
		a, err := s.Pods(t.Context())
		if err != nil || !a.Cache.Since.Equal(step.want) {
			t.Errorf("%s: got %v, %v; want %v", step.reason, a.Cache.Since, err, step.want)
		}
	}
}

// If no directory has a record, the note names all of them.
func TestNote(t *testing.T) {
	dir, missing := t.TempDir(), filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		reason string
		dirs   []string
		want   string
	}{
		{"missing", []string{missing}, "the directory " + missing + " does not exist"},
		{"empty", []string{dir}, dir + " holds no record; is it the directory of this node's runtime?"},
		{"both", []string{dir, missing}, dir + " holds no record; is it the directory of this node's runtime?; the directory " + missing + " does not exist"},
	} {
		if got, err := askAll(t, c.dirs); err != nil || got.Note != c.want {
			t.Errorf("%s: got %q, %v", c.reason, got.Note, err)
		}
	}
	file(t, dir, "podnet-ee3b0f0c-eth0", written(t, nil), time.Now())
	if got, err := askAll(t, []string{dir, missing}); err != nil || got.Note != "" {
		t.Errorf("one has a record: got %q, %v", got.Note, err)
	}
}

// A file name may have several meanings.
func TestInName(t *testing.T) {
	for _, c := range []struct {
		file string
		want []attachment
	}{
		{"podnet-ee3b0f0c-eth0", []attachment{{"podnet", "ee3b0f0c"}}},
		{"pod-net-ee3b0f0c-eth0", []attachment{{"pod", "net"}, {"pod", "net-ee3b0f0c"}, {"pod-net", "ee3b0f0c"}}},
		{"podnet-default-ee3b-eth0", []attachment{{"podnet", "default"}, {"podnet", "default-ee3b"}, {"podnet-default", "ee3b"}}},
		{"podnet-" + strings.Repeat("-", 30) + "x", nil},
		{"podnet-ee3b0f0c", nil},
		{"lock", nil},
		{"a-.b-c", nil},
		{"", nil},
	} {
		if diff := cmp.Diff(c.want, inName(c.file), cmp.AllowUnexported(attachment{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.file, diff)
		}
	}
	if got := inName(strings.Repeat("a-", 127)); len(got) > 8200 {
		t.Errorf("%d candidates", len(got))
	}
}

// TestHazard70UnclearRecordVanishes: an entry is removed, and nothing can tell whether its
// namespace exists. Then it may have been wiped, as if it existed.
//
// Guard: [cache.next] counts a namespace that can't be looked up as one that is there.
func TestHazard70UnclearRecordVanishes(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Options{Dirs: []string{dir}, Living: func(context.Context) (func(string, time.Time) (bool, bool), error) {
		return func(path string, _ time.Time) (bool, bool) { return path == unclear, path != unclear }, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 12, minute, 0, 0, time.UTC) }
	file(t, dir, "podnet-a-eth0", written(t, object{"netns": unclear}), at(10))
	file(t, dir, "podnet-b-eth0", written(t, nil), at(20))
	for _, want := range []time.Time{at(10), at(20)} {
		if a, err := s.Pods(t.Context()); err != nil || !a.Cache.Since.Equal(want) {
			t.Errorf("recorded since %v, %v, want %v", a.Cache.Since, err, want)
		}
		_ = os.Remove(filepath.Join(dir, "podnet-a-eth0"))
	}
}

// Pods may be called by several goroutines. The race detector notices a missing lock.
func TestPodsConcurrently(t *testing.T) {
	dir := t.TempDir()
	file(t, dir, "podnet-ee3b0f0c-eth0", written(t, nil), time.Now())
	s, err := New(Options{Dirs: []string{dir}, Living: func(context.Context) (func(string, time.Time) (bool, bool), error) {
		return func(string, time.Time) (bool, bool) { return true, true }, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for range 2 {
		calls.Add(1)
		go func() {
			defer calls.Done()
			for range 50 {
				if a, err := s.Pods(t.Context()); err != nil || len(a.Pods) != 1 {
					t.Errorf("got %v, %v", a.Pods, err)
				}
			}
		}()
	}
	calls.Wait()
}

// Directories and links beside the entries, a missing directory, and a file as directory.
func TestDirectories(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	file(t, dir, "podnet-ee3b0f0c-eth0", written(t, nil), time.Now())
	file(t, other, "macvlan-5c7b9a1e-net1", written(t, object{"containerId": "5c7b9a1e", "networkName": "macvlan"}), time.Now())
	if err := os.Mkdir(filepath.Join(dir, "podnet-d1e2c7-eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(other, "macvlan-5c7b9a1e-net1"), filepath.Join(dir, "podnet-5117-eth0")); err != nil {
		t.Skipf("links can't be made here: %v", err)
	}
	got, err := askAll(t, []string{dir, filepath.Join(dir, "missing"), other}, "/var/run/netns/cni-1")
	if err != nil {
		t.Fatal(err)
	}
	want := []podsource.Attachment{{Network: "podnet", ContainerID: "ee3b0f0c"}, {Network: "macvlan", ContainerID: "5c7b9a1e"}}
	if diff := cmp.Diff(want, got.Cache.Entries); diff != "" || len(got.Pods) != 2 {
		t.Errorf("got %d pods; recorded (-want +got):\n%s", len(got.Pods), diff)
	}
	if got, err := askAll(t, []string{filepath.Join(dir, "podnet-ee3b0f0c-eth0")}); err == nil || got.Names != 0 || got.Cache != nil || errors.Is(err, podsource.ErrNotHere) {
		t.Errorf("a file in the place of the directory: got %+v, %v", got, err)
	}
}

// If the cache can't be read, Pods returns an error and no declaration.
func TestErrors(t *testing.T) {
	for _, opts := range []Options{{}, {Dirs: []string{"/a"}}} {
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "Options.Living is missing") {
			t.Errorf("without Living: %v", err)
		}
	}
	errFailed := errors.New("failed")
	living := func(context.Context) (func(string, time.Time) (bool, bool), error) { return nil, errFailed }
	if _, err := New(Options{Dirs: []string{"results"}, Living: living}); err == nil {
		t.Error("a relative path is accepted")
	}
	s, err := New(Options{Living: living})
	if err != nil {
		t.Fatal(err)
	}
	if s.dirs[0] != DefaultDir || s.Rank() != podsource.RankCache {
		t.Errorf("got %q, rank %d", s.dirs, s.Rank())
	}
	if got, err := s.Pods(t.Context()); !errors.Is(err, errFailed) || got.Names != 0 || got.Cache != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	dir := t.TempDir()
	file(t, dir, "podnet-ee3b0f0c-eth0", written(t, nil), time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s, err = New(Options{Dirs: []string{dir}, Living: func(context.Context) (func(string, time.Time) (bool, bool), error) {
		return func(string, time.Time) (bool, bool) { return true, true }, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Pods(ctx); !errors.Is(err, context.Canceled) || got.Pods != nil {
		t.Errorf("the context has ended: got %+v, %v", got, err)
	}
}

// FuzzEntry: any bytes are an entry with names that CNI allows, or an error.
func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"a","networkName":"n","result":{"interfaces":[{"sandbox":"/x"}],"ips":[{"address":"10.0.0.1/8"}]}}`))
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"a","networkName":"n","result":null}`))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := parseEntry(text)
		if err != nil {
			return
		}
		if len(e.attachments) != 1 || !name.MatchString(e.attachments[0].network) || !name.MatchString(e.attachments[0].containerID) {
			t.Errorf("got %+v", e)
		}
		for _, ip := range e.ips {
			if !ip.IsValid() {
				t.Error("an invalid address")
			}
		}
	})
}

// The end of the context ends a call, in Living and between two entries (R13).
func TestContextEnds(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "podnet-ee3b0f0c-eth0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		reason string
		err    error // of Living
	}{{"in Living", context.Canceled}, {"before an entry", nil}} {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := New(Options{Dirs: []string{dir}, Living: func(context.Context) (func(string, time.Time) (bool, bool), error) {
			cancel()
			return func(string, time.Time) (bool, bool) { return true, true }, row.err
		}})
		if err != nil {
			t.Fatal(err)
		}
		if a, err := s.Pods(ctx); a.Names != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %+v, %v", row.reason, a, err)
		}
	}
}
