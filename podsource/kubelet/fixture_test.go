// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

// A fakeKubelet answers ListPods with the pods of these attachments, or with an error.
type fakeKubelet struct {
	mu    sync.Mutex
	all   []podsource.Attachment
	fault error
}

func (k *fakeKubelet) answer(context.Context) ([][]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var pods []*corev1.Pod
	for _, a := range k.all {
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Namespace == a.Pod.Namespace && p.Name == a.Pod.Name })
		if i < 0 {
			i, pods = len(pods), append(pods, running(a.Pod.Name))
			pods[i].Namespace = a.Pod.Namespace
		}
		pods[i].Status.PodIPs = append(pods[i].Status.PodIPs, corev1.PodIP{IP: a.IPs[0].String()})
	}
	return marshal(pods...), k.fault
}

// set returns a function that changes what kubelet answers.
func (k *fakeKubelet) set(change func()) func() {
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		change()
	}
}

// The hazards of gctest, with a server of the Pods API on a socket.
func TestSource(t *testing.T) {
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		k := new(fakeKubelet)
		return gctest.Fixture{
			Source:   served(t, k.answer),
			Networks: []string{podsource.EveryNetwork},
			Attach:   func(a podsource.Attachment) { k.set(func() { k.all = append(k.all, a) })() },
			Detach: func(a podsource.Attachment) {
				same := func(b podsource.Attachment) bool { return a.ContainerID == b.ContainerID && a.IfName == b.IfName }
				k.set(func() { k.all = slices.DeleteFunc(k.all, same) })()
			},
			Break:  k.set(func() { k.fault = status.Error(codes.Internal, "failed to marshal pod") }),
			Repair: k.set(func() { k.fault = nil }),
			Lose:   k.set(func() { k.fault = status.Error(codes.FailedPrecondition, "Kubelet is initializing") }),
			Reboot: k.set(func() { k.all = nil }),
		}
	})
	noGoroutineLeft(t)
}
