// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A criRuntime is a container runtime with one sandbox.
type criRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	sandbox string
}

func (r criRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{
		Id: r.sandbox, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "shop", Name: "web-1", Uid: "1"},
	}}}, nil
}

func (criRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{}, nil
}

func (criRuntime) PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{}}, nil
}

// serve starts a runtime that ends with the test, and returns its socket.
func serve(t *testing.T, r criRuntime) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
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
	return socket
}

// Containers of nerdctl and ctr hold addresses in the pods' network, and no runtime's CRI lists
// them (hazard 49, R14). They are kept and reported, and do not count as leaked.
// --allow-foreign releases them.
func TestForeign(t *testing.T) {
	const old = 9 * time.Hour
	socket := serve(t, criRuntime{sandbox: sandbox("live")})
	for _, row := range []struct {
		reason string
		flags  []string
		want   map[string]string
		says   []string
		status int
	}{
		{
			"no flag: they may live", nil,
			map[string]string{"10.1.0.2": "container-live", "10.1.0.3": "foreign-owner", "10.1.0.4": "foreign-owner", "10.1.0.5": "foreign-owner"},
			[]string{
				"Kept, because no source here can tell whether these containers live:\n" +
					"  podnet  2 reservations  of containers default-<64 hex digits>  --source netns would see which of them have an address\n" +
					"  podnet  1 reservation   of owners with other IDs               if they have certainly ended: --allow-foreign PREFIX\n",
				"podnet, 4 reservations: 1 in-use, 3 foreign.",
			}, statusDone,
		},
		{
			"one prefix is allowed", []string{"--allow-foreign", "default-"},
			map[string]string{"10.1.0.2": "container-live", "10.1.0.3": "unowned", "10.1.0.4": "unowned", "10.1.0.5": "foreign-owner"},
			[]string{"podnet  1 reservation  of owners with other IDs", "podnet, 4 reservations: 1 in-use, 1 foreign, 2 leaked."},
			statusLeaked,
		},
		{
			"all are", []string{"--allow-foreign", "*"},
			map[string]string{"10.1.0.2": "container-live", "10.1.0.3": "unowned", "10.1.0.4": "unowned", "10.1.0.5": "unowned"},
			[]string{"podnet, 4 reservations: 1 in-use, 3 leaked."}, statusLeaked,
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			nw := n.network("podnet", "10.1.0.0/24")
			for _, id := range []string{sandbox("live"), "default-" + sandbox("a"), "default-" + sandbox("b"), "my-container"} {
				nw.add(id, old)
			}
			args := append([]string{"--data-dir", "networks", "--network", "podnet", "--source", "cri:" + socket}, row.flags...)
			got := run(t, n.dir, nil, append([]string{"plan", "--exit-code", "-o", "json"}, args...)...)
			if diff := cmp.Diff(row.want, reasons(t, got.stdout)); diff != "" || got.status != row.status {
				t.Errorf("exit status %d, want %d: %s; reasons (-want +got):\n%s", got.status, row.status, got.stderr, diff)
			}
			got = run(t, n.dir, nil, append([]string{"plan"}, args...)...)
			for _, text := range row.says {
				if !strings.Contains(got.stdout, text) {
					t.Errorf("%q is not in:\n%s", text, got.stdout)
				}
			}
			if got := run(t, n.dir, nil, append([]string{"release"}, args...)...); got.status != statusDone {
				t.Errorf("release: exit status %d: %s", got.status, got.stderr)
			}
			for ip, why := range row.want {
				if there := nw.there(ip); there != (why != "unowned") {
					t.Errorf("%s was %s: is its file there? %v", ip, why, there)
				}
			}
		})
	}
	t.Run("in the picture", func(t *testing.T) {
		n := newNode(t)
		n.network("podnet", "10.1.0.0/24").add("default-"+sandbox("a"), old)
		got := run(t, n.dir, nil, "map", "--data-dir", "networks", "--source", "cri:"+socket)
		if !strings.Contains(got.stdout, "f foreign") || !strings.Contains(got.stdout, "1 of 1 used from the lowest to the highest reservation (100 %): 1 foreign") {
			t.Errorf("exit status %d:\n%s%s", got.status, got.stdout, got.stderr)
		}
	})
}
