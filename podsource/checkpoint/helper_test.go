// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// served are the options of an agent that serves the ADDs of network1.
var served = Options{Networks: []string{network1}}

// noLag are served with a runtime that lists a container as soon as its address is
// reserved.
var noLag = Options{Networks: []string{network1}, Lag: 1}

// ofBoot are served on a node with this boot ID.
func ofBoot(id string) Options { return Options{Networks: []string{network1}, BootID: id} }

// noPods is a source that declares that there is no container of any kind.
var noPods = podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
	return podsource.Answer{Networks: every, Names: podsource.AnyContainer, Authoritative: true}, nil
})

// opened opens the record at path, and closes it when the test ends.
func opened(t testing.TB, path string, opts Options) *Checkpoint {
	t.Helper()
	c, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// reader returns a source that reads the record at path.
func reader(t testing.TB, path string, opts Options) *Source {
	t.Helper()
	s, err := New(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// begun opens a new record, and adds entries.
func begun(t testing.TB, path string, opts Options, entries ...Entry) *Checkpoint {
	t.Helper()
	c := opened(t, path, opts)
	if err := c.Backfill(t.Context(), noPods, nil); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := c.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// written returns the file of a record with these entries.
func written(t testing.TB, opts Options, entries ...Entry) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "attachments")
	c := begun(t, path, opts, entries...)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return read(t, path)
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A node is a data directory of host-local with one network.
type node struct {
	t testing.TB
	*gctest.Dir
	allow []string // gc.Options.AllowForeign; newNode allows any owner, so that names can stand for IDs
}

func newNode(t testing.TB) *node {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	return &node{t, gctest.NewDir(t), []string{"*"}}
}

// reserve writes a reservation that is an hour old.
func (n *node) reserve(ip, containerID string) {
	n.t.Helper()
	n.Reserve(network1, ip, containerID, time.Hour)
}

// left returns the reserved addresses.
func (n *node) left() (out []string) {
	n.t.Helper()
	list, err := n.Store.List(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	for _, r := range list.Reservations {
		out = append(out, r.IP.String())
	}
	return out
}

// reconciler returns a reconciler with this source.
func (n *node) reconciler(source podsource.Source) *gc.Reconciler {
	r, err := gc.New(n.Store, []string{network1}, source, gc.Options{AllowForeign: n.allow})
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

// pass runs one pass.
func (n *node) pass(source podsource.Source) error {
	_, err := n.reconciler(source).Reconcile(n.t.Context())
	return err
}

// hook runs AtStartup, as an agent that serves the ADDs does.
func (n *node) hook(source podsource.Source) error {
	_, err := n.reconciler(source).AtStartup(n.t.Context(), gc.NoADDInFlight)
	return err
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

// skipLoudly skips a test that can't run on this machine. In CI it fails.
func skipLoudly(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s does not work here, and CI needs it: %v", what, err)
	}
	t.Skipf("SKIPPED, NOT TESTED: %s does not work here: %v", what, err)
}

// leftovers returns the files in the record's directory except the record and its lock.
func leftovers(t testing.TB, path string) (out []string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := f.Name(); name != filepath.Base(path) && !strings.HasSuffix(name, ".lock") && !f.IsDir() {
			out = append(out, name)
		}
	}
	return out
}

// ids returns the container IDs in the answer of a source.
func ids(t testing.TB, source podsource.Source) (out []string) {
	t.Helper()
	answer, err := source.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range answer.Pods {
		out = append(out, p.ContainerIDs...)
	}
	return out
}
