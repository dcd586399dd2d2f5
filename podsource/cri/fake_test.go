// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A fakeRuntime is a runtime on a real socket. Its fields are set before the first call.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	socket   string
	items    []*runtimeapi.PodSandbox
	statuses map[string]*runtimeapi.PodSandboxStatus // without one: NotFound

	listing func(context.Context) error                // called in ListPodSandbox
	asked   func(ctx context.Context, id string) error // called in PodSandboxStatus

	lists, asks, now, most atomic.Int64 // calls of each kind; concurrent requests for a status, and their maximum
	filtered               atomic.Bool
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

func (f *fakeRuntime) ListPodSandbox(ctx context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f.lists.Add(1)
	if r.GetFilter() != nil {
		f.filtered.Store(true)
	}
	if f.listing != nil {
		if err := f.listing(ctx); err != nil {
			return nil, err
		}
	}
	return &runtimeapi.ListPodSandboxResponse{Items: f.items}, nil
}

func (f *fakeRuntime) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.asks.Add(1)
	now := f.now.Add(1)
	defer f.now.Add(-1)
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
	if f.asked != nil {
		if err := f.asked(ctx, r.GetPodSandboxId()); err != nil {
			return nil, err
		}
	}
	s, ok := f.statuses[r.GetPodSandboxId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "sandbox %q: not found", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: s}, nil
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
