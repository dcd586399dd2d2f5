// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// same checks that two values are equal. An empty list is like none.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func check(t testing.TB, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
}

const network1 = "podnet"

func key(containerID string) Key { return Key{network1, containerID, "eth0"} }

// entry is an attachment with one address.
func entry(containerID, ip string) Entry {
	return Entry{
		Key: key(containerID), IPs: []netip.Addr{netip.MustParseAddr(ip)},
		Pod: types.NamespacedName{Namespace: "default", Name: "pod-" + containerID}, UID: types.UID("uid-" + containerID),
		Time: time.Date(2025, 3, 1, 12, 0, 0, 5, time.UTC),
	}
}

// served are the options of an agent that serves the ADDs of network1, and noLag with a runtime that lists a container as soon as
// its address is reserved. The tests run in namespaces.
var served, noLag = Options{Networks: []string{network1}, Nested: true}, Options{Networks: []string{network1}, Nested: true, Lag: 1}

// ofBoot are served on a node with this boot ID.
func ofBoot(id string) Options {
	return Options{Networks: []string{network1}, Nested: true, BootID: id}
}

var every = []string{podsource.EveryNetwork}

// noPods is a source that declares that there is no container of any kind.
var noPods = answers(podsource.Answer{Networks: every, Names: podsource.AnyContainer, Authoritative: true})

// answers is a source with these members.
func answers(members ...podsource.Answer) podsource.Source {
	return podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Parts: members}, nil })
}

// runtimeOf is the answer of a runtime that lists these containers. It may list others minutes after their ADD.
func runtimeOf(containers ...string) podsource.Answer {
	a := podsource.Answer{Source: "runtime", Networks: every, Names: podsource.AnyContainer}
	for _, id := range containers {
		a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{id}})
	}
	return a
}

// by returns the function of a Backfill that knows these addresses of containers.
func by(ips map[string]string) func(podsource.Pod) ([]Entry, error) {
	return func(p podsource.Pod) (of []Entry, err error) {
		for _, id := range p.ContainerIDs {
			if ip, ok := ips[id]; ok {
				e := entry(id, ip)
				e.Time = time.Time{} // now
				of = append(of, e)
			}
		}
		return of, nil
	}
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "attachments") }

// opened opens the record at path, and closes it when the test ends.
func opened(t testing.TB, path string, opts Options) *Checkpoint {
	t.Helper()
	c, err := Open(path, opts)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// reader returns a source that reads the record at path.
func reader(t testing.TB, path string, opts Options) *Source {
	t.Helper()
	s, err := New(path, opts)
	must(t, err)
	return s
}

// begun opens a new record, and adds entries. With noLag it has no gap.
func begun(t testing.TB, path string, opts Options, entries ...Entry) *Checkpoint {
	t.Helper()
	c := opened(t, path, opts)
	must(t, c.Backfill(t.Context(), noPods, nil))
	if opts.Lag == 1 {
		must(t, c.Backfill(t.Context(), noPods, nil))
	}
	for _, e := range entries {
		must(t, c.Add(e))
	}
	return c
}

// written returns the file of a record with these entries.
func written(t testing.TB, opts Options, entries ...Entry) []byte {
	t.Helper()
	c := begun(t, newPath(t), opts, entries...)
	must(t, c.Close())
	return read(t, c.path)
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

// onDisk returns what the file at path has.
func onDisk(t testing.TB, path string) *record {
	t.Helper()
	r, err := decode(read(t, path))
	must(t, err)
	return r
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// blockWrites makes writing the record at path fail.
func blockWrites(t testing.TB, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(path+".tmp", "x"), 0o755))
}

// A node is a data directory of host-local with one network.
type node struct {
	t testing.TB
	*gctest.Dir
	allow []string // gc.Options.AllowForeign; newNode allows any owner, so that names can stand for IDs
}

// newNode returns a node with reservations that are an hour old, of these containers from 10.0.0.2 on.
func newNode(t testing.TB, containers ...string) *node {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	n, ip := &node{t, gctest.NewDir(t), []string{"*"}}, netip.MustParseAddr("10.0.0.2")
	for _, id := range containers {
		n.Reserve(network1, ip.String(), id, time.Hour)
		ip = ip.Next()
	}
	return n
}

// left returns the reserved addresses.
func (n *node) left() (out []string) {
	n.t.Helper()
	list, err := n.Store.List(n.t.Context())
	must(n.t, err)
	for _, r := range list.Reservations {
		out = append(out, r.IP.String())
	}
	return out
}

// reconciler returns a reconciler with this source.
func (n *node) reconciler(source podsource.Source) *gc.Reconciler {
	r, err := gc.New(n.Store, []string{network1}, source, gc.Options{AllowForeign: n.allow})
	must(n.t, err)
	return r
}

// keeps runs AtStartup, as an agent that serves the ADDs does, and checks that exactly these addresses are left.
func (n *node) keeps(what string, source podsource.Source, want ...string) {
	n.t.Helper()
	if _, err := n.reconciler(source).AtStartup(n.t.Context(), gc.NoADDInFlight); err != nil {
		n.t.Errorf("%s: %v", what, err)
	}
	same(n.t, what+": left", want, n.left())
}

// recorded returns the addresses in the record.
func recorded(c *Checkpoint) (out []string) {
	for _, e := range c.Entries() {
		for _, ip := range e.IPs {
			out = append(out, ip.String())
		}
	}
	slices.Sort(out)
	return out
}

// leftovers returns the files beside the record.
func leftovers(t testing.TB, path string) []string {
	t.Helper()
	files, err := filepath.Glob(path + "?*")
	must(t, err)
	return files
}

// ids returns the container IDs in the answer of a source.
func ids(t testing.TB, source podsource.Source) (out []string) {
	t.Helper()
	answer, err := source.Pods(t.Context())
	must(t, err)
	for _, p := range answer.Pods {
		out = append(out, p.ContainerIDs...)
	}
	return out
}

// TestSource runs the hazards of sources against a record that is open, and against a reader of its file.
func TestSource(t *testing.T) {
	for name, reads := range map[string]bool{"Writer": false, "Reader": true} {
		t.Run(name, func(t *testing.T) {
			gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
				path, opts := newPath(t), Options{Networks: []string{network1, "storage"}, Lag: 1, BootID: "1"}
				c := begun(t, path, opts)
				keyOf := func(at podsource.Attachment) Key { return Key{at.Network, at.ContainerID, at.IfName} }
				f := gctest.Fixture{
					Source: podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
						if reads {
							return reader(t, path, opts).Pods(ctx)
						}
						return c.Pods(ctx)
					}),
					Networks: opts.Networks,
					Attach:   func(at podsource.Attachment) { must(t, c.Add(Entry{Key: keyOf(at), IPs: at.IPs, Pod: at.Pod})) },
					Detach:   func(at podsource.Attachment) { must(t, c.Remove(keyOf(at))) },
					Reboot: func() {
						must(t, c.Close())
						opts.BootID = "2"
						c = opened(t, path, opts)
					},
				}
				if reads { // a writer has it in memory
					f.Break = func() { must(t, os.Rename(path, path+".aside"), os.WriteFile(path, []byte("{"), 0o600)) }
					f.Repair = func() { must(t, os.Rename(path+".aside", path)) }
					f.Lose = func() { must(t, os.Remove(path)) }
				}
				return f
			})
		})
	}
}

// TestRoundTrip: after each change the entries in memory and in the file are the same.
func TestRoundTrip(t *testing.T) {
	path := newPath(t)
	c := begun(t, path, served)
	full := Entry{
		Key: key("b"), IPs: []netip.Addr{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("fd00::3")},
		Pod: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "6ba7b810",
		NetNS: NetNS{Path: "/no/such/<directory>/\u2028ns", Inode: 1<<64 - 1}, Time: time.Now(),
	}
	bare := Entry{Key: Key{network1, "a", "net1"}, Time: full.Time}
	again := full
	again.IPs, again.UID = again.IPs[:1], "7c9e6679"
	for _, s := range []struct {
		reason string
		do     func() error
		want   []Entry
	}{
		{"all fields", func() error { return c.Add(full) }, []Entry{full}},
		{"only a key and a time, sorted before the other", func() error { return c.Add(bare) }, []Entry{bare, full}},
		{"the same key again, beside a temporary file of a crash", func() error { return c.Add(again) }, []Entry{bare, again}},
		{"removed", func() error { return c.Remove(bare.Key) }, []Entry{again}},
		{"removed again", func() error { return c.Remove(bare.Key) }, []Entry{again}},
		{"another interface of the container", func() error { return c.Remove(Key{network1, "b", "net1"}) }, []Entry{again}},
		{"nothing left", func() error { return c.Remove(full.Key) }, nil},
	} {
		must(t, s.do())
		same(t, s.reason+": in memory", s.want, c.Entries())
		same(t, s.reason+": on the disk", s.want, onDisk(t, path).Entries)
		for _, want := range s.want {
			got, _ := c.Get(want.Key)
			same(t, s.reason+": Get", want, got)
		}
		write(t, path+".tmp", "half")
	}
	must(t, c.Add(Entry{Key: full.Key}))
	at := c.Entries()[0].Time
	asInFile := at.Round(0).UTC().String()
	check(t, time.Since(at).Abs() < time.Hour && at.String() == asInFile, "the default time is %v; want now, as in the file", at)
	same(t, "left behind", []string{}, leftovers(t, path))
	info, err := os.Stat(path)
	must(t, err)
	check(t, info.Mode().Perm() == 0o600, "mode %v, want 0600", info.Mode())
}

// TestFormat checks each byte of the file: any change needs another Format.
func TestFormat(t *testing.T) {
	web := entry("ee3b0f0c", "10.0.0.2")
	web.NetNS = NetNS{"/run/netns/web", 4026532001, 7}
	content, err := encode(record{BootID: "5c7b9a1e", Networks: []string{network1}, Written: web.Time, SinceBoot: time.Minute,
		Gap: gap{From: web.Time, To: web.Time}, Entries: []Entry{web, {Key: Key{network1, "ee3b0f0c", "net1"}, Time: web.Time, IPs: []netip.Addr{}}}})
	const want = `{"format":"hostlocal-gc/attachments/5","crc32":1198242637,"record":{"bootID":"5c7b9a1e","networks":["podnet"],` +
		`"written":"2025-03-01T12:00:00.000000005Z","sinceBoot":60000000000,` +
		`"gap":{"from":"2025-03-01T12:00:00.000000005Z","to":"2025-03-01T12:00:00.000000005Z"},"attachments":[` +
		`{"network":"podnet","containerID":"ee3b0f0c","ifName":"eth0","ips":["10.0.0.2"],` +
		`"pod":{"Namespace":"default","Name":"pod-ee3b0f0c"},"uid":"uid-ee3b0f0c","netns":{"path":"/run/netns/web","inode":4026532001,"id":7},` +
		`"time":"2025-03-01T12:00:00.000000005Z"},` +
		`{"network":"podnet","containerID":"ee3b0f0c","ifName":"net1","ips":[],"time":"2025-03-01T12:00:00.000000005Z"}]}}`
	must(t, err)
	same(t, "the file", want, string(content))
}

// TestAddRefuses invalid attachments, and those that the file can't represent.
func TestAddRefuses(t *testing.T) {
	c := begun(t, newPath(t), served, entry("a", "10.0.0.2"))
	before := string(read(t, c.path))
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
		{"an invalid second address", Entry{Key: key("b"), IPs: []netip.Addr{netip.IPv6Loopback(), {}}}},
		{"an interface that JSON can't represent", Entry{Key: Key{network1, "b", "eth\xff"}}},
		{"a time that JSON can't represent", Entry{Key: key("b"), Time: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)}},
	} {
		check(t, c.Add(row.entry) != nil, "%s: no error", row.reason)
		same(t, row.reason+": the file", before, string(read(t, c.path)))
	}
	same(t, "recorded", []string{"10.0.0.2"}, recorded(c))
	must(t, c.Add(Entry{Key: Key{network1, "b", strings.Repeat("e", 15)}})) // the kernel allows 15 bytes
}

// TestPods checks the pods and the declarations of an answer, and that slices of callers are copied.
func TestPods(t *testing.T) {
	path, networks := newPath(t), []string{network1, "other"}
	second := entry("a", "10.1.0.2")
	second.Network, second.IfName, second.Pod, second.UID = "storage", "net1", types.NamespacedName{}, ""
	a := entry("a", "10.0.0.2")
	c := begun(t, path, Options{Networks: networks}, second, a, entry("b", "10.0.0.3"))
	sources := map[string]podsource.Source{"writer": c, "reader": reader(t, path, Options{Networks: networks})}
	want := podsource.Answer{
		Source: "checkpoint", Authoritative: true, Networks: slices.Clone(networks), Names: podsource.AnyContainer, AtOnce: true,
		Pods: []podsource.Pod{
			{NamespacedName: a.Pod, UID: "uid-a", ContainerIDs: []string{"a"}, IPs: slices.Clone(a.IPs), Network: network1},
			{NamespacedName: entry("b", "::").Pod, UID: "uid-b", ContainerIDs: []string{"b"},
				IPs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Network: network1},
			{ContainerIDs: []string{"a"}, IPs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Network: "storage"},
		},
	}
	networks[0], a.IPs[0], c.Entries()[0].ContainerID = "changed", netip.MustParseAddr("10.9.9.9"), "x"
	for name, source := range sources {
		got, err := source.Pods(t.Context())
		must(t, err)
		missing := strings.HasPrefix(got.Note, "Attachments may be missing")
		check(t, len(got.Gaps) == 1 && missing, "%s: gaps %v, note %q", name, got.Gaps, got.Note)
		got.Gaps, got.Note = nil, ""
		same(t, name, want, got)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		got, err = source.Pods(ended)
		same(t, name, podsource.Answer{Source: "checkpoint"}, got)
		check(t, errors.Is(err, context.Canceled), "%s: %v after the context's end", name, err)
		check(t, source.(interface{ Rank() podsource.Rank }).Rank() == podsource.RankCache, "%s: want RankCache, before the runtime", name)
	}
}

// TestGoroutines: no change of several goroutines is lost.
func TestGoroutines(t *testing.T) {
	c := begun(t, newPath(t), served)
	done := make(chan error)
	for i := range 24 {
		go func() {
			_, err := c.Pods(t.Context())
			removed := fmt.Sprint("r", i)
			done <- errors.Join(err, c.Add(entry(fmt.Sprint("k", i), "10.0.0.2")), c.Add(entry(removed, "10.0.0.3")), c.Remove(key(removed)))
		}()
	}
	for range 24 {
		must(t, <-done)
	}
	same(t, "in memory", onDisk(t, c.path).Entries, c.Entries())
	check(t, len(c.Entries()) == 24, "recorded are %v", c.Entries())
}

// TestClose: after that, also if it could not write, all methods return errors and write nothing.
func TestClose(t *testing.T) {
	path := newPath(t)
	c := begun(t, path, served, entry("a", "10.0.0.2"))
	blockWrites(t, path)
	check(t, errors.Is(c.Close(), fs.ErrExist), "there is no error although the file can't be written")
	must(t, c.Close(), os.RemoveAll(path+".tmp"))
	other := opened(t, path, served)
	_, ok := c.Get(key("a"))
	check(t, !ok && len(c.Entries()) == 0, "a closed record has entries")
	_, podsErr := c.Pods(t.Context())
	_, pruneErr := c.Prune(t.Context())
	for name, err := range map[string]error{
		"add": c.Add(entry("b", "10.0.0.3")), "remove": c.Remove(key("a")), "pods": podsErr, "prune": pruneErr,
		"backfill": c.Backfill(t.Context(), noPods, nil),
	} {
		check(t, errors.Is(err, fs.ErrClosed) && !errors.Is(err, podsource.ErrNotHere), "%s: %v, want %v", name, err, fs.ErrClosed)
	}
	same(t, "recorded", []string{"10.0.0.2"}, recorded(other))
}

// A record of another boot is empty, and the next change makes it a record of this boot and this start: nothing of the earlier
// ones comes back, whatever their number. An unknown boot is not another boot.
//
// Guard: [load] compares the boot IDs, and [Open] reads the file once.
func TestHazard106OfThisBootAlone(t *testing.T) {
	for _, row := range []struct {
		reason, wrote, reads string
		want                 []string
	}{
		{"the same boot", "1", "1", []string{"10.0.0.2"}},
		{"another boot", "1", "2", nil},
		{"the kernel's own", "", "", []string{"10.0.0.2"}},
		{"an unknown one wrote it", "unknown", "1", []string{"10.0.0.2"}},
	} {
		path := newPath(t)
		content, err := encode(record{Written: time.Now(), Entries: []Entry{entry("a", "10.0.0.2")}}) // by an unknown one
		must(t, err)
		if row.wrote != "unknown" {
			content = written(t, ofBoot(row.wrote), entry("a", "10.0.0.2"))
		}
		write(t, path, string(content))
		c := opened(t, path, ofBoot(row.reads))
		for name, source := range map[string]podsource.Source{"writer": c, "reader": reader(t, path, ofBoot(row.reads))} {
			got, err := source.Pods(t.Context())
			must(t, err)
			check(t, len(got.Pods) == len(row.want) && got.Authoritative, "%s: the %s returns %v", row.reason, name, got)
		}
		same(t, row.reason+": the file", string(content), string(read(t, path)))
		write(t, path, string(written(t, ofBoot(row.reads), entry("other", "10.0.0.9")))) // of an earlier start
		must(t, c.Add(entry("b", "10.0.0.3")), c.Close())
		same(t, row.reason+", after a change", append(row.want, "10.0.0.3"), recorded(opened(t, path, ofBoot(row.reads))))
	}
	s, err := place{path: begun(t, newPath(t), ofBoot("1"), entry("a", "10.0.0.2")).path}.load(0)
	check(t, err == nil && len(s.entries) == 1, "read in an unknown boot: %v, %v", s, err)
}

// TestRecordIsNil: the caller ignored the error of Open or New. That is an error of each call, not a panic.
func TestRecordIsNil(t *testing.T) {
	for _, source := range []podsource.Source{(*Checkpoint)(nil), (*Source)(nil)} {
		if _, err := podsource.Union(source).Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "pod source checkpoint: ") {
			t.Errorf("%T: got %v, want an error that names the source", source, err)
		}
	}
}

// TestOpenFails: a mistake of the caller is not a record that was never written, and changes no file.
func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Symlink("none", filepath.Join(dir, "link")))
	for _, row := range []struct {
		reason, path string
		opts         Options
		says         string
		opens        bool // New does
	}{
		{"no networks", "a", Options{}, "Options.Networks is []", false},
		{"an invalid network", "a", Options{Networks: []string{network1, "a/b"}}, `"a/b"`, false},
		{"an invalid first network", "a", Options{Networks: []string{"", network1}}, `""`, false},
		{"a negative lag", "a", Options{Networks: []string{network1}, Lag: -1}, "Options.Lag", false},
		{"no directory", "missing/a", served, "no such file", true},
		{"a link to a missing file", "link", served, "no such file", true},
	} {
		s, newErr := New(filepath.Join(dir, row.path), row.opts)
		c, err := Open(filepath.Join(dir, row.path), row.opts)
		if c != nil || err == nil || !strings.Contains(err.Error(), row.says) || (s != nil) != row.opens || (newErr == nil) != row.opens {
			t.Errorf("%s: %v, %v and %v, %v", row.reason, c, err, s, newErr)
		}
	}
	left, err := os.ReadDir(dir)
	check(t, err == nil && len(left) == 1, "there are %v, %v", left, err)
	gone := t.TempDir()
	t.Chdir(gone)
	must(t, os.Remove(gone))
	s, err := New("a", served)
	check(t, s == nil && errors.Is(err, fs.ErrNotExist), "%v, %v without a working directory", s, err)
}

// TestOpenedThroughALink: writers and readers follow links, and a relative path is resolved when the record is opened. No writer
// replaces a link, and all have the same lock.
func TestOpenedThroughALink(t *testing.T) {
	for _, row := range []struct{ reason, to, path string }{
		{"to the file", "real/attachments", "link"},
		{"to the directory", "real", "link/attachments"},
	} {
		dir := t.TempDir()
		path, link := filepath.Join(dir, "real", "attachments"), filepath.Join(dir, row.path)
		must(t, os.Mkdir(filepath.Dir(path), 0o755), os.Symlink(row.to, filepath.Join(dir, "link")))
		must(t, begun(t, path, served, entry("a", "10.0.0.2")).Close())
		t.Chdir(dir)
		c, relative := opened(t, row.path, served), reader(t, row.path, served)
		t.Chdir(t.TempDir())
		for _, path := range []string{path, link} {
			_, err := Open(path, served)
			check(t, errors.Is(err, ErrLocked), "%s: opened again by %s: %v, want %v", row.reason, path, err, ErrLocked)
		}
		must(t, c.Add(entry("b", "10.0.0.3")))
		for _, r := range []*Source{relative, reader(t, path, served), reader(t, link, served)} {
			same(t, row.reason+": read by "+r.path, []string{"a", "b"}, ids(t, r))
		}
	}
}

// withChecksum returns a file with a record's JSON and the right checksum.
func withChecksum(format, record string) string {
	return fmt.Sprintf(`{"format":%q,"crc32":%d,"record":%s}`, format, crc32.ChecksumIEEE([]byte(record)), record)
}

// A file with another format, or one that is not in its format, is refused: by readers and writers, also with a fallback, without
// a release, and as it was. If there is none, as after a person has moved it away, the fallback is asked.
//
// Guard: [decode] accepts only [Format], and no unknown field of the record. [Checkpoint.Pods] and [Source.Pods] return
// [podsource.ErrNotHere] only if there is no file.
func TestHazard26RecordUnknownOrDamaged(t *testing.T) {
	const a = `{"network":"podnet","containerID":"a","ifName":"eth0","ips":[],"time":"2025-03-01T12:00:00Z"}`
	as := func(id string) string { return strings.Replace(a, `"a"`, `"`+id+`"`, 1) }
	of := func(entries ...string) string {
		return withChecksum(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[`+strings.Join(entries, ",")+`]}`)
	}
	rest := func(rest string) string { return withChecksum(Format, `{"bootID":""`+rest+`}`) }
	_, err := decode([]byte(of(a, as("b"))))
	must(t, err) // what the rows change
	n, fallback := newNode(t, "a", "known-to-runtime", "leaked"), podsource.Static{{ContainerIDs: []string{"known-to-runtime"}}}
	for _, row := range []struct {
		reason, content string
		is              error
		says            string
	}{
		{"the next version", withChecksum("hostlocal-gc/attachments/6", `{"bootID":"","attachments":[]}`), ErrVersion, "attachments/6"},
		{"no format, and the rest is right", strings.Replace(of(a), "format", "other", 1), ErrCorrupt, "format"},
		{"empty, as after a power loss", "", ErrCorrupt, "end of JSON"},
		{"zeros, as after a power loss", strings.Repeat("\x00", 512), ErrCorrupt, "invalid character"},
		{"something after the end", of(a) + "{}", ErrCorrupt, "after top-level value"},
		{"no record", `{"format":"` + Format + `"}`, ErrCorrupt, "EOF"},
		{"a wrong sum", strings.Replace(of(a), `"containerID":"a"`, `"containerID":"b"`, 1), ErrCorrupt, "checksum"},
		{"no list of attachments", rest(`,"written":"2025-03-01T12:00:00Z"`), ErrCorrupt, "list of attachments"},
		{"null for the record", withChecksum(Format, "null"), ErrCorrupt, "list of attachments"},
		{"an unknown field, which the next change would lose",
			rest(`,"written":"2025-03-01T12:00:00Z","attachments":[],"new":1`), ErrCorrupt, "unknown field"},
		{"the same attachment twice", of(a, a), ErrCorrupt, "attachment 2 "},
		{"... and another one between", of(a, as("b"), a), ErrCorrupt, "attachment 3 "},
		{"the second attachment without container ID, and more", of(a, as(""), as("")), ErrCorrupt, "attachment 2: "},
		{"no time of writing", rest(`,"attachments":[]`), ErrCorrupt, "time"},
		{"written before the boot", rest(`,"written":"2025-03-01T12:00:00Z","sinceBoot":-1,"attachments":[]`), ErrCorrupt, "time"},
		{"... the step of a clock, too", rest(`,"written":"2025-03-01T12:00:00Z","stepped":-1,"attachments":[]`), ErrCorrupt, "time"},
		{"an empty address", of(strings.Replace(a, `[]`, `[""]`, 1)), ErrCorrupt, "attachment 1: "},
		{"a directory", "", syscall.EISDIR, "is a directory"},
		{"missing", "", podsource.ErrNotHere, "no such file"},
	} {
		path := newPath(t)
		switch row.reason {
		case "missing":
		case "a directory":
			must(t, os.Mkdir(path, 0o755))
		default:
			write(t, path, row.content)
		}
		source, errs, left := reader(t, path, served), make(map[string]error), []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}
		_, errs["reader"] = source.Pods(t.Context())
		_, passErr := n.reconciler(podsource.Fallback(source, fallback)).Reconcile(t.Context())
		if row.is == podsource.ErrNotHere {
			must(t, passErr)
			left = left[1:2]
		} else {
			for range 2 { // the first one keeps no lock
				_, errs["writer"] = Open(path, served)
			}
			check(t, errors.Is(passErr, gc.ErrRefused), "%s: a pass with a fallback: %v", row.reason, passErr)
		}
		same(t, row.reason+": left", left, n.left())
		for who, err := range errs {
			for _, is := range []error{ErrVersion, ErrCorrupt, podsource.ErrNotHere, syscall.EISDIR} {
				says := fmt.Sprint(err)
				if errors.Is(err, is) != (is == row.is) || !strings.Contains(says, row.says) || !strings.Contains(says, path+": ") {
					t.Errorf("%s: %s: %v, want %v with %q", row.reason, who, err, row.is, row.says)
				}
			}
		}
		if row.is == ErrVersion || row.is == ErrCorrupt {
			same(t, row.reason+": the file", row.content, string(read(t, path)))
		}
	}
}

// checkDecode returns the record in content, which does not change when it is encoded again, or nil after an error.
func checkDecode(t *testing.T, what string, content []byte) *record {
	t.Helper()
	r, err := decode(content)
	if err != nil {
		if r != nil || !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v, %v", what, r, err)
		}
		return nil
	}
	again, err := encode(*r)
	must(t, err)
	back, err := decode(again)
	must(t, err)
	same(t, what, r, back)
	return r
}

// A truncated file is damaged, whatever its length. With a flipped bit in the boot ID or in a container ID, addresses of live
// containers would be released. Outside of the record a flipped bit may change nothing, as in the letter case of a key.
//
// Guard: [decode] compares [document.Sum].
func TestHazard26EveryByte(t *testing.T) {
	content := written(t, ofBoot("5c7b9a1e"), entry("a", "10.0.0.2"))
	whole := checkDecode(t, "whole", content)
	for i := range content {
		check(t, checkDecode(t, "truncated", content[:i]) == nil, "the first %d bytes are a record", i)
		for bit := range 8 {
			flipped := slices.Clone(content)
			flipped[i] ^= 1 << bit
			if r := checkDecode(t, "flipped", flipped); r != nil {
				same(t, fmt.Sprintf("bit %d of byte %d", bit, i), whole, r)
			}
		}
	}
}

// FuzzDecode: any bytes are a record or an error.
func FuzzDecode(f *testing.F) {
	f.Add(written(f, ofBoot("5c7b9a1e"), entry("a", "10.0.0.2"), entry("b", "fd00::2")))
	for _, record := range []string{
		`{"bootID":"\u2028","written":"2025-03-01T12:00:00Z","attachments":[{"network":"n","containerID":"a","ifName":"e",` +
			`"ips":["::ffff:10.0.0.1","fe80::1%eth0"],"netns":{"path":"x","inode":1}}]}`,
		`{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[null]}`, `{"bootid":"","WRITTEN":"2025-03-01T12:00:00Z","ATTACHMENTS":[]}`,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		checkDecode(t, "as a file", content)
		checkDecode(t, "as a record with the right checksum, which a fuzzer does not find", []byte(withChecksum(Format, string(content))))
	})
}
