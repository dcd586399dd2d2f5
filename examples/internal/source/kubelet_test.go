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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// onePod is a kubelet with one pod.
type onePod struct {
	podsv1alpha1.UnimplementedPodsServer
}

func (onePod) ListPods(context.Context, *podsv1alpha1.ListPodsRequest) (*podsv1alpha1.ListPodsResponse, error) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.2"},
	}
	text, err := pod.Marshal()
	return &podsv1alpha1.ListPodsResponse{Pods: [][]byte{text}}, err
}

func TestKubelet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(g, onePod{})
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	s, err := Parse([]string{"kubelet:" + socket, "file:-"}, Env{Stdin: strings.NewReader(`[{"uid":"1","containerIDs":["c1"]}]`)})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := podsOf(t, s)
	if err != nil || len(pods) != 2 || pods[0].Name != "web-1" || len(pods[1].ContainerIDs) != 1 {
		t.Errorf("beside a file: got %v and error %v", pods, err)
	}

	missing := "kubelet:" + socket + "-not"
	s, err = Parse([]string{missing}, Env{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := podsOf(t, s); !errors.Is(err, podsource.ErrNotHere) || !strings.Contains(err.Error(), socket+"-not") {
		t.Errorf("error %v does not say that nothing is there, and where", err)
	}
	if _, err := Parse([]string{"kubelet"}, Env{}); err != nil {
		t.Errorf("kubelet's own socket needs no argument: %v", err)
	}
}
