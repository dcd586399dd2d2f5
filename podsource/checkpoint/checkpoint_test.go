// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestRoundTrip: after each change the entries in memory and in the file are the same.
func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served)
	full := Entry{
		Key: key("b"), IPs: []netip.Addr{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("fd00::3")},
		Pod: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "6ba7b810",
		NetNS: NetNS{Path: "/no/such/<directory>/\u2028ns", Dev: 4, Inode: 1<<64 - 1}, Time: time.Now(),
	}
	bare := Entry{Key: Key{network1, "a", "net1"}, Time: full.Time}
	again := full
	again.IPs, again.UID = again.IPs[:1], "7c9e6679"
	for _, s := range []struct {
		reason string
		do     func() error
		want   []Entry
	}{
		{"begun", func() error { return nil }, nil},
		{"all fields", func() error { return c.Add(full) }, []Entry{full}},
		{"only a key and a time, sorted before the other", func() error { return c.Add(bare) }, []Entry{bare, full}},
		{"the same key again, beside a temporary file of a crash", func() error {
			write(t, path+".tmp", "half")
			return c.Add(again)
		}, []Entry{bare, again}},
		{"removed", func() error { return c.Remove(bare.Key) }, []Entry{again}},
		{"removed again", func() error { return c.Remove(bare.Key) }, []Entry{again}},
		{"another interface of the container", func() error { return c.Remove(Key{network1, "b", "net1"}) }, []Entry{again}},
		{"nothing left", func() error { return c.Remove(full.Key) }, nil},
	} {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.reason, err)
		}
		if diff := cmp.Diff(s.want, c.Entries(), equal); diff != "" {
			t.Errorf("%s: in memory (-want +got):\n%s", s.reason, diff)
		}
		got, ok := c.Get(bare.Key)
		if want := len(s.want) > 0 && s.want[0].Key == bare.Key; ok != want || ok && !cmp.Equal(bare, got, equal) {
			t.Errorf("%s: Get returns %v, %t, want %t", s.reason, got, ok, want)
		}
		r, err := decode(read(t, path))
		if err != nil {
			t.Fatalf("%s: %v", s.reason, err)
		}
		if diff := cmp.Diff(s.want, r.Entries, equal); diff != "" {
			t.Errorf("%s: on the disk (-want +got):\n%s", s.reason, diff)
		}
		if left := leftovers(t, path); left != nil {
			t.Errorf("%s: left behind: %v", s.reason, left)
		}
	}
	if err := c.Add(Entry{Key: full.Key}); err != nil {
		t.Fatal(err)
	}
	at := c.Entries()[0].Time
	if age := time.Since(at); age < 0 || age > time.Hour || at != at.Round(0).UTC() {
		t.Errorf("the default time is %v, %v ago; want now, as in the file", at, age)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
}

// TestFormat checks each byte of the file: any change needs another Format.
func TestFormat(t *testing.T) {
	web := entry("ee3b0f0c", "10.0.0.2")
	web.NetNS = NetNS{Path: "/run/netns/web", Dev: 4, Inode: 4026532001}
	web.NetNS.ID, web.NetNS.Dir = 7, Directory{Dev: 25, Inode: 2, FS: 1 << 60}
	gaps := []podsource.Gap{{To: web.Time}, {From: web.Time, To: web.Time}}
	content, err := encoded(&record{BootID: "5c7b9a1e", Written: web.Time, SinceBoot: time.Minute, Gaps: gaps,
		Entries: []Entry{web, {Key: Key{network1, "ee3b0f0c", "net1"}, Time: web.Time, IPs: []netip.Addr{}}}})
	if err != nil {
		t.Fatal(err)
	}
	got := string(content)
	want := `{"format":"hostlocal-gc/attachments/3","crc32c":"8011d5a4","record":{"bootID":"5c7b9a1e","written":"2025-03-01T12:00:00.000000005Z","sinceBoot":60000000000,"gaps":[{"to":"2025-03-01T12:00:00.000000005Z"},{"from":"2025-03-01T12:00:00.000000005Z","to":"2025-03-01T12:00:00.000000005Z"}],"attachments":[
{"network":"podnet","containerID":"ee3b0f0c","ifName":"eth0","ips":["10.0.0.2"],"pod":{"Namespace":"default","Name":"pod-ee3b0f0c"},"uid":"uid-ee3b0f0c","netns":{"path":"/run/netns/web","dev":4,"inode":4026532001,"id":7,"dir":{"dev":25,"inode":2,"fs":1152921504606846976}},"time":"2025-03-01T12:00:00.000000005Z"},
{"network":"podnet","containerID":"ee3b0f0c","ifName":"net1","ips":[],"time":"2025-03-01T12:00:00.000000005Z"}
]}}
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAddRefuses invalid attachments, and those that the file can't represent.
func TestAddRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served, entry("a", "10.0.0.2"))
	before := string(read(t, path))
	for _, row := range []struct {
		reason string
		entry  Entry
	}{
		{"no network", Entry{Key: Key{"", "b", "eth0"}}},
		{"a network with a path", Entry{Key: Key{"../x", "b", "eth0"}}},
		{"no container ID", Entry{Key: Key{network1, "", "eth0"}}},
		{"a container ID with a scheme", Entry{Key: Key{network1, "containerd://b", "eth0"}}},
		{"a container ID with a newline at its end", Entry{Key: Key{network1, "b\n", "eth0"}}},
		{"no interface", Entry{Key: Key{network1, "b", ""}}},
		{"an interface with white space", Entry{Key: Key{network1, "b", "eth\u00a00"}}},
		{"an interface that is a directory", Entry{Key: Key{network1, "b", "."}}},
		{"... or the one above", Entry{Key: Key{network1, "b", ".."}}},
		{"... or is in one", Entry{Key: Key{network1, "b", "a/b"}}},
		{"an interface that is an alias", Entry{Key: Key{network1, "b", "eth0:1"}}},
		{"an interface of 16 bytes", Entry{Key: Key{network1, "b", strings.Repeat("e", 16)}}},
		{"an invalid address", Entry{Key: key("b"), IPs: []netip.Addr{{}}}},
		{"an invalid second address", Entry{Key: key("b"), IPs: []netip.Addr{netip.IPv6Loopback(), {}}}},
		{"a path that JSON can't represent", Entry{Key: key("b"), NetNS: NetNS{Path: "/run/\xff"}}},
		{"a name that JSON can't represent", Entry{Key: key("b"), Pod: types.NamespacedName{Name: "\xff"}}},
		{"a time that JSON can't represent", Entry{Key: key("b"), Time: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)}},
	} {
		if err := c.Add(row.entry); err == nil {
			t.Errorf("%s: no error", row.reason)
		}
		if got := string(read(t, path)); got != before {
			t.Errorf("%s: the file is %q now", row.reason, got)
		}
	}
	if diff := cmp.Diff([]string{"10.0.0.2"}, recorded(c)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := c.Add(Entry{Key: Key{network1, "b", strings.Repeat("e", 15)}}); err != nil {
		t.Errorf("an interface of 15 bytes, which the kernel allows: %v", err)
	}
}

// TestPods checks the pods and the declarations of an answer.
func TestPods(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	second := entry("a", "10.1.0.2")
	second.Network, second.IfName, second.Pod, second.UID = "storage", "net1", types.NamespacedName{}, ""
	networks := []string{network1, "other"}
	c := begun(t, path, Options{Networks: networks}, second, entry("a", "10.0.0.2"), entry("b", "10.0.0.3"))
	want := podsource.Answer{
		Source: "checkpoint", Authoritative: true, Networks: networks,
		Names: podsource.AnyContainer, AtOnce: true,
		Pods: []podsource.Pod{
			{NamespacedName: entry("a", "::").Pod, UID: "uid-a", ContainerIDs: []string{"a"},
				IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Network: network1},
			{NamespacedName: entry("b", "::").Pod, UID: "uid-b", ContainerIDs: []string{"b"},
				IPs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Network: network1},
			{ContainerIDs: []string{"a"}, IPs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Network: "storage"},
		},
	}
	for name, source := range map[string]podsource.Source{"writer": c, "reader": reader(t, path, Options{Networks: networks})} {
		got, err := source.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, equal, withoutGaps); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if got, err := source.Pods(ended); !cmp.Equal(got, errorAnswer, equal) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, %v after the context's end", name, got, err)
		}
		if r, ok := source.(podsource.Ranked); !ok || r.Rank() != podsource.RankCache {
			t.Errorf("%s: want RankCache, after sources that see ADDs and addresses, and before the runtime", name)
		}
	}
}

// errorAnswer is the answer beside an error: only the name of the source.
var errorAnswer = podsource.Answer{Source: "checkpoint"}

// TestArguments: Open and New return errors for invalid arguments, and change no file.
func TestArguments(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "attachments")
	for _, row := range []struct {
		reason, path string
		opts         Options
		says         string
	}{
		{"no path", "", served, "path"},
		{"no networks", path, Options{}, "Options.Networks"},
		{"an invalid network", path, Options{Networks: []string{network1, "a/b"}}, `"a/b"`},
		{"a negative lag", path, Options{Networks: []string{network1}, Lag: -1}, "Options.Lag"},
	} {
		s, newErr := New(row.path, row.opts)
		c, openErr := Open(row.path, row.opts)
		if s != nil || c != nil {
			t.Errorf("%s: %v, %v beside an error", row.reason, s, c)
		}
		for who, err := range map[string]error{"reader": newErr, "writer": openErr} {
			if err == nil || !strings.Contains(err.Error(), row.says) || errors.Is(err, podsource.ErrNotHere) {
				t.Errorf("%s: the %s returns %v", row.reason, who, err)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there are %v, %v", left, err)
	}
}

// A relative path is resolved when the record is opened.
func TestRelativePath(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	c := begun(t, "attachments", served)
	r := reader(t, "attachments", served)
	t.Chdir(t.TempDir())
	if err := c.Add(entry("a", "10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	for who, r := range map[string]*Source{"relative path": r, "absolute path": reader(t, filepath.Join(dir, "attachments"), served)} {
		if got := ids(t, r); !slices.Equal(got, []string{"a"}) {
			t.Errorf("a reader with the %s sees %v", who, got)
		}
	}
}

// TestCallersSlices: slices of callers are copied.
func TestCallersSlices(t *testing.T) {
	networks := []string{network1}
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), Options{Networks: networks})
	networks[0] = "changed"
	if got, err := c.Pods(t.Context()); err != nil || !slices.Equal(got.Networks, []string{network1}) {
		t.Errorf("it speaks of %v, %v, want %s", got.Networks, err, network1)
	}
	e := entry("a", "10.0.0.2")
	if err := c.Add(e); err != nil {
		t.Fatal(err)
	}
	e.IPs[0] = netip.MustParseAddr("10.9.9.9")
	c.Entries()[0].IPs[0] = netip.MustParseAddr("10.9.9.9")
	got, _ := c.Get(e.Key)
	got.IPs[0] = netip.MustParseAddr("10.9.9.9")
	c.Entries()[0].ContainerID = "x"
	if diff := cmp.Diff([]Entry{entry("a", "10.0.0.2")}, c.Entries(), equal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestGoroutines: no change of several goroutines is lost.
func TestGoroutines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range 3 {
				kept, removed := fmt.Sprintf("k%d-%d", i, j), fmt.Sprintf("r%d-%d", i, j)
				err := errors.Join(c.Add(entry(kept, "10.0.0.2")), c.Add(entry(removed, "10.0.0.3")), c.Remove(key(removed)))
				_, podsErr := c.Pods(t.Context())
				if err = errors.Join(err, podsErr); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	r, err := decode(read(t, path))
	if err != nil || len(r.Entries) != 24 {
		t.Fatalf("%v, want 24 entries on the disk: %v", err, r)
	}
	if diff := cmp.Diff(r.Entries, c.Entries(), equal); diff != "" {
		t.Errorf("(-disk +memory):\n%s", diff)
	}
}

// TestClosed: after Close all methods return errors and write nothing.
func TestClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served, entry("a", "10.0.0.2"))
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	other := opened(t, path, served)
	if _, ok := c.Get(key("a")); ok || len(c.Entries()) != 0 {
		t.Error("a closed record has entries")
	}
	_, podsErr := c.Pods(t.Context())
	_, pruneErr := c.Prune(t.Context())
	for name, err := range map[string]error{
		"add": c.Add(entry("b", "10.0.0.3")), "remove": c.Remove(key("a")), "pods": podsErr, "prune": pruneErr,
		"backfill": c.Backfill(t.Context(), noPods, nil),
	} {
		if !errors.Is(err, fs.ErrClosed) || errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("%s: %v, want %v", name, err, fs.ErrClosed)
		}
	}
	if diff := cmp.Diff([]string{"10.0.0.2"}, recorded(other)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCloseFails if the record can't be written. It is closed nevertheless.
func TestCloseFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served)
	blockWrites(t, path)
	if err := c.Close(); err == nil {
		t.Error("no error")
	}
	if err := os.RemoveAll(path + ".tmp"); err != nil {
		t.Fatal(err)
	}
	opened(t, path, served)
}

// blockWrites makes writing the record at path fail.
func blockWrites(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(path+".tmp", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestBackfill checks the first file, or that there is none after an error.
func TestBackfill(t *testing.T) {
	attachments := func(p podsource.Pod) ([]Entry, error) {
		var out []Entry
		for _, id := range p.ContainerIDs {
			out = append(out, Entry{Key: key(id), IPs: p.IPs, UID: p.UID})
		}
		return out, nil
	}
	broken := errors.New("broken")
	pod := podsource.Pod{UID: "1", ContainerIDs: []string{"a", "b"}, IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
	supplementary := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Supplementary: true}, nil })
	past, recent := time.Now().Add(-5*time.Minute), time.Now().Add(-time.Minute)
	finished := func(at time.Time) podsource.Pod {
		return podsource.Pod{UID: "f", ContainerIDs: []string{"f"}, IPs: pod.IPs, Finished: true, FinishedAt: at}
	}
	for _, row := range []struct {
		reason string
		source podsource.Source
		of     func(podsource.Pod) ([]Entry, error)
		want   []string // container IDs
		is     error    // nil: none
	}{
		{"two sandboxes of a pod", podsource.Static{pod}, attachments, []string{"a", "b"}, nil},
		{"a pod in the node's network has no attachment", podsource.Static{pod, {HostNetwork: true}}, attachments, []string{"a", "b"}, nil},
		{"seen twice", podsource.Static{pod, pod}, attachments, []string{"a", "b"}, nil},
		{"a pod that has no attachment in this network", podsource.Static{pod, {IPs: pod.IPs}}, attachments, []string{"a", "b"}, nil},
		{"members of a union, each with its own pods", podsource.Union(podsource.Static{pod}, podsource.Static{{ContainerIDs: []string{"c"}}}),
			attachments, []string{"a", "b", "c"}, nil},
		{"a supplementary member without pods", podsource.Union(podsource.Static{pod}, supplementary), attachments, []string{"a", "b"}, nil},
		{"no pods, and the source is authoritative", noPods, nil, []string{}, nil},
		{"no pods, and it is not (R9)", podsource.Static{}, attachments, nil, errAny},
		{"no pods in one member that is not authoritative (R9)", podsource.Union(podsource.Static{pod}, podsource.Static{}), attachments, nil, errAny},
		{"only pods that finished long ago (R9, hazard 43)", podsource.Static{finished(past)}, attachments, nil, errAny},
		{"the source fails", podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			return []podsource.Pod{pod}, broken
		}), attachments, nil, broken},
		{"attachmentsOf fails", podsource.Static{pod}, func(podsource.Pod) ([]Entry, error) { return nil, broken }, nil, broken},
		{"attachmentsOf is nil", podsource.Static{pod}, nil, nil, errAny},
		{"a gap with a time that JSON can't represent", podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			return podsource.Answer{Pods: []podsource.Pod{pod}, Gaps: []podsource.Gap{{To: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)}}}, nil
		}), attachments, nil, errAny},
		{"a pod that has just finished: its sandbox may still run", podsource.Static{finished(recent)}, attachments, []string{"f"}, nil},
		{"a pod that finished at an unknown time", podsource.Static{finished(time.Time{})}, attachments, []string{"f"}, nil},
		{"a pod that is starting is no error", podsource.Static{pod, {UID: "2"}}, attachments, []string{"a", "b"}, nil},
		{"an invalid attachment", podsource.Static{pod}, func(podsource.Pod) ([]Entry, error) {
			return []Entry{{Key: key("a")}, {Key: key("")}}, nil
		}, nil, errAny},
	} {
		t.Run(row.reason, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "attachments")
			c := opened(t, path, served)
			err := c.Backfill(t.Context(), row.source, row.of)
			if row.is != nil {
				if err == nil || row.is != errAny && !errors.Is(err, row.is) {
					t.Errorf("error %v, want %v", err, row.is)
				}
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a file was written: %v", err)
				}
				if _, err := c.Pods(t.Context()); !errors.Is(err, podsource.ErrNotHere) {
					t.Errorf("Pods afterwards: %v, want %v", err, podsource.ErrNotHere)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, e := range c.Entries() {
				got = append(got, e.ContainerID)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a file that was written meanwhile stays", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "attachments")
		c := opened(t, path, served)
		write(t, path, "restored from a backup")
		if err := c.Backfill(t.Context(), noPods, nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v, want %v", err, fs.ErrExist)
		}
		if got := string(read(t, path)); got != "restored from a backup" {
			t.Errorf("the file was changed to %s", got)
		}
	})
}

var errAny = errors.New("any error")

// Evicted pods, and finished pods that still list an address, are not recorded, and
// the first Backfill succeeds.
//
// Guard: [finishedLongAgo] leaves out pods that have no attachment any more, and
// [backfill.add] returns no error for a pod without addresses and containers.
func TestHazard61FinishedPods(t *testing.T) {
	reserved := map[netip.Addr]string{ // in the data directory
		netip.MustParseAddr("10.0.0.2"): "live", netip.MustParseAddr("10.0.0.3"): "new-owner",
	}
	byAddress := func(p podsource.Pod) (of []Entry, err error) {
		for _, ip := range p.IPs {
			of = append(of, Entry{Key: key(reserved[ip]), UID: p.UID})
		}
		return of, nil
	}
	path := filepath.Join(t.TempDir(), "attachments")
	c := opened(t, path, served)
	source := podsource.Static{
		{UID: "evicted-long-ago", Finished: true, FinishedAt: time.Now().Add(-24 * time.Hour)},
		{UID: "live", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
		{UID: "evicted", Finished: true},
		{UID: "evicted-a-minute-ago", Finished: true, FinishedAt: time.Now().Add(-time.Minute)},
		{UID: "job", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Finished: true, FinishedAt: time.Now().Add(-time.Hour)},
	}
	given := slices.Clone(source)
	if err := c.Backfill(t.Context(), source, byAddress); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(given, source, equal); diff != "" {
		t.Errorf("the source's pods were changed (-want +got):\n%s", diff)
	}
	if got := c.Entries(); len(got) != 1 || got[0].UID != "live" {
		t.Errorf("recorded: %+v, want one attachment", got)
	}
}

// TestAddBeforeBackfill: a record that began with one attachment would declare that
// there is no other, and the node's older pods would lose their addresses.
func TestAddBeforeBackfill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := opened(t, path, served)
	if err := c.Add(entry("a", "10.0.0.2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
	if err := c.Remove(key("a")); err != nil {
		t.Errorf("Remove without an entry: %v", err)
	}
	if gone, err := c.Prune(t.Context()); gone != nil || err != nil {
		t.Errorf("Prune without entries: %v, %v", gone, err)
	}
	if got, err := c.Pods(t.Context()); !cmp.Equal(got, errorAnswer, equal) || !errors.Is(err, podsource.ErrNotHere) {
		t.Errorf("Pods: %v, %v, want %v", got, err, podsource.ErrNotHere)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was written: %v", err)
	}
}

// TestBackfillAfterOneThatFailedLate: the first file may exist although the Backfill
// that wrote it returned an error. It is no record yet, and the next Backfill replaces
// it.
func TestBackfillAfterOneThatFailedLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := opened(t, path, served)
	c.dirty = true // as [Checkpoint.commit] leaves it
	write(t, path, "")
	if err := c.Remove(key("a")); err != nil || len(read(t, path)) > 0 {
		t.Errorf("Remove: %v; it wrote %s", err, read(t, path))
	}
	if err := errors.Join(c.Backfill(t.Context(), noPods, nil), c.Add(entry("a", "10.0.0.2"))); err != nil {
		t.Error(err)
	}
}

// TestBoot: a record of another boot is empty, and the next change makes it a record of
// this boot. An unknown boot is not another boot.
func TestBoot(t *testing.T) {
	for _, row := range []struct {
		reason, wrote, reads string
		want                 []string
	}{
		{"the same boot", "1", "1", []string{"10.0.0.2"}},
		{"another boot", "1", "2", nil},
		{"the kernel's own", "", "", []string{"10.0.0.2"}},
	} {
		path := filepath.Join(t.TempDir(), "attachments")
		write(t, path, string(written(t, ofBoot(row.wrote), entry("a", "10.0.0.2"))))
		before := string(read(t, path))
		c := opened(t, path, ofBoot(row.reads))
		if diff := cmp.Diff(row.want, recorded(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		for name, source := range map[string]podsource.Source{"writer": c, "reader": reader(t, path, ofBoot(row.reads))} {
			got, err := source.Pods(t.Context())
			if err != nil || len(got.Pods) != len(row.want) || !got.Authoritative {
				t.Errorf("%s: the %s returns %v, %v", row.reason, name, got, err)
			}
		}
		if got := string(read(t, path)); got != before {
			t.Errorf("%s: reading changed the file to %s", row.reason, got)
		}
		if err := c.Add(entry("b", "10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		c = opened(t, path, ofBoot(row.reads))
		if diff := cmp.Diff(append(row.want, "10.0.0.3"), recorded(c)); diff != "" {
			t.Errorf("%s, after a change (-want +got):\n%s", row.reason, diff)
		}
	}
	for _, boots := range [][2]string{{"", "1"}, {"1", ""}} {
		content, err := encoded(&record{BootID: boots[0], Written: time.Now(), Entries: []Entry{entry("a", "10.0.0.2")}})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "attachments")
		write(t, path, string(content))
		if got, same, err := load(path, boots[1]); err != nil || !same || len(got.Entries) != 1 {
			t.Errorf("boots %q: %v, %v, want the entry", boots, got, err)
		}
	}
}

// TestPruneLeavesNew: Prune ignores entries that are removed or recorded again while
// it checks namespaces.
func TestPruneLeavesNew(t *testing.T) {
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, entry("a", "10.0.0.2"), entry("b", "10.0.0.3"), entry("c", "10.0.0.4"))
	gone := c.Entries() // as if all of their namespaces had ended
	again := entry("b", "10.0.0.3")
	again.NetNS = NetNS{Path: "/run/netns/other", Dev: 4, Inode: 4026532001}
	if err := errors.Join(c.Remove(key("a")), c.Add(entry("a-new", "10.0.0.2")), c.Add(again)); err != nil {
		t.Fatal(err)
	}
	next, those := c.state.Load().without(gone)
	if len(next.items) != 2 || next.items[0].Key != key("a-new") || next.items[1].Key != key("b") || len(those) != 1 || those[0].Key != key("c") {
		t.Errorf("left: %v, gone: %v", next.entries(), those)
	}
	if got := recorded(c); len(got) != 3 {
		t.Errorf("the record was changed to %v", got)
	}
}

// TestOpenFails if the directory is missing: that is the caller's mistake, not a record
// that was never written.
func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "missing", "attachments"), served); err == nil || !strings.Contains(err.Error(), "opening the record") {
		t.Errorf("%v without a directory", err)
	}
	blockWrites(t, filepath.Join(dir, "attachments"))
	if _, err := Open(filepath.Join(dir, "attachments"), served); err == nil {
		t.Error("no error with a directory where the temporary file goes")
	}
	if err := os.RemoveAll(filepath.Join(dir, "attachments.tmp")); err != nil {
		t.Fatal(err)
	}
	opened(t, filepath.Join(dir, "attachments"), served) // the failed ones released the lock
}

// A new namespace may have the path of the one that is gone.
func TestPruneLeavesNewAtTheSamePath(t *testing.T) {
	old := entry("b", "10.0.0.3")
	old.NetNS = NetNS{Path: "/run/netns/b", Dev: 4, Inode: 4026532001}
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, old)
	gone, again := c.Entries(), old
	again.NetNS.Inode++
	if err := c.Add(again); err != nil {
		t.Fatal(err)
	}
	if next, removed := c.state.Load().without(gone); len(next.items) != 1 || len(removed) != 0 {
		t.Errorf("removed %v", removed)
	}
}

// Close writes before it releases the lock: else it would overwrite the next writer's record.
func TestCloseWritesUnderTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, served, entry("a", "10.0.0.2"))
	before, unlock, unlocked := read(t, path), c.unlock, false
	c.unlock = func() {
		unlocked = true
		if string(read(t, path)) == string(before) {
			t.Error("the lock was released before the last write")
		}
		unlock()
	}
	if err := c.Close(); err != nil || !unlocked {
		t.Fatalf("closing: %v, unlocked: %t", err, unlocked)
	}
}

// A caller that changes its options later changes nothing.
func TestOptionsAreCopied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	begun(t, path, served, entry("a", "10.0.0.2"))
	networks := []string{network1}
	s := reader(t, path, Options{Networks: networks})
	networks[0] = "changed"
	if a, err := s.Pods(t.Context()); err != nil || !slices.Equal(a.Networks, []string{network1}) {
		t.Errorf("got %v, %v", a.Networks, err)
	}
}
