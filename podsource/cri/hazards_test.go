// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package cri_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

func TestSource(t *testing.T) {
	for _, withStatus := range []bool{false, true} {
		t.Run(fmt.Sprint("WithStatus ", withStatus), func(t *testing.T) {
			gctest.TestSource(t, func(t *testing.T) gctest.Fixture { return fixture(t, withStatus) })
		})
	}
}

// fixture is a runtime that has a sandbox for each container with attachments.
func fixture(t *testing.T, withStatus bool) gctest.Fixture {
	f := serve(t, &fakeRuntime{})
	var all []podsource.Attachment
	set := func(now []podsource.Attachment) {
		all = now
		var items []*runtimeapi.PodSandbox
		statuses := make(map[string]*runtimeapi.PodSandboxStatus)
		for _, at := range now {
			item := &runtimeapi.PodSandbox{Id: at.ContainerID}
			if at.Pod.Name != "" {
				item.Metadata = &runtimeapi.PodSandboxMetadata{Namespace: at.Pod.Namespace, Name: at.Pod.Name, Uid: at.ContainerID[:8]}
			}
			if statuses[item.Id] == nil { // it has the addresses of the first interface only
				items = append(items, item)
				statuses[item.Id] = statusOf(item, at.IPs[0].String())
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.items, f.statuses = items, statuses
	}
	fail := func(err error) func() {
		return func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.called = failing("sandboxes", err)
		}
	}
	same := func(a, b podsource.Attachment) bool { return a.ContainerID == b.ContainerID && a.IfName == b.IfName }
	return gctest.Fixture{
		Source: source(t, f.socket, cri.Options{WithStatus: withStatus}), Networks: []string{podsource.EveryNetwork},
		Attach: func(at podsource.Attachment) { set(append(slices.Clone(all), at)) },
		Detach: func(at podsource.Attachment) {
			set(slices.DeleteFunc(slices.Clone(all), func(other podsource.Attachment) bool { return same(at, other) }))
		},
		Break: fail(status.Error(codes.Unavailable, "stopping")), Repair: fail(nil),
		Lose: func() {
			if err := os.Remove(f.socket); err != nil {
				t.Fatal(err)
			}
		},
		Reboot: func() { set(nil) },
	}
}

// pass runs a pass over the network podnet with the runtime as the source.
func pass(t *testing.T, dir *gctest.Dir, f *fakeRuntime) gc.Report {
	t.Helper()
	r, err := gc.New(dir.Store, []string{"podnet"}, source(t, serve(t, f).socket, cri.Options{WithStatus: true}), gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.Reconcile(t.Context())
	if err != nil {
		t.Error(err)
	}
	return report
}

// An interface that was attached under the ID of a container is in the network namespace of its
// sandbox. So it lives as long as the sandbox, also when its container has ended.
//
// Guard: [podsOf] adds the containers to their sandboxes, in any state.
func TestHazard88HotPlug(t *testing.T) {
	for _, state := range []runtimeapi.ContainerState{
		runtimeapi.ContainerState_CONTAINER_CREATED, runtimeapi.ContainerState_CONTAINER_RUNNING,
		runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_UNKNOWN,
	} {
		web, app := gctest.ContainerID("web"), gctest.ContainerID("app")
		dir := gctest.NewDir(t)
		dir.Reserve("podnet", "10.0.0.2", web, time.Hour)
		dir.Reserve("podnet", "10.0.0.3", app, time.Hour)
		dir.Reserve("podnet", "10.0.0.4", gctest.ContainerID("removed"), time.Hour)
		item := sandbox(web, "web", ready)
		report := pass(t, dir, &fakeRuntime{
			items: []*runtimeapi.PodSandbox{item}, statuses: byID(statusOf(item, "10.0.0.2", "10.0.0.3")), // no conflict
			containers: []*runtimeapi.Container{{Id: app, PodSandboxId: web, State: state}},
		})
		gctest.Check(t, report, "10.0.0.2 in-use", "10.0.0.3 in-use", "10.0.0.4 released")
		if len(report.Duplicates) > 0 {
			t.Errorf("false conflicts of a container that is %s: %v", state, report.Duplicates)
		}
	}
}

// One status is not known. Its sandbox is kept, and a young reservation, whose address it may have
// (R4). The others are judged.
//
// Guard: [addStatus] sets MoreIPs, and not an error of the answer.
func TestHazard90OneStatus(t *testing.T) {
	web, odd := sandbox(gctest.ContainerID("web"), "web", ready), sandbox(gctest.ContainerID("odd"), "odd", ready)
	for _, row := range []struct {
		reason string
		status *runtimeapi.PodSandboxStatus
		err    error
		says   string // after the ID
	}{
		{"it fails", nil, status.Error(codes.Internal, "broken"), ": rpc error: code = Internal desc = broken"},
		{"the runtime stops meanwhile", nil, status.Error(codes.Unavailable, "stopping"), "Unavailable desc = stopping"},
		{"its namespace can't be checked, twice", nil, status.Error(codes.Unknown, "closed"), "desc = closed"},
		{"a long error", nil, status.Error(codes.Internal, strings.Repeat("x", 4000)), strings.Repeat("x", 100)},
		{"no status in the answer", nil, nil, "the answer has no status"},
		{"an address in another form", statusOf(odd, "010.0.0.3"), nil, `its status has "010.0.0.3"`},
		{"an invalid address", statusOf(odd, "10.0.0.3", "10.0.0.256"), nil, `has "10.0.0.256"`},
		{"a prefix", statusOf(odd, "10.0.0.3/24", "10.0.0.3"), nil, `has "10.0.0.3/24"`},
		{"a zone", statusOf(odd, "10.0.0.3", "fe80::1%eth0"), nil, "eth0"},
		{"an empty second address", statusOf(odd, "10.0.0.3", ""), nil, `has ""`},
		{"an address of a pod in the node's network, which claims nothing", inNodeNetwork(statusOf(odd, "10.0.0.4", "")), nil, `has ""`},
	} {
		dir := gctest.NewDir(t)
		dir.Reserve("podnet", "10.0.0.2", web.Id, time.Hour)
		dir.Reserve("podnet", "10.0.0.3", odd.Id, time.Hour)
		dir.Reserve("podnet", "10.0.0.4", gctest.ContainerID("leak"), time.Hour)
		dir.Reserve("podnet", "10.0.0.5", gctest.ContainerID("young leak"), 13*time.Minute)
		report := pass(t, dir, &fakeRuntime{
			items:    []*runtimeapi.PodSandbox{web, odd},
			statuses: map[string]*runtimeapi.PodSandboxStatus{web.Id: statusOf(web, "10.0.0.2"), odd.Id: row.status},
			called:   failing(odd.Id, row.err),
		})
		young := "10.0.0.5 starting"
		if row.status.GetLinux() != nil {
			young = "10.0.0.5 released"
		}
		gctest.Check(t, report, "10.0.0.2 in-use", "10.0.0.3 in-use", "10.0.0.4 released", young)
		note := report.Sources[0].Note
		if !strings.Contains(note, "of 1 of 2 sandboxes are known, one is "+odd.Id) || !strings.Contains(note, row.says) || len(note) > 600 {
			t.Errorf("%s: the note is %q, want one that says %q", row.reason, note, row.says)
		}
	}
}

// Statuses that hang take up a limited part of the time that is left, and the others are known.
//
// Guard: [addStatuses] limits the time of each request, and of all.
// A sandbox whose status was known keeps what it claimed: the file at its address may be damaged, or have another owner.
//
// Guard: [cri.Source.Pods] remembers the addresses of sandboxes.
func TestHazard90StatusIsNoLongerKnown(t *testing.T) {
	web := sandbox(gctest.ContainerID("web"), "web", ready)
	f := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web}, statuses: map[string]*runtimeapi.PodSandboxStatus{
		web.Id: statusOf(web, "10.0.0.2", "10.0.0.3")}})
	dir := gctest.NewDir(t)
	dir.Write("podnet", "10.0.0.2", "", time.Hour)
	dir.Reserve("podnet", "10.0.0.3", gctest.ContainerID("ended"), time.Hour)
	r, err := gc.New(dir.Store, []string{"podnet"}, source(t, f.socket, cri.Options{WithStatus: true}), gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		report, _ := r.Reconcile(t.Context())
		gctest.Check(t, report, "10.0.0.2 in-use", "10.0.0.3 conflict")
		f.mu.Lock()
		f.called = failing(web.Id, status.Error(codes.Internal, "broken"))
		f.mu.Unlock()
	}
}

func TestHazard90StatusesHang(t *testing.T) {
	for _, row := range []struct {
		reason string
		left   time.Duration // until the deadline; 0: none
		hang   int
		takes  time.Duration
	}{
		{"one", 15 * time.Second, 1, time.Second},
		{"as many as are asked at a time", 15 * time.Second, 8, time.Second},
		{"more, which hang one after the other", 15 * time.Second, 33, 5 * time.Second},
		{"all, and much time is left", time.Minute, 250, 5 * time.Second},
		{"without a deadline", 0, 250, 5 * time.Second},
		{"little time is left", 3 * time.Second, 250, time.Second},
	} {
		t.Run(row.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const all = 250
				f := &fakeRuntime{statuses: make(map[string]*runtimeapi.PodSandboxStatus)}
				var got, want []podsource.Pod
				for i := range all {
					id := fmt.Sprintf("%064x", i)
					f.statuses[id] = statusOf(sandbox(id, "web", ready), "10.0.0.1")
					got, want = append(got, pod(id, "web")), append(want, pod(id, "web", "10.0.0.1"))
					if i < row.hang {
						want[i].IPs, want[i].MoreIPs = nil, true
					}
				}
				f.called = func(ctx context.Context, of string) error {
					if of < fmt.Sprintf("%064x", row.hang) {
						<-ctx.Done()
					}
					return ctx.Err()
				}
				ctx := t.Context()
				if row.left > 0 {
					limited, cancel := context.WithTimeout(ctx, row.left)
					defer cancel()
					ctx = limited
				}
				began := time.Now()
				note := cri.AddStatuses(ctx, direct{f: f}, got)
				if diff := cmp.Diff(want, got, equal); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if took := time.Since(began); took != row.takes {
					t.Errorf("it took %v, want %v", took, row.takes)
				}
				if strings.Count(note, strings.Repeat("0", 60)) != min(1, row.hang) || !strings.HasSuffix(note, "no answer in time") ||
					!strings.HasPrefix(note, fmt.Sprintf("not all addresses of %d of %d ", row.hang, all)) {
					t.Errorf("the note is %q", note)
				}
				if most := f.most.Load(); most > 8 || row.hang >= 8 && most < 8 {
					t.Errorf("%d concurrent requests, want 8", most)
				}
			})
		})
	}
}

// A sandbox that is not ready keeps its reservations, and the report says how to remove it. Its
// old address is no conflict with a sandbox that has it now (hazard 05).
//
// Guard: [setReady] sets NotRunning and Origin, and [dropStale] removes such addresses.
func TestHazard102NotReady(t *testing.T) {
	web, job := sandbox(gctest.ContainerID("web"), "web", ready), sandbox(gctest.ContainerID("job"), "job", notReady)
	dir := gctest.NewDir(t)
	dir.Reserve("podnet", "10.0.0.2", web.Id, time.Hour)
	dir.Reserve("podnet", "10.0.0.3", job.Id, time.Hour)
	report := pass(t, dir, &fakeRuntime{
		items: []*runtimeapi.PodSandbox{web, job}, statuses: byID(statusOf(web, "10.0.0.2"), statusOf(job, "10.0.0.2")),
	})
	gctest.Check(t, report, "10.0.0.2 in-use", "10.0.0.3 in-use")
	for _, r := range report.Reservations {
		want := gc.Pod{Namespace: "default", Name: "web", UID: "web", Source: "cri"}
		if r.ContainerID == job.Id {
			want = gc.Pod{Namespace: "default", Name: "job", UID: "job", Source: "cri", Origin: "sandbox " + job.Id + ", not ready", NotRunning: true}
		}
		if *r.Pod != want {
			t.Errorf("got %+v, want %+v", *r.Pod, want)
		}
	}
	if len(report.Duplicates) > 0 {
		t.Errorf("false conflicts: %v", report.Duplicates)
	}
}
