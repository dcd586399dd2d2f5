// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// FuzzAnswer decodes a list, and a status for all of its sandboxes. The result must be an
// error, or have each sandbox and each address.
func FuzzAnswer(f *testing.F) {
	codec := encoding.GetCodecV2(proto.Name) // works for types of any generator
	add := func(list *runtimeapi.ListPodSandboxResponse, s *runtimeapi.PodSandboxStatusResponse) {
		a, err := codec.Marshal(list)
		if err != nil {
			f.Fatal(err)
		}
		b, err := codec.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Materialize(), b.Materialize())
	}
	web, job := sandbox("a1", "web", ready), sandbox("b1", "job", notReady)
	add(&runtimeapi.ListPodSandboxResponse{}, &runtimeapi.PodSandboxStatusResponse{})
	for _, status := range []*runtimeapi.PodSandboxStatus{
		statusOf(web), statusOf(web, "10.0.0.1", "fd00::1"), statusOf(job, "10.0.0.1"), inNodeNetwork(statusOf(web, "192.168.0.1")),
		statusOf(web, "10.0.0.256"), statusOf(web, "", "fd00::1"), statusOf(web, "fe80::1%eth0"),
	} {
		add(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{web, job, {Id: "c1"}}},
			&runtimeapi.PodSandboxStatusResponse{Status: status})
	}
	add(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{web, {}}}, &runtimeapi.PodSandboxStatusResponse{})
	f.Add([]byte{0x0a, 0xff}, []byte("\x0a\x02\x0a\x80"))

	f.Fuzz(func(t *testing.T, listBytes, statusBytes []byte) {
		var list runtimeapi.ListPodSandboxResponse
		var one runtimeapi.PodSandboxStatusResponse
		read := func(message []byte, into any) error {
			return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, into)
		}
		if read(listBytes, &list) != nil || read(statusBytes, &one) != nil {
			return // as gRPC would
		}
		items := list.GetItems()
		statuses := make([]*runtimeapi.PodSandboxStatus, len(items))
		for i := range statuses {
			statuses[i] = one.GetStatus()
		}
		pods, err := cri.PodsOf(items, statuses)
		if err != nil {
			if pods != nil {
				t.Errorf("%d pods beside an error", len(pods))
			}
			return
		}
		if len(pods) != len(items) {
			t.Fatalf("%d pods of %d sandboxes", len(pods), len(items))
		}
		addresses := len(one.GetStatus().GetNetwork().GetAdditionalIps())
		if one.GetStatus().GetNetwork().GetIp() != "" {
			addresses++
		}
		for i, p := range pods {
			if len(p.ContainerIDs) != 1 || p.ContainerIDs[0] == "" || p.ContainerIDs[0] != items[i].GetId() {
				t.Errorf("sandbox %q became %q", items[i].GetId(), p.ContainerIDs)
			}
			// All have the same state, so no address is dropped.
			if len(p.IPs) != addresses {
				t.Errorf("%d addresses of %d", len(p.IPs), addresses)
			}
			for _, ip := range p.IPs {
				if !ip.IsValid() {
					t.Error("an invalid address")
				}
			}
		}
	})
}
