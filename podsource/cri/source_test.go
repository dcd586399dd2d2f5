// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

var equal = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()}

func source(t testing.TB, endpoint string, opts cri.Options) *cri.Source {
	t.Helper()
	s, err := cri.New(endpoint, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// pod returns the expected pod for a sandbox of default/name.
func pod(id, name string, addresses ...string) podsource.Pod {
	p := podsource.Pod{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: name},
		UID:            types.UID(name), ContainerIDs: []string{id},
	}
	for _, a := range addresses {
		p.IPs = append(p.IPs, netip.MustParseAddr(a))
	}
	return p
}

// answer returns the expected answer with these pods.
func answer(pods ...podsource.Pod) podsource.Answer {
	return podsource.Answer{Source: "cri", Pods: pods, Names: podsource.SandboxContainers, Networks: []string{podsource.EveryNetwork}}
}

func onHost(p podsource.Pod) podsource.Pod {
	p.HostNetwork = true
	return p
}

func TestPods(t *testing.T) {
	web, db, job := sandbox("a1", "web", ready), sandbox("b1", "db", ready), sandbox("c1", "job", notReady)
	for _, row := range []struct {
		reason     string
		withStatus bool
		items      []*runtimeapi.PodSandbox
		statuses   []*runtimeapi.PodSandboxStatus
		want       []podsource.Pod
	}{
		{reason: "an idle runtime: the caller decides what that means"},
		{reason: "an idle runtime has no statuses either", withStatus: true},
		{reason: "every state is live", items: []*runtimeapi.PodSandbox{web, job},
			want: []podsource.Pod{pod("a1", "web"), pod("c1", "job")}},
		{reason: "two sandboxes of one pod: both keep their reservations",
			items: []*runtimeapi.PodSandbox{sandbox("a0", "web", notReady), web},
			want:  []podsource.Pod{pod("a0", "web"), pod("a1", "web")}},
		{reason: "a sandbox without metadata", items: []*runtimeapi.PodSandbox{{Id: "d1"}},
			want: []podsource.Pod{{ContainerIDs: []string{"d1"}}}},
		{reason: "addresses, dual stack", withStatus: true, items: []*runtimeapi.PodSandbox{web, db},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(web, "10.0.0.1", "fd00::1"), statusOf(db, "::ffff:10.0.0.2")},
			want:     []podsource.Pod{pod("a1", "web", "10.0.0.1", "fd00::1"), pod("b1", "db", "10.0.0.2")}},
		{reason: "a sandbox that is removed after the list stays live by its ID", withStatus: true,
			items: []*runtimeapi.PodSandbox{web, db}, statuses: []*runtimeapi.PodSandboxStatus{statusOf(db, "10.0.0.2")},
			want: []podsource.Pod{pod("a1", "web"), pod("b1", "db", "10.0.0.2")}},
		{reason: "the node's network, whose address claims nothing", withStatus: true,
			items: []*runtimeapi.PodSandbox{web, db},
			statuses: []*runtimeapi.PodSandboxStatus{
				inNodeNetwork(statusOf(web, "192.168.0.1")), inNodeNetwork(statusOf(db)),
			},
			want: []podsource.Pod{onHost(pod("a1", "web", "192.168.0.1")), onHost(pod("b1", "db"))}},
		{reason: "not ready: it may still have its address", withStatus: true, items: []*runtimeapi.PodSandbox{job},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(job, "10.0.0.3")},
			want:     []podsource.Pod{pod("c1", "job", "10.0.0.3")}},
		{reason: "not ready, and a ready sandbox has one of its addresses", withStatus: true,
			items:    []*runtimeapi.PodSandbox{job, web},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(job, "10.0.0.1", "fd00::3"), statusOf(web, "10.0.0.1", "fd00::1")},
			want:     []podsource.Pod{pod("c1", "job", "fd00::3"), pod("a1", "web", "10.0.0.1", "fd00::1")}},
		{reason: "a sandbox in the node's network does not count for that", withStatus: true,
			items:    []*runtimeapi.PodSandbox{job, web},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(job, "10.0.0.1"), inNodeNetwork(statusOf(web, "10.0.0.1"))},
			want:     []podsource.Pod{pod("c1", "job", "10.0.0.1"), onHost(pod("a1", "web", "10.0.0.1"))}},
		{reason: "two ready sandboxes with one address: a conflict, which is kept", withStatus: true,
			items:    []*runtimeapi.PodSandbox{web, db},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(web, "10.0.0.1"), statusOf(db, "10.0.0.1")},
			want:     []podsource.Pod{pod("a1", "web", "10.0.0.1"), pod("b1", "db", "10.0.0.1")}},
	} {
		f := serve(t, &fakeRuntime{items: row.items, statuses: byID(row.statuses...)})
		s := source(t, "unix://"+f.socket, cri.Options{WithStatus: row.withStatus})
		for range 2 { // the second call gets the same answer
			got, err := s.Pods(t.Context())
			if err != nil {
				t.Errorf("%v: %s", err, row.reason)
			}
			if diff := cmp.Diff(answer(row.want...), got, equal); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
		}
		if f.filtered.Load() {
			t.Error("a filter hides sandboxes")
		}
		asks := int64(0)
		if row.withStatus {
			asks = int64(2 * len(row.items))
		}
		if f.lists.Load() != 2 || f.asks.Load() != asks {
			t.Errorf("%d lists and %d statuses in two passes, want 2 and %d: %s", f.lists.Load(), f.asks.Load(), asks, row.reason)
		}
	}
}

// A runtime is asked before kubelet and the API server, and after sources of ADDs and
// addresses.
func TestRank(t *testing.T) {
	if got := podsource.Ranked(source(t, "", cri.Options{})).Rank(); got != podsource.RankRuntime {
		t.Errorf("got %d, want %d", got, podsource.RankRuntime)
	}
}

// nameOnly is the answer beside an error: only the name of the source.
var nameOnly = podsource.Answer{Source: "cri"}

// R2: all or an error, and never both.
func TestErrors(t *testing.T) {
	web, db := sandbox("a1", "web", ready), sandbox("b1", "db", ready)
	for _, row := range []struct {
		reason   string
		listing  error
		status   error
		items    []*runtimeapi.PodSandbox
		statuses []*runtimeapi.PodSandboxStatus
		is       error // nil for any error but ErrIncomplete
		says     string
	}{
		{reason: "the runtime is recovering", listing: status.Error(codes.Unavailable, "server is not initialized yet"),
			is: podsource.ErrIncomplete, says: "server is not initialized yet"},
		{reason: "the runtime is recovering, with an error without a code as in containerd 1.6", listing: status.Error(codes.Unknown, "server is not initialized yet"),
			is: podsource.ErrIncomplete, says: "server is not initialized yet"},
		{reason: "its CRI plugin is disabled", listing: status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService"),
			says: "does not serve version 1 of the CRI"},
		{reason: "its store is broken", listing: status.Error(codes.Internal, "broken"), says: "listing sandboxes: "},
		{reason: "its own timeout", listing: status.Error(codes.DeadlineExceeded, "busy"),
			is: podsource.ErrIncomplete, says: "no answer in time: "},
		{reason: "a sandbox without an ID", items: []*runtimeapi.PodSandbox{web, {}, db}, says: "sandbox 2 of 3 has no ID"},
		{reason: "an error of one status", status: status.Error(codes.Internal, "broken"), says: "status of sandbox b1: "},
		{reason: "the runtime stops between two statuses", status: status.Error(codes.Unavailable, "stopping"),
			is: podsource.ErrIncomplete, says: "status of sandbox b1: "},
		{reason: "an answer without a status", statuses: []*runtimeapi.PodSandboxStatus{statusOf(web), {Id: "none"}},
			says: "the answer about sandbox b1 has no status"},
		{reason: "an invalid address", statuses: []*runtimeapi.PodSandboxStatus{statusOf(web), statusOf(db, "10.0.0.256")},
			says: `sandbox b1: its status has "10.0.0.256"`},
		{reason: "a prefix", statuses: []*runtimeapi.PodSandboxStatus{statusOf(web, "10.0.0.1/24"), statusOf(db)}, says: "sandbox a1"},
		{reason: "a zone", statuses: []*runtimeapi.PodSandboxStatus{statusOf(web, "fe80::1%eth0"), statusOf(db)}, says: "sandbox a1"},
		{reason: "an empty second address", statuses: []*runtimeapi.PodSandboxStatus{statusOf(web, "10.0.0.1", ""), statusOf(db)}, says: `has ""`},
	} {
		f := &fakeRuntime{items: row.items, statuses: byID(row.statuses...)}
		if f.items == nil {
			f.items = []*runtimeapi.PodSandbox{web, db}
		}
		if s := f.statuses["none"]; s != nil {
			f.statuses["b1"] = nil
		}
		f.listing = func(context.Context) error { return row.listing }
		f.asked = func(_ context.Context, id string) error {
			if id == "b1" {
				return row.status
			}
			return nil
		}
		serve(t, f)
		got, err := source(t, f.socket, cri.Options{WithStatus: true}).Pods(t.Context())
		if !cmp.Equal(got, nameOnly, equal) || err == nil || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), f.socket) {
			t.Errorf("got %v, %v, want an error that says %q and the socket: %s", got, err, row.says, row.reason)
		}
		if errors.Is(err, podsource.ErrIncomplete) != (row.is == podsource.ErrIncomplete) || row.is != nil && !errors.Is(err, row.is) {
			t.Errorf("got %v, want %v: %s", err, row.is, row.reason)
		}
		if errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("Fallback would take %v for a source that does not exist: %s", err, row.reason)
		}
	}
}

// containerd may return an error for a sandbox whose namespace is just being removed. The
// source repeats the call, so the pass goes on.
func TestStatusIsAskedForAgain(t *testing.T) {
	web, db := sandbox("a1", "web", ready), sandbox("b1", "db", ready)
	closing := status.Error(codes.Unknown, "failed to get sandbox ip: check network namespace closed")
	for _, row := range []struct {
		reason string
		errs   []error // of the calls for b1, in order
		want   []podsource.Pod
		says   string
	}{
		{"the second call succeeds", []error{closing}, []podsource.Pod{pod("a1", "web", "10.0.0.1"), pod("b1", "db", "10.0.0.2")}, ""},
		{"the sandbox is gone in the second call", []error{closing, status.Error(codes.NotFound, "gone")},
			[]podsource.Pod{pod("a1", "web", "10.0.0.1"), pod("b1", "db")}, ""},
		{"the second call fails, too", []error{closing, closing}, nil, "asking for the status of sandbox b1: "},
		{"another error: no second call", []error{status.Error(codes.Internal, "broken")}, nil, "asking for the status of sandbox b1: "},
	} {
		var asked atomic.Int64
		f := serve(t, &fakeRuntime{
			items:    []*runtimeapi.PodSandbox{web, db},
			statuses: byID(statusOf(web, "10.0.0.1"), statusOf(db, "10.0.0.2")),
			asked: func(_ context.Context, id string) error {
				if id != "b1" {
					return nil
				}
				if i := int(asked.Add(1)) - 1; i < len(row.errs) {
					return row.errs[i]
				}
				return nil
			},
		})
		got, err := source(t, f.socket, cri.Options{WithStatus: true}).Pods(t.Context())
		if diff := cmp.Diff(row.want, got.Pods, equal); diff != "" || (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v (-want +got):\n%s", row.reason, err, diff)
		}
	}
}

// A node has some hundred pods. An answer with many times as many must fit.
func TestManySandboxes(t *testing.T) {
	f := &fakeRuntime{statuses: make(map[string]*runtimeapi.PodSandboxStatus)}
	var want []podsource.Pod
	for i := range 5000 {
		s := sandbox(fmt.Sprintf("%064x", i), fmt.Sprintf("web-%d", i), runtimeapi.PodSandboxState(i%2))
		s.Annotations = map[string]string{"applied": strings.Repeat("x", 4000)} // 20 MB in all
		ip := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()
		f.items = append(f.items, s)
		f.statuses[s.GetId()] = statusOf(s, ip)
		want = append(want, pod(s.GetId(), s.GetMetadata().GetName(), ip))
	}
	// The first eight calls wait for each other, so there are at least eight at a time. Then
	// they wait a little longer for a ninth, which must not come.
	var arrived atomic.Int64
	f.asked = func(ctx context.Context, _ string) error {
		if arrived.Add(1) > 8 {
			return nil
		}
		for arrived.Load() < 8 && ctx.Err() == nil {
			runtime.Gosched()
		}
		for range 1000 {
			runtime.Gosched()
		}
		return ctx.Err()
	}
	serve(t, f)
	got, err := source(t, f.socket, cri.Options{WithStatus: true}).Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(answer(want...), got, equal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if most := f.most.Load(); most != 8 {
		t.Errorf("%d concurrent requests for a status, want 8", most)
	}

	// A longer answer is an error, so the memory is limited.
	for _, row := range []struct {
		reason string
		length int
		most   int // MaxAnswer
		ok     bool
	}{
		{"not longer than the default", cri.DefaultMaxAnswer - 1<<10, 0, true},
		{"longer than the default", cri.DefaultMaxAnswer, 0, false},
		{"longer than the default, and not than the option", cri.DefaultMaxAnswer, 2 * cri.DefaultMaxAnswer, true},
		{"longer than a small option", 10 << 10, 9 << 10, false},
	} {
		f.items = []*runtimeapi.PodSandbox{{Id: "a1", Annotations: map[string]string{"long": strings.Repeat("x", row.length)}}}
		got, err := source(t, f.socket, cri.Options{MaxAnswer: row.most}).Pods(t.Context())
		if row.ok && (err != nil || len(got.Pods) != 1) {
			t.Errorf("got %d pods, %v: %s", len(got.Pods), err, row.reason)
		}
		if !row.ok && (!cmp.Equal(got, nameOnly, equal) || status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "raise Options.MaxAnswer")) {
			t.Errorf("got %d pods, %v, want %v: %s", len(got.Pods), err, codes.ResourceExhausted, row.reason)
		}
	}
}

func TestNegativeOptions(t *testing.T) {
	if s, err := cri.New("", cri.Options{MaxAnswer: -1}); s != nil || err == nil || !strings.Contains(err.Error(), "negative") {
		t.Errorf("got %v, %v", s, err)
	}
}

func TestEndpointForms(t *testing.T) {
	for _, row := range []struct{ reason, endpoint, name, address string }{
		{"a socket in kubelet's form", "unix:///run/crio/crio.sock", "unix:///run/crio/crio.sock", "/run/crio/crio.sock"},
		{"the path alone", "/run/crio/crio.sock", "unix:///run/crio/crio.sock", "/run/crio/crio.sock"},
		{"a pipe in kubelet's form", "npipe:////./pipe/containerd-containerd", "npipe:////./pipe/containerd-containerd", `\\.\pipe\containerd-containerd`},
		{"a pipe in the form of Windows", `npipe:\\.\pipe\containerd`, `npipe:\\.\pipe\containerd`, `\\.\pipe\containerd`},
		{"a relative path", "run/crio.sock", "", ""},
		{"a relative path after the scheme", "unix://run/crio.sock", "", ""},
		{"nothing after the scheme", "unix://", "", ""},
		{"another scheme", "tcp://127.0.0.1:1234", "", ""},
		{"a pipe without a name", "npipe:////./pipe/", "", ""},
		{"a path that is not a pipe's", "npipe:////run/crio.sock", "", ""},
		{"a path that leaves the pipes", "npipe:////./pipe/../x", "", ""},
		{"a zero byte", "/run/\x00", "", ""},
	} {
		name, address, err := cri.ParseEndpoint(row.endpoint)
		if name != row.name || address != row.address || (err != nil) != (row.name == "") {
			t.Errorf("%q: got %q, %q, %v, want %q, %q: %s", row.endpoint, name, address, err, row.name, row.address, row.reason)
		}
		if _, newErr := cri.New(row.endpoint, cri.Options{}); (newErr != nil) != (err != nil) {
			t.Errorf("New: got %v, want %v: %s", newErr, err, row.reason)
		}
	}
}
