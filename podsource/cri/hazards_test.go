// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package cri_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// These tests run passes over a real data directory, with a fake runtime on a real socket as
// the source.

const (
	old   = time.Hour
	young = time.Minute
)

// id returns a container ID of 64 digits that starts with a name of hexadecimal digits.
func id(name string) string { return name + strings.Repeat("0", 64-len(name)) }

// A node is a data directory with one network. It has been up for a day.
type node struct {
	t     *testing.T
	dir   string // the network's
	store *hostlocal.Store
}

func newNode(t *testing.T) *node {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	data := t.TempDir()
	n := &node{t: t, dir: filepath.Join(data, "podnet")}
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.store = hostlocal.New(data)
	return n
}

// reserve writes a reservation as host-local does.
func (n *node) reserve(ip, containerID string, age time.Duration) {
	n.t.Helper()
	path := filepath.Join(n.dir, ip)
	if err := os.WriteFile(path, []byte(containerID+"\r\neth0"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		n.t.Fatal(err)
	}
}

// check checks the verdicts of a pass, and that the files agree with them.
func (n *node) check(report gc.Report, err error, want map[string]gc.Verdict) {
	n.t.Helper()
	if err != nil {
		n.t.Errorf("the pass failed: %v", err)
	}
	got := make(map[string]gc.Verdict)
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Verdict
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	for ip, v := range want {
		_, err := os.Lstat(filepath.Join(n.dir, ip))
		if (err == nil) != (v != gc.Released) {
			n.t.Errorf("the verdict on %s is %s, but for its file os.Lstat returned: %v", ip, v, err)
		}
	}
}

func (n *node) reconciler(s podsource.Source) *gc.Reconciler {
	n.t.Helper()
	r, err := gc.New(n.store, []string{"podnet"}, s, gc.Options{})
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

func (n *node) pass(s podsource.Source, want map[string]gc.Verdict) gc.Report {
	n.t.Helper()
	report, err := n.reconciler(s).Reconcile(n.t.Context())
	n.check(report, err, want)
	return report
}

// refused checks that a pass returns the error and releases nothing.
func (n *node) refused(s podsource.Source, why error, ips ...string) {
	n.t.Helper()
	report, err := n.reconciler(s).Reconcile(n.t.Context())
	if !errors.Is(err, why) {
		n.t.Errorf("got %v, want %v", err, why)
	}
	want := make(map[string]gc.Verdict)
	for _, ip := range ips {
		want[ip] = gc.Failed
	}
	n.check(report, nil, want)
}

// R3: the runtime lists the sandbox of a pod without an address in its status. As a starting
// pod it also claims the other reservation (R4, hazard 39).
//
// Guard: [Source.Pods] names a sandbox by its container ID.
func TestHazard02SandboxKnownToTheRuntime(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	n.reserve("10.0.0.3", id("1eaced"), gc.DefaultStartingFor-time.Minute)
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	api := podsource.Static{{UID: "web", StartedAt: time.Now().Add(-2 * old)}}
	n.pass(podsource.Union(api, source(t, f.socket, cri.Options{})),
		map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Starting})
}

// A search finds an idle containerd, while the node's own has another socket. That the idle
// one has no sandbox is no answer, also with AllowEmpty.
//
// Guard: [Source.list] returns an error in a search without any sandbox.
func TestHazard53IdleRuntimeIsFound(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	unused := serve(t, &fakeRuntime{})
	own := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	kubelet := podsource.Static{{UID: "proxy", HostNetwork: true}}
	idle, err := cri.Among(cri.Options{}, unused.socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []podsource.Source{
		idle, podsource.AllowEmpty(idle), podsource.Union(kubelet, podsource.AllowEmpty(idle)), podsource.Fallback(podsource.AllowEmpty(idle), kubelet),
	} {
		n.refused(s, podsource.ErrIncomplete, "10.0.0.2")
	}
	n.reserve("10.0.0.3", id("1eaced"), old)
	both, err := cri.Among(cri.Options{}, unused.socket, own.socket)
	if err != nil {
		t.Fatal(err)
	}
	n.pass(both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released})
	// A runtime whose endpoint the caller gives is the node's.
	n.refused(source(t, unused.socket, cri.Options{}), gc.ErrNoPods, "10.0.0.2")
	n.pass(podsource.AllowEmpty(source(t, unused.socket, cri.Options{})), map[string]gc.Verdict{"10.0.0.2": gc.Released})
}

// R14: the CRI does not list containers of nerdctl, so a list of sandboxes does not show
// whether they are live. The leak of a sandbox in the same network is released.
//
// Guard: [Source.Pods] declares the form of the IDs that it names.
func TestHazard49ContainersOfNerdctl(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	n.reserve("10.0.0.3", id("1eaced"), old)
	n.reserve("10.0.0.4", "default-"+id("f0e"), old)
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	n.pass(source(t, f.socket, cri.Options{}), map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released, "10.0.0.4": gc.Foreign})
}

// R3: a sandbox that is not ready still owns its reservations. R10: its old address in its
// status is no conflict with the sandbox that has the address now.
//
// Guard: [podsOf] converts sandboxes in any state, and [dropStale] removes old addresses of
// those that are not ready.
func TestHazard05SandboxNotReady(t *testing.T) {
	for _, withStatus := range []bool{false, true} {
		n := newNode(t)
		n.reserve("10.0.0.2", id("a1"), old)
		n.reserve("fd00::2", id("a1"), old)
		n.reserve("10.0.0.3", id("b1"), old)
		n.reserve("10.0.0.4", id("1eaced"), old)
		web, db, job := sandbox(id("a1"), "web", notReady), sandbox(id("b1"), "db", ready), sandbox(id("c1"), "job", notReady)
		f := serve(t, &fakeRuntime{
			items:    []*runtimeapi.PodSandbox{web, db, job},
			statuses: byID(statusOf(web), statusOf(db, "10.0.0.3"), statusOf(job, "10.0.0.3")),
		})
		report := n.pass(source(t, f.socket, cri.Options{WithStatus: withStatus}), map[string]gc.Verdict{
			"10.0.0.2": gc.InUse, "fd00::2": gc.InUse, "10.0.0.3": gc.InUse, "10.0.0.4": gc.Released,
		})
		if len(report.Duplicates) > 0 {
			t.Errorf("false conflicts: %v", report.Duplicates)
		}
	}
}

// Each of two runtimes has half of the sandboxes. Both must answer before anything is
// released.
//
// Guard: [Source.list] combines the runtimes that answer, and [Source.skippable] skips none
// that fails.
func TestHazard29TwoRuntimes(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	n.reserve("10.0.0.3", id("b1"), old)
	first := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	second := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("b1"), "db", ready)}})
	found, err := cri.Among(cri.Options{}, first.socket, second.socket)
	if err != nil {
		t.Fatal(err)
	}
	both := podsource.Union(source(t, first.socket, cri.Options{}), source(t, second.socket, cri.Options{}))

	second.listing = func(context.Context) error { return status.Error(codes.Unavailable, "recovering") }
	n.refused(both, podsource.ErrIncomplete, "10.0.0.2", "10.0.0.3")
	n.refused(found, podsource.ErrIncomplete, "10.0.0.2", "10.0.0.3")

	second.listing = nil
	n.reserve("10.0.0.4", id("1eaced"), old)
	n.pass(both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.InUse, "10.0.0.4": gc.Released})
	n.reserve("10.0.0.4", id("1eaced"), old)
	n.pass(found, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.InUse, "10.0.0.4": gc.Released})
}

// The hook waits for a runtime that is recovering, and then releases the leak only.
func TestStartupWhileTheRuntimeRecovers(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	n.reserve("10.0.0.3", id("1eaced"), old)
	f := &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", notReady)}}
	f.listing = func(context.Context) error {
		if f.lists.Load() < 3 {
			return status.Error(codes.Unavailable, "server is not initialized yet")
		}
		return nil
	}
	serve(t, f)
	report, err := n.reconciler(source(t, f.socket, cri.Options{})).AtStartup(t.Context())
	n.check(report, err, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released})
	if f.lists.Load() != 3 {
		t.Errorf("asked %d times, want 3", f.lists.Load())
	}
}

// After an error of the runtime nothing is released (R2), nor with an idle runtime alone
// (R9).
func TestNothingIsReleasedOnErrors(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	web := sandbox(id("a1"), "web", ready)
	broken := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web, {}}})
	if _, err := n.reconciler(source(t, broken.socket, cri.Options{})).Reconcile(t.Context()); err == nil {
		t.Error("a sandbox without an ID is no error")
	}
	n.refused(source(t, serve(t, &fakeRuntime{}).socket, cri.Options{}), gc.ErrNoPods, "10.0.0.2")
	n.refused(source(t, staleSocket(t), cri.Options{}), podsource.ErrIncomplete, "10.0.0.2")
}
