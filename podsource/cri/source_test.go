// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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

func stopped(p podsource.Pod) podsource.Pod {
	p.NotRunning, p.Origin = true, "sandbox "+p.ContainerIDs[0]+", not ready"
	return p
}

// with adds the IDs of containers.
func with(p podsource.Pod, ids ...string) podsource.Pod {
	p.ContainerIDs = append(p.ContainerIDs, ids...)
	return p
}

func in(sandbox, id string) *runtimeapi.Container {
	return &runtimeapi.Container{Id: id, PodSandboxId: sandbox}
}

func TestPods(t *testing.T) {
	web, db, job := sandbox("a1", "web", ready), sandbox("b1", "db", ready), sandbox("c1", "job", notReady)
	type sandboxes = []*runtimeapi.PodSandbox
	for _, row := range []struct {
		reason     string
		items      sandboxes
		containers []*runtimeapi.Container
		statuses   []*runtimeapi.PodSandboxStatus // nil: not asked for
		want       []podsource.Pod
	}{
		{reason: "an idle runtime: the caller decides what that means"},
		{reason: "every state is live", items: sandboxes{web, job}, want: []podsource.Pod{pod("a1", "web"), stopped(pod("c1", "job"))}},
		{reason: "two sandboxes of one pod: both keep their reservations", items: sandboxes{sandbox("a0", "web", notReady), web},
			want: []podsource.Pod{stopped(pod("a0", "web")), pod("a1", "web")}},
		{reason: "an answer of 60 MB", items: sandboxes{{Id: "d1", Annotations: map[string]string{"long": strings.Repeat("x", 60<<20)}}},
			want: []podsource.Pod{{ContainerIDs: []string{"d1"}}}},
		{reason: "a sandbox without metadata", items: sandboxes{{Id: "d1"}}, want: []podsource.Pod{{ContainerIDs: []string{"d1"}}}},
		{reason: "containers are claims of their sandbox, whose ID comes first", items: sandboxes{web, job},
			containers: []*runtimeapi.Container{in("c1", "c2"), in("a1", "a2"), in("a1", "a3")},
			want:       []podsource.Pod{with(pod("a1", "web"), "a2", "a3"), with(stopped(pod("c1", "job")), "c2")}},
		{reason: "a container whose sandbox is not listed: it may live, and so may the container", items: sandboxes{web},
			containers: []*runtimeapi.Container{in("d1", "d2"), in("d1", "d3")},
			want:       []podsource.Pod{pod("a1", "web"), {ContainerIDs: []string{"d1", "d2", "d3"}}}},
		{reason: "addresses, dual stack", items: sandboxes{web, db},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(web, "10.0.0.1", "fd00::1"), statusOf(db, "::ffff:10.0.0.2")},
			want:     []podsource.Pod{pod("a1", "web", "10.0.0.1", "fd00::1"), pod("b1", "db", "10.0.0.2")}},
		{reason: "a sandbox that is removed after the list stays live by its ID", items: sandboxes{web, db},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(db, "10.0.0.2")},
			want:     []podsource.Pod{pod("a1", "web"), pod("b1", "db", "10.0.0.2")}},
		{reason: "a sandbox that stops after the list", items: sandboxes{web},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(sandbox("a1", "web", notReady))}, want: []podsource.Pod{stopped(pod("a1", "web"))}},
		{reason: "the node's network, whose address claims nothing", items: sandboxes{web, db},
			statuses: []*runtimeapi.PodSandboxStatus{inNodeNetwork(statusOf(web, "192.168.0.1")), inNodeNetwork(statusOf(db))},
			want:     []podsource.Pod{onHost(pod("a1", "web", "192.168.0.1")), onHost(pod("b1", "db"))}},
		{reason: "not ready: it may still have its address", items: sandboxes{job},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(job, "10.0.0.3")}, want: []podsource.Pod{stopped(pod("c1", "job", "10.0.0.3"))}},
		{reason: "not ready, and a ready sandbox has one of its addresses", items: sandboxes{job, web},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(job, "10.0.0.1", "fd00::3"), statusOf(web, "10.0.0.1", "fd00::1")},
			want:     []podsource.Pod{stopped(pod("c1", "job", "fd00::3")), pod("a1", "web", "10.0.0.1", "fd00::1")}},
		{reason: "a sandbox in the node's network does not count for that", items: sandboxes{job, web},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(job, "10.0.0.1"), inNodeNetwork(statusOf(web, "10.0.0.1"))},
			want:     []podsource.Pod{stopped(pod("c1", "job", "10.0.0.1")), onHost(pod("a1", "web", "10.0.0.1"))}},
		{reason: "two ready sandboxes with one address: a conflict, which is kept", items: sandboxes{web, db},
			statuses: []*runtimeapi.PodSandboxStatus{statusOf(web, "10.0.0.1"), statusOf(db, "10.0.0.1")},
			want:     []podsource.Pod{pod("a1", "web", "10.0.0.1"), pod("b1", "db", "10.0.0.1")}},
	} {
		f := serve(t, &fakeRuntime{items: row.items, containers: row.containers, statuses: byID(row.statuses...)})
		got, err := source(t, "unix://"+f.socket, cri.Options{WithStatus: row.statuses != nil}).Pods(t.Context())
		if err != nil {
			t.Errorf("%v: %s", err, row.reason)
		}
		if diff := cmp.Diff(answer(row.want...), got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if row.statuses == nil && f.asks.Load() > 0 {
			t.Errorf("%d statuses that nobody wants: %s", f.asks.Load(), row.reason)
		}
	}
}

// nameOnly is the answer beside an error: only the name of the source.
var nameOnly = podsource.Answer{Source: "cri"}

// R2: all sandboxes and containers or an error, and never both.
func TestErrors(t *testing.T) {
	web, db := sandbox("a1", "web", ready), sandbox("b1", "db", ready)
	for _, row := range []struct {
		reason     string
		called     func(context.Context, string) error
		items      []*runtimeapi.PodSandbox
		containers []*runtimeapi.Container
		incomplete bool // ErrIncomplete: a later call may succeed
		says       string
	}{
		{reason: "the runtime is recovering", called: failing("sandboxes", status.Error(codes.Unavailable, "server is not initialized yet")),
			incomplete: true, says: "server is not initialized yet"},
		{reason: "the same without a code, as in containerd 1.6",
			called:     failing("sandboxes", status.Error(codes.Unknown, "server is not initialized yet")),
			incomplete: true, says: "server is not initialized yet"},
		{reason: "its CRI plugin is disabled", called: failing("sandboxes", status.Error(codes.Unimplemented, "unknown service")),
			says: "does not serve version 1 of the CRI"},
		{reason: "its store is broken", called: failing("sandboxes", status.Error(codes.Internal, "broken")), says: "listing sandboxes: "},
		{reason: "its own timeout", called: failing("sandboxes", status.Error(codes.DeadlineExceeded, "busy")),
			incomplete: true, says: "the runtime is not ready: "},
		{reason: "the runtime stops between the lists", called: failing("containers", status.Error(codes.Unavailable, "stopping")),
			incomplete: true, says: "listing containers: "},
		{reason: "a sandbox without an ID", items: []*runtimeapi.PodSandbox{web, {}, db}, says: "sandbox 2 of 3 has no ID"},
		{reason: "a container without an ID", containers: []*runtimeapi.Container{in("a1", "")}, says: "container 1 of 1 has no ID"},
		{reason: "a container without a sandbox", containers: []*runtimeapi.Container{in("", "a2")}, says: "or none of its sandbox"},
		{reason: "an answer that takes too much memory", says: "larger than max",
			items: []*runtimeapi.PodSandbox{{Id: "a1", Annotations: map[string]string{"long": strings.Repeat("x", 64<<20)}}}},
	} {
		f := serve(t, &fakeRuntime{items: row.items, containers: row.containers, called: row.called})
		got, err := source(t, f.socket, cri.Options{}).Pods(t.Context())
		if text := fmt.Sprint(err); !cmp.Equal(got, nameOnly, equal) || !strings.Contains(text, row.says) || !strings.Contains(text, f.socket) {
			t.Errorf("got %v, %v, want an error that says %q and the socket: %s", got, err, row.says, row.reason)
		}
		if errors.Is(err, podsource.ErrIncomplete) != row.incomplete || errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("got %v, want ErrIncomplete: %t: %s", err, row.incomplete, row.reason)
		}
	}
}

// containerd may return an error for a sandbox whose namespace is just being removed. The
// source repeats the call, once.
func TestStatusIsAskedForAgain(t *testing.T) {
	closing := status.Error(codes.Unknown, "failed to get sandbox ip: check network namespace closed")
	for _, row := range []struct {
		reason string
		errs   []error // of the calls, in order
		ips    int     // -1: unknown
	}{
		{"the second call succeeds", []error{closing}, 1},
		{"the sandbox is gone in the second call", []error{closing, status.Error(codes.NotFound, "gone")}, 0},
		{"the second call fails, too", []error{closing, closing}, -1},
		{"another error: no second call", []error{status.Error(codes.Internal, "broken")}, -1},
	} {
		f := &fakeRuntime{statuses: byID(statusOf(sandbox("a1", "web", ready), "10.0.0.1"))}
		f.called = func(context.Context, string) error {
			if i := int(f.asks.Load()) - 1; i < len(row.errs) {
				return row.errs[i]
			}
			return nil
		}
		pods := []podsource.Pod{pod("a1", "web")}
		note := cri.AddStatuses(t.Context(), direct{f: f}, pods)
		if unknown := row.ips < 0; len(pods[0].IPs) != max(0, row.ips) || pods[0].MoreIPs != unknown || (note != "") != unknown {
			t.Errorf("got %v, %q: %s", pods, note, row.reason)
		}
	}
}

func TestEndpointForms(t *testing.T) {
	for _, row := range []struct{ reason, endpoint, address string }{
		{"a socket in kubelet's form", "unix:///run/crio/crio.sock", "/run/crio/crio.sock"},
		{"the path alone", "/run/crio/crio.sock", "/run/crio/crio.sock"},
		{"a pipe in kubelet's form", "npipe:////./pipe/containerd-containerd", `\\.\pipe\containerd-containerd`},
		{"a pipe in the form of Windows", `npipe:\\.\pipe\containerd`, `\\.\pipe\containerd`},
		{"a relative path", "run/crio.sock", ""},
		{"a relative path after the scheme", "unix://run/crio.sock", ""},
		{"nothing after the scheme", "unix://", ""},
		{"another scheme", "tcp://127.0.0.1:1234", ""},
		{"a pipe without a name", "npipe:////./pipe/", ""},
		{"a path that is not a pipe's", "npipe:////run/crio.sock", ""},
		{"a path that leaves the pipes", "npipe:////./pipe/../x", ""},
		{"a zero byte", "/run/\x00", ""},
	} {
		address, err := cri.Address(row.endpoint)
		_, newErr := cri.New(row.endpoint, cri.Options{})
		if address != row.address || (err != nil) != (row.address == "") || (newErr != nil) != (err != nil) {
			t.Errorf("%q: got %q, %v, and from New %v, want %q: %s", row.endpoint, address, err, newErr, row.address, row.reason)
		}
	}
}
