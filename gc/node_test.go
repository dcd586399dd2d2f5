// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc/internal/uptime"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Tests with the real clocks run on a node that has been up for a month, however young the
// machine is.
func init() { //nolint:gochecknoinits // before any test
	begun := time.Now()
	month := func() time.Duration { return 30*24*time.Hour + time.Since(begun) }
	uptime.Replaced.Store(&month)
}

// A node is a data directory of host-local with one network.
type node struct {
	t       testing.TB
	dataDir string
	store   *hostlocal.Store
	memory  string // the path of Options.Memory, where a test uses it
	clocks
}

const network1 = "podnet"

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, dataDir: t.TempDir(), clocks: clocks{uptime: 30 * 24 * time.Hour}}
	n.store, n.memory = hostlocal.New(n.dataDir), filepath.Join(n.dataDir, ".memory")
	n.network(network1)
	return n
}

// network makes the directory of another network.
func (n *node) network(name string) {
	n.t.Helper()
	must(n.t, os.Mkdir(filepath.Join(n.dataDir, name), 0o755))
}

// path returns that of a file in the first network, or of "network/file".
func (n *node) path(name string) string {
	if !strings.Contains(name, "/") {
		name = filepath.Join(network1, name)
	}
	return filepath.Join(n.dataDir, name)
}

// file writes a file with a timestamp that is age old.
func (n *node) file(name, content string, age time.Duration) {
	n.t.Helper()
	then := time.Now().Add(-age)
	must(n.t, os.WriteFile(n.path(name), []byte(content), 0o600), os.Chtimes(n.path(name), then, then))
}

// reserve writes a reservation as today's host-local does.
func (n *node) reserve(ip, containerID string, age time.Duration) {
	n.t.Helper()
	n.file(ip, containerID+"\r\neth0", age)
}

func (n *node) exists(name string) bool {
	_, err := os.Lstat(n.path(name))
	return err == nil
}

// key identifies a reservation in a test: by its address in the first network, else by
// "network/address".
func key(e Entry) string {
	if e.Network == network1 {
		return e.IP.String()
	}
	return e.Network + "/" + e.IP.String()
}

// check fails unless the report has exactly these verdicts, by key, and agrees with the files.
func (n *node) check(report Report, want map[string]Verdict) {
	n.t.Helper()
	checkEach(n, report, want, func(e Entry) Verdict { return e.Verdict })
}

// checkReasons is check with reasons.
func (n *node) checkReasons(report Report, want map[string]Reason) {
	n.t.Helper()
	checkEach(n, report, want, func(e Entry) Reason { return e.Reason })
}

func checkEach[T comparable](n *node, report Report, want map[string]T, of func(Entry) T) {
	n.t.Helper()
	got := make(map[string]T)
	for _, e := range report.Reservations {
		got[key(e)] = of(e)
		if there := n.exists(key(e)); there == (e.Verdict == Released || e.Verdict == Gone) || e.Verdict != e.Reason.Verdict() {
			n.t.Errorf("%s has verdict %s and reason %s; its file is there: %t", key(e), e.Verdict, e.Reason, there)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("the report (-want +got):\n%s", diff)
	}
}

// reconciler returns a Reconciler that releases in the first network, on a node that has
// been up for a month.
func (n *node) reconciler(source podsource.Source, opts Options) *Reconciler {
	n.t.Helper()
	return n.reconcilerOf([]string{network1}, source, opts)
}

func (n *node) reconcilerOf(networks []string, source podsource.Source, opts Options) *Reconciler {
	n.t.Helper()
	return newReconciler(n.t, n.store, networks, source, opts, &n.clocks)
}

func newReconciler(t testing.TB, store *hostlocal.Store, networks []string, source podsource.Source, opts Options, c *clocks) *Reconciler {
	t.Helper()
	r, err := New(store, networks, source, opts)
	must(t, err)
	if c.base.IsZero() { // else a process that starts later
		c.base = time.Now()
	}
	if opts.AllowForeign == nil { // containers have short names in most tests
		r.opts.AllowForeign = []string{"*"}
	}
	r.now, r.clock = c.now, clock{}
	r.clock.observe(r.now())
	return r
}

// clocks are the clocks of a node whose wall clock a test sets. The monotonic clock is
// that of the process or of a synctest bubble.
type clocks struct {
	base   time.Time     // when the reconciler was made
	uptime time.Duration // of the node at that time
	step   time.Duration // what was added to the wall clock since
	noBoot bool          // the time of the boot is unknown
}

func (c *clocks) now() reading {
	now := time.Now()
	mono := now.Sub(c.base)
	at := reading{wall: now.Round(0).Add(c.step), mono: mono, boot: c.uptime + mono}
	if c.noBoot {
		at.boot = 0
	}
	return at
}

// wall returns the time of the node's wall clock.
func (c *clocks) wall() time.Time { return c.now().wall }

// pass runs one pass of a new reconciler, which must not fail.
func (n *node) pass(source podsource.Source, opts Options) Report {
	n.t.Helper()
	return n.reconcile(n.reconciler(source, opts))
}

// reconcile runs one pass, which must not fail.
func (n *node) reconcile(r *Reconciler) Report {
	n.t.Helper()
	report, err := r.Reconcile(context.Background())
	must(n.t, err)
	return report
}

// atStartup runs the hook, which must not fail.
func (n *node) atStartup(r *Reconciler, assertions ...Assertion) Report {
	n.t.Helper()
	report, err := r.AtStartup(n.t.Context(), assertions...)
	must(n.t, err)
	return report
}

// must fails the test if there is an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
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

// other is a pod that holds nothing in a test: a list without any pod would be refused.
var other = podsource.Pod{NamespacedName: named("other"), UID: "other", ContainerIDs: []string{"other"}}

const (
	old   = time.Hour
	young = time.Minute
)

// A contextDisk wraps the contexts of accesses to the disk.
type contextDisk struct {
	dataDir
	wrap func(context.Context) context.Context
}

func (d contextDisk) List(ctx context.Context) (hostlocal.Listing, error) {
	return d.dataDir.List(d.wrap(ctx))
}

func (d contextDisk) Release(ctx context.Context, rs ...*hostlocal.Reservation) (hostlocal.ReleaseResult, error) {
	return d.dataDir.Release(d.wrap(ctx), rs...)
}

// A callbackContext calls a function of a test wherever the code under test checks its
// context: before it waits, and between two reservations.
type callbackContext struct {
	context.Context
	call func()
}

func (c *callbackContext) Err() error {
	c.call()
	return c.Context.Err()
}

func (c *callbackContext) Done() <-chan struct{} {
	c.call()
	return c.Context.Done()
}
