// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// equal compares entries and pods.
var equal = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0), cmpopts.EquateEmpty()}

// same checks that two values are equal. An empty list is like none.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, equal); diff != "" {
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

// every is all networks.
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
				of = append(of, entry(id, ip))
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

// leftovers returns the files beside the record, but for its lock.
func leftovers(t testing.TB, path string) []string {
	t.Helper()
	files, err := filepath.Glob(path + "?*")
	must(t, err)
	return slices.DeleteFunc(files, func(file string) bool { return file == path+".lock" })
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
