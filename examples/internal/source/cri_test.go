// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// oneSandbox is a runtime with one sandbox, which has one address.
type oneSandbox struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (oneSandbox) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "c1", Metadata: &runtimeapi.PodSandboxMetadata{Uid: "1"}}}}, nil
}

func (oneSandbox) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (oneSandbox) PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
	}}, nil
}

func TestCRI(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, oneSandbox{})
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}()
	for _, spec := range []string{"cri:unix://" + socket, "cri:" + socket} {
		s, err := Parse([]string{spec, "file:-"}, Env{Stdin: strings.NewReader(`[{"uid":"1"}]`)})
		if err != nil {
			t.Fatal(err)
		}
		pods, err := podsOf(t, s)
		if err != nil || len(pods) != 2 || len(pods[0].ContainerIDs) != 1 || len(pods[0].IPs) != 1 {
			t.Errorf("%s: got %v, %v, want the sandbox with its address, and the file's pod beside it", spec, pods, err)
		}
	}
}

func TestCRIRefuses(t *testing.T) {
	if _, err := Parse([]string{"cri:tcp://127.0.0.1:1"}, Env{}); err == nil || !strings.Contains(err.Error(), `pod source "cri:tcp://127.0.0.1:1": endpoint`) {
		t.Errorf("an endpoint that is none: got %v", err)
	}
	if _, err := Parse([]string{"cri"}, Env{}); err != nil {
		t.Errorf("the endpoint may be left out: got %v", err)
	}
	socket := filepath.Join(t.TempDir(), "none")
	s, err := Parse([]string{"cri:" + socket}, Env{})
	if err != nil {
		t.Fatal(err)
	}
	if pods, err := podsOf(t, s); pods != nil || !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), socket) {
		t.Errorf("a runtime that is stopped: got %v, %v", pods, err)
	}
}
