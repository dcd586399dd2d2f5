// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
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
}

const network1 = "podnet"

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t, dataDir: t.TempDir()}
	n.store = hostlocal.New(n.dataDir)
	n.network(network1)
	return n
}

// network makes the directory of another network.
func (n *node) network(name string) {
	n.t.Helper()
	must(n.t, os.Mkdir(filepath.Join(n.dataDir, name), 0o755))
}

func (n *node) path(name string) string { return filepath.Join(n.dataDir, network1, name) }

// file writes a file in the first network, with a timestamp that is age old.
func (n *node) file(name, content string, age time.Duration) { n.fileIn(network1, name, content, age) }

func (n *node) fileIn(network, name, content string, age time.Duration) {
	n.t.Helper()
	n.fileAt(network, name, content, time.Now().Add(-age))
}

// fileAt writes a file with a modification time.
func (n *node) fileAt(network, name, content string, stamp time.Time) {
	n.t.Helper()
	path := filepath.Join(n.dataDir, network, name)
	must(n.t, os.WriteFile(path, []byte(content), 0o600))
	must(n.t, os.Chtimes(path, stamp, stamp))
}

// reserve writes a reservation as today's host-local does.
func (n *node) reserve(ip, containerID string, age time.Duration) {
	n.t.Helper()
	n.reserveIn(network1, ip, containerID, age)
}

func (n *node) reserveIn(network, ip, containerID string, age time.Duration) {
	n.t.Helper()
	n.fileIn(network, ip, containerID+"\r\neth0", age)
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

// check fails unless the report has exactly these verdicts, by key, and the files in the
// directory agree with them.
func (n *node) check(report Report, want map[string]Verdict) {
	n.t.Helper()
	got := make(map[string]Verdict)
	for _, e := range report.Reservations {
		got[key(e)] = e.Verdict
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	n.checkFiles(want)
}

// checkReasons is check with reasons.
func (n *node) checkReasons(report Report, want map[string]Reason) {
	n.t.Helper()
	got, verdicts := make(map[string]Reason), make(map[string]Verdict)
	for _, e := range report.Reservations {
		got[key(e)] = e.Reason
		if e.Verdict != e.Reason.Verdict() {
			n.t.Errorf("%s has verdict %s and reason %s", key(e), e.Verdict, e.Reason)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("reasons (-want +got):\n%s", diff)
	}
	for ip, r := range want {
		verdicts[ip] = r.Verdict()
	}
	n.checkFiles(verdicts)
}

func (n *node) checkFiles(want map[string]Verdict) {
	n.t.Helper()
	for ip, v := range want {
		path := n.path(ip)
		if strings.Contains(ip, "/") {
			path = filepath.Join(n.dataDir, ip)
		}
		_, err := os.Lstat(path)
		there, stays := err == nil, v != Released && v != Gone
		if there != stays {
			n.t.Errorf("%s was judged %s; its file is there: %t, want %t", ip, v, there, stays)
		}
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
	return newReconciler(n.t, n.store, networks, source, opts, &clocks{uptime: 30 * 24 * time.Hour})
}

func newReconciler(t testing.TB, store *hostlocal.Store, networks []string, source podsource.Source, opts Options, c *clocks) *Reconciler {
	t.Helper()
	r, err := New(store, networks, source, opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
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

// A callbackContext calls a function of a test wherever the code under test checks its
// context: before it waits, and between two reservations.
type callbackContext struct {
	context.Context
	callback atomic.Pointer[func()]
}

func newCallbackContext(t testing.TB) *callbackContext { return &callbackContext{Context: t.Context()} }

// onCheck sets the function. Nil is none.
func (c *callbackContext) onCheck(callback func()) { c.callback.Store(&callback) }

func (c *callbackContext) call() {
	if callback := c.callback.Load(); callback != nil && *callback != nil {
		(*callback)()
	}
}

func (c *callbackContext) Err() error {
	c.call()
	return c.Context.Err()
}

func (c *callbackContext) Done() <-chan struct{} {
	c.call()
	return c.Context.Done()
}

// judge decides about reservations that are on no disk. Those of the first network may be
// released.
func judge(rs []hostlocal.Reservation, look []podsource.Answer, at reading, opts Options) Report {
	opts.RuntimeRequestTimeout = DefaultRuntimeRequestTimeout
	if opts.AllowForeign == nil {
		opts.AllowForeign = []string{"*"}
	}
	s := &snapshot{clock: &clock{}, at: at, opts: &opts, networks: []string{"another", network1}}
	s.clock.observe(at)
	s.reservations = s.clock.sees(at, rs)
	s.addLook(look, at, at)
	var report Report
	report.addLook(look)
	report.write(s, decide(s), &hostlocal.ReleaseResult{})
	return report
}
