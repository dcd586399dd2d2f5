// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A criRuntime is a container runtime with sandboxes.
type criRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	ready, notReady []string
}

func (r criRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	all := &runtimeapi.ListPodSandboxResponse{}
	for i, id := range slices.Concat(r.ready, r.notReady) {
		state := runtimeapi.PodSandboxState_SANDBOX_READY
		if i >= len(r.ready) {
			state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
		name := fmt.Sprintf("web-%d", i+1)
		all.Items = append(all.Items, &runtimeapi.PodSandbox{
			Id: id, State: state, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "shop", Name: name, Uid: name},
		})
	}
	return all, nil
}

func (criRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (r criRuntime) PodSandboxStatus(_ context.Context, of *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	status := &runtimeapi.PodSandboxStatus{Id: of.PodSandboxId}
	if slices.Contains(r.notReady, of.PodSandboxId) {
		status.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: status}, nil
}

// serve starts a runtime at a socket that ends with the test.
func serve(t *testing.T, socket string, r criRuntime) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
}
