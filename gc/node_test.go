// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A node is a data dir with one network's folder, as host-local leaves it.
type node struct {
	t       testing.TB
	dataDir string
	store   *hostlocal.Store
}

const network1 = "podnet"

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, dataDir: t.TempDir()}
	n.store = n.network(network1)
	return n
}

// network makes the folder of one more network.
func (n *node) network(name string) *hostlocal.Store {
	n.t.Helper()
	if err := os.Mkdir(filepath.Join(n.dataDir, name), 0o755); err != nil {
		n.t.Fatal(err)
	}
	s, err := hostlocal.New(n.dataDir, name)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func (n *node) path(name string) string { return filepath.Join(n.dataDir, network1, name) }

// file writes a file of the network's folder that is age old.
func (n *node) file(name, content string, age time.Duration) { n.fileIn(network1, name, content, age) }

func (n *node) fileIn(network, name, content string, age time.Duration) {
	n.t.Helper()
	path := filepath.Join(n.dataDir, network, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		n.t.Fatal(err)
	}
}

// reserve writes a reservation as today's host-local does.
func (n *node) reserve(ip, containerID string, age time.Duration) {
	n.t.Helper()
	n.file(ip, containerID+"\r\neth0", age)
}

// replace gives an address to another container, as a DEL and an ADD do, and
// keeps the old file's inode from being used again.
func (n *node) replace(ip, containerID string, age time.Duration) {
	n.t.Helper()
	if err := os.Rename(n.path(ip), filepath.Join(n.t.TempDir(), ip)); err != nil {
		n.t.Fatal(err)
	}
	n.reserve(ip, containerID, age)
}

func (n *node) exists(name string) bool {
	_, err := os.Lstat(n.path(name))
	return err == nil
}

// check fails unless the report has exactly these verdicts, and the folder is as
// they say.
func (n *node) check(report Report, want map[string]Verdict) {
	n.t.Helper()
	got := make(map[string]Verdict)
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Verdict
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	for ip, v := range want {
		there, stays := n.exists(ip), v != Released && v != Gone
		if there != stays {
			n.t.Errorf("%s was judged %s; its file is there: %t, want %t", ip, v, there, stays)
		}
	}
}

// owner returns the container that a reservation is of, or "".
func (n *node) owner(ip string) string {
	n.t.Helper()
	content, err := os.ReadFile(n.path(ip))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	id, _, _ := strings.Cut(string(content), "\r\n")
	return id
}

// pass does one pass that must not fail.
func (n *node) pass(source podsource.Source, opts Options) Report {
	n.t.Helper()
	report, err := New(n.store, source, opts).Reconcile(context.Background())
	if err != nil {
		n.t.Fatalf("Reconcile: %v", err)
	}
	return report
}

func ips(addresses ...string) (out []netip.Addr) {
	for _, a := range addresses {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// other is a pod that has nothing to do with the case at hand: a view of nobody
// would be refused.
var other = podsource.Pod{NamespacedName: named("other"), UID: "other", ContainerIDs: []string{"other"}}

const (
	old   = time.Hour
	young = time.Minute
)

// figures says what a test measured where it can be seen: on the terminal of
// whoever runs go test in this folder, and in the file that the environment
// names, which .ci/run prints in the end. A log is shown of failures only.
func figures(t testing.TB, text string) {
	t.Helper()
	fmt.Println(text)
	if path := os.Getenv("HOSTLOCAL_GC_FIGURES"); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text + "\n\n"); err != nil {
			t.Fatal(err)
		}
	}
}

// A turnContext gives a test the turn wherever the code under test looks at its
// context: before it waits, and between any two reservations.
type turnContext struct {
	context.Context
	turn atomic.Pointer[func()]
}

func newTurnContext(t testing.TB) *turnContext { return &turnContext{Context: t.Context()} }

// on sets what is called at every look; nil is nothing.
func (c *turnContext) on(turn func()) { c.turn.Store(&turn) }

func (c *turnContext) take() {
	if turn := c.turn.Load(); turn != nil && *turn != nil {
		(*turn)()
	}
}

func (c *turnContext) Err() error {
	c.take()
	return c.Context.Err()
}

func (c *turnContext) Done() <-chan struct{} {
	c.take()
	return c.Context.Done()
}
