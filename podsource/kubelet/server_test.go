// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// made returns s, and panics on an error.
func made(s *kubelet.Source, err error) *kubelet.Source {
	if err != nil {
		panic(err)
	}
	return s
}

// An answer answers ListPods.
type answer func(context.Context) ([][]byte, error)

// A server serves kubelet's Pods API with an answer of the test. The generated code of
// k8s.io/kubelet is used in examples/e2e/kubelet.
type server struct{ answer answer }

// A wire is a codec for messages that are encoded already.
type wire struct{}

func (wire) Name() string                  { return "proto" }
func (wire) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (wire) Unmarshal(message []byte, v any) error {
	*v.(*[]byte) = slices.Clone(message)
	return nil
}

func (s server) listPods(ctx context.Context, read func(any) error) (any, error) {
	var request []byte
	if err := read(&request); err != nil {
		return nil, err
	}
	if len(request) > 0 {
		return nil, status.Errorf(codes.InvalidArgument, "a request of %d bytes; it has no field", len(request))
	}
	pods, err := s.answer(ctx)
	if err != nil {
		return nil, err
	}
	response := []byte{}
	for _, pod := range pods {
		response = protowire.AppendTag(response, 1, protowire.BytesType)
		response = protowire.AppendBytes(response, pod)
	}
	return response, nil
}

// pods describes the service, like the generated code of k8s.io/kubelet.
var pods = grpc.ServiceDesc{
	ServiceName: "v1alpha1.Pods",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "ListPods",
		Handler: func(srv any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return srv.(server).listPods(ctx, read)
		},
	}},
}

// serve serves a on the socket until the end of the test, or a call of stop. The file of the
// socket stays, as after a kubelet that was killed.
func serve(t testing.TB, socket string, a answer) (stop func()) {
	t.Helper()
	return serveGRPC(t, socket, func(g *grpc.Server) { g.RegisterService(&pods, server{answer: a}) })
}

func serveGRPC(t testing.TB, socket string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	g := grpc.NewServer(grpc.ForceServerCodec(wire{}))
	register(g)
	l := listen(t, socket)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		g.Stop()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func listen(t testing.TB, socket string) net.Listener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	return l
}

// socketPath returns a path that is short enough for a socket.
func socketPath(t testing.TB) string { return filepath.Join(t.TempDir(), "s") }

// list returns an answer with these pods.
func list(t testing.TB, pods ...*corev1.Pod) answer {
	texts := marshal(t, pods...)
	return func(context.Context) ([][]byte, error) { return texts, nil }
}

func marshal(t testing.TB, pods ...*corev1.Pod) (texts [][]byte) {
	t.Helper()
	for _, p := range pods {
		text, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return texts
}

func fails(err error) answer { return func(context.Context) ([][]byte, error) { return nil, err } }

// hangs returns an answer that sends on began, and returns when the call is cancelled.
func hangs(began chan<- struct{}) answer {
	return func(ctx context.Context) ([][]byte, error) {
		began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

// begun is the start of the pods.
var begun = time.Now().Add(-72 * time.Hour).Truncate(time.Second)

func ago(d time.Duration) metav1.Time {
	return metav1.Time{Time: time.Now().Add(-d).Truncate(time.Second)}
}

// running returns a running pod with these addresses.
func running(name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/web:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: begun}},
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// big gives a pod a size of about 30 kB, like one with the environment of a service mesh.
func big(p *corev1.Pod) *corev1.Pod {
	for i := range 200 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env,
			corev1.EnvVar{Name: fmt.Sprintf("SERVICE_%03d_ADDRESS", i), Value: strings.Repeat("x", 120)})
	}
	return p
}

// noGoroutineLeft waits until all goroutines of clients have ended. This is soon after a call,
// which closes its connection before it returns.
func noGoroutineLeft(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stacks := make([]byte, 1<<20)
	for {
		all := string(stacks[:runtime.Stack(stacks, true)])
		if !strings.Contains(all, "google.golang.org/grpc") && !strings.Contains(all, "podsource/kubelet.(*Source)") {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("goroutines are left:\n%s", all)
		case <-time.After(time.Millisecond):
		}
	}
}
