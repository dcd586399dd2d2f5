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
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/hazardtable"
)

// Here passes run over a real data directory, with a runtime on a real socket as their
// source.

const (
	old   = time.Hour
	young = time.Minute
)

// id returns a container ID as runtimes make them, in which one can read a name
// of a few hexadecimal digits.
func id(name string) string { return name + strings.Repeat("0", 64-len(name)) }

// A node is a data directory with one network.
type node struct {
	t     *testing.T
	dir   string // the network's
	store *hostlocal.Store
}

func newNode(t *testing.T) *node {
	t.Helper()
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

// check fails unless a pass gave these verdicts, and the directory is as they say.
func (n *node) check(report gc.Report, err error, want map[string]gc.Verdict) {
	n.t.Helper()
	if err != nil {
		n.t.Errorf("the pass: %v", err)
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
			n.t.Errorf("%s was judged %s, and its file: %v", ip, v, err)
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

// refused fails unless a pass released nothing and says why.
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

// R3: the API has no addresses of the pod yet, and the runtime has its sandbox.
// That the API knows it as starting claims the rest for a while (R4, hazard 39).
//
// Guard: [Source.Pods] names a sandbox by its container ID.
func TestHazard02SandboxKnownToTheRuntime(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	n.reserve("10.0.0.3", id("1eaced"), old)
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	api := podsource.Static{{UID: "web", StartedAt: time.Now().Add(-2 * old)}}
	n.pass(podsource.Union(api, source(t, f.socket, cri.Options{})),
		map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Starting})
}

// A search finds a containerd that nobody uses, and the node's own listens
// elsewhere. That nothing runs in it says nothing, whatever the caller asserts of
// the node.
//
// Guard: [Source.list] takes no sandbox at all for no answer in a search.
func TestHazard53IdleRuntimeIsFound(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	stranger := serve(t, &fakeRuntime{})
	own := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	kubelet := podsource.Static{{UID: "proxy", HostNetwork: true}}
	idle, err := cri.Among(cri.Options{}, stranger.socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []podsource.Source{
		idle, podsource.AllowEmpty(idle), podsource.Union(kubelet, podsource.AllowEmpty(idle)), podsource.Fallback(podsource.AllowEmpty(idle), kubelet),
	} {
		n.refused(s, podsource.ErrIncomplete, "10.0.0.2")
	}
	n.reserve("10.0.0.3", id("1eaced"), old)
	both, err := cri.Among(cri.Options{}, stranger.socket, own.socket)
	if err != nil {
		t.Fatal(err)
	}
	n.pass(both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released})
	// Who names a runtime knows that it is the node's.
	n.refused(source(t, stranger.socket, cri.Options{}), gc.ErrNoPods, "10.0.0.2")
	n.pass(podsource.AllowEmpty(source(t, stranger.socket, cri.Options{})), map[string]gc.Verdict{"10.0.0.2": gc.Released})
}

// R4: kubelet knows a pod that never gets as far as an address, and each of its
// tries leaks one. The runtime lists none of those containers, and that ends the
// pod's claim on them once they are older than StartingFor and were seen so for
// long enough. What the runtime does list stays.
//
// Guard: [Source.Pods] declares that it names such containers, with the lag of
// a runtime.
func TestHazard39EachTryLeaks(t *testing.T) {
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}}) // outside of the bubble, as its own
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		begun := time.Now()
		n.reserve("10.0.0.2", id("a1"), 0)
		n.reserve("10.0.0.3", id("1eaced"), 0)
		kubelet := podsource.Static{{UID: "stuck", StartedAt: begun.Add(-time.Minute)}}
		alone := n.reconciler(kubelet)
		both := n.reconciler(podsource.Union(kubelet, source(t, f.socket, cri.Options{})))
		for _, row := range []struct {
			reason      string
			age         time.Duration
			alone, both gc.Verdict // of the leak
		}{
			{"younger than the runtime's lag", gc.DefaultMinAge - time.Second, gc.Young, gc.Young},
			{"older than that, but younger than StartingFor", gc.DefaultStartingFor, gc.Starting, gc.Starting},
			{"older than StartingFor", gc.DefaultStartingFor + time.Second, gc.Starting, gc.Released},
		} {
			time.Sleep(row.age - time.Since(begun))
			report, err := alone.Reconcile(t.Context())
			n.check(report, err, map[string]gc.Verdict{"10.0.0.2": row.alone, "10.0.0.3": row.alone})
			report, err = both.Reconcile(t.Context())
			n.check(report, err, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": row.both})
			if t.Failed() {
				t.Fatal(row.reason)
			}
		}
	})
}

// R14: no CRI lists what nerdctl made, and who lists sandboxes can't know whether
// it lives. That of a sandbox is let go beside it.
//
// Guard: [Source.Pods] declares the one form of IDs that it names.
func TestHazard49ContainersOfNerdctl(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	n.reserve("10.0.0.3", id("1eaced"), old)
	n.reserve("10.0.0.4", "default-"+id("f0e"), old)
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	n.pass(source(t, f.socket, cri.Options{}), map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released, "10.0.0.4": gc.Foreign})
}

// R5 and R4 while the sandbox is not listed, R3 as soon as it is.
//
// Guard: [Source.Pods] declares the lag of a runtime.
func TestHazard04ADDInFlight(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), young)
	n.reserve("10.0.0.3", id("1eaced"), 2*old)
	other := sandbox(id("b1"), "db", ready)
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{other}})
	s := source(t, f.socket, cri.Options{WithStatus: true})
	n.pass(s, map[string]gc.Verdict{"10.0.0.2": gc.Young, "10.0.0.3": gc.Released})

	// It takes long, and kubelet knows since when.
	n.reserve("10.0.0.2", id("a1"), 10*time.Minute)
	kubelet := podsource.Static{{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "web",
		StartedAt: time.Now().Add(-11 * time.Minute)}}
	n.pass(podsource.Union(kubelet, s), map[string]gc.Verdict{"10.0.0.2": gc.Starting})

	f.items = []*runtimeapi.PodSandbox{other, sandbox(id("a1"), "web", ready)}
	n.pass(podsource.Union(kubelet, s), map[string]gc.Verdict{"10.0.0.2": gc.InUse})
	n.pass(s, map[string]gc.Verdict{"10.0.0.2": gc.InUse})
}

// R3: who is not ready still owns what it holds. R10: what it once had is no
// claim against who has it now.
//
// Guard: [podsOf] takes sandboxes in any state, and [dropStale] what the
// stopped ones once had.
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

// Two runtimes, each of which knows the half: both are asked, or nothing is
// released.
//
// Guard: [Source.list] unites what answers, and [Source.skippable] none that
// fails.
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

// The API and kubelet have forgotten the pod, the runtime runs its sandbox.
//
// Guard: [Source.Pods] names a sandbox by its container ID.
func TestHazard35DeletedByForce(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	n.reserve("10.0.0.3", id("1eaced"), old)
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox(id("a1"), "web", ready)}})
	kubelet := podsource.Static{{UID: "other", IPs: pod("", "", "10.0.0.9").IPs}}
	n.pass(podsource.Union(kubelet, source(t, f.socket, cri.Options{})),
		map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released})
}

// The hook waits for a runtime that recovers, and takes nothing in its absence.
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

// An error of the runtime, whichever, releases nothing (R2), and neither does an
// idle runtime alone (R9).
func TestNothingIsReleasedOnErrors(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", id("a1"), old)
	web := sandbox(id("a1"), "web", ready)
	broken := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web, {}}})
	if _, err := n.reconciler(source(t, broken.socket, cri.Options{})).Reconcile(t.Context()); err == nil {
		t.Error("a sandbox without an ID is no error")
	}
	n.refused(source(t, serve(t, &fakeRuntime{}).socket, cri.Options{}), gc.ErrNoPods, "10.0.0.2")
	n.refused(source(t, deserted(t), cri.Options{}), podsource.ErrIncomplete, "10.0.0.2")
}

// The table of hazards is what the tests and the package's comment say, those of the
// suite on a real containerd with it.
func TestHazardTable(t *testing.T) { hazardtable.Check(t, "containerdtest") }
