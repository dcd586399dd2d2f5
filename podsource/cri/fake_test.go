// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A fakeRuntime is a runtime on a real socket.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	socket     string
	mu         sync.Mutex // guards what follows, once it serves
	items      []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
	statuses   map[string]*runtimeapi.PodSandboxStatus // without one: NotFound
	// called, if set, is called in each call: of "sandboxes", of "containers", or with the ID of a status.
	called func(ctx context.Context, of string) error

	asks, now, most atomic.Int64 // requests for a status: all; concurrent ones, and their maximum
}

// serve starts a runtime that ends with the test.
func serve(t testing.TB, f *fakeRuntime) *fakeRuntime {
	t.Helper()
	f.socket = filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, f)
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serving: %v", err)
		}
	})
	return f
}

// call begins a call, and returns what the runtime has then.
func (f *fakeRuntime) call(ctx context.Context, of string) (_ *fakeRuntime, err error) {
	f.mu.Lock()
	now := &fakeRuntime{items: f.items, containers: f.containers, statuses: f.statuses, called: f.called}
	f.mu.Unlock()
	if now.called != nil {
		err = now.called(ctx, of)
	}
	return now, err
}

func (f *fakeRuntime) ListPodSandbox(ctx context.Context, _ *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	now, err := f.call(ctx, "sandboxes")
	return &runtimeapi.ListPodSandboxResponse{Items: now.items}, err
}

func (f *fakeRuntime) ListContainers(ctx context.Context, _ *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	now, err := f.call(ctx, "containers")
	return &runtimeapi.ListContainersResponse{Containers: now.containers}, err
}

func (f *fakeRuntime) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest) (
	*runtimeapi.PodSandboxStatusResponse, error) {
	f.asks.Add(1)
	concurrent := f.now.Add(1)
	defer f.now.Add(-1)
	for most := f.most.Load(); concurrent > most && !f.most.CompareAndSwap(most, concurrent); most = f.most.Load() {
	}
	now, err := f.call(ctx, r.GetPodSandboxId())
	s, ok := now.statuses[r.GetPodSandboxId()]
	if err == nil && !ok {
		err = status.Errorf(codes.NotFound, "sandbox %q: not found", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: s}, err
}

// A direct client gets statuses from a fakeRuntime without a connection.
type direct struct {
	runtimeapi.RuntimeServiceClient
	f *fakeRuntime
}

func (d direct) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption) (
	*runtimeapi.PodSandboxStatusResponse, error) {
	return d.f.PodSandboxStatus(ctx, r)
}

// failing returns a function for fakeRuntime.called that returns an error in calls of one kind.
func failing(what string, err error) func(context.Context, string) error {
	return func(_ context.Context, of string) error {
		if of != what {
			return nil
		}
		return err
	}
}

const (
	ready    = runtimeapi.PodSandboxState_SANDBOX_READY
	notReady = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
)

// sandbox returns a sandbox of the pod default/name, whose UID is its name.
func sandbox(id, name string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id: id, State: state, CreatedAt: 1,
		Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: name, Uid: name},
	}
}

// statusOf returns the status of a sandbox with these addresses.
func statusOf(s *runtimeapi.PodSandbox, ips ...string) *runtimeapi.PodSandboxStatus {
	network := &runtimeapi.PodSandboxNetworkStatus{}
	for i, ip := range ips {
		if i == 0 {
			network.Ip = ip
			continue
		}
		network.AdditionalIps = append(network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
	}
	return &runtimeapi.PodSandboxStatus{Id: s.GetId(), State: s.GetState(), Metadata: s.GetMetadata(), Network: network}
}

// inNodeNetwork changes a status to that of a sandbox in the node's network.
func inNodeNetwork(s *runtimeapi.PodSandboxStatus) *runtimeapi.PodSandboxStatus {
	s.Linux = &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
		Options: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
	}}
	return s
}

// byID returns the statuses by their sandbox IDs.
func byID(statuses ...*runtimeapi.PodSandboxStatus) map[string]*runtimeapi.PodSandboxStatus {
	m := make(map[string]*runtimeapi.PodSandboxStatus)
	for _, s := range statuses {
		m[s.GetId()] = s
	}
	return m
}
