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
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
)

// must returns s, and panics on an error.
func must[S any](s S, err error) S {
	if err != nil {
		panic(err)
	}
	return s
}

// made returns a source on a socket.
func made(socket string) *kubelet.Source { return must(kubelet.New(socket)) }

// served returns a source on a new socket, on which a is served until the end of the test.
func served(t testing.TB, a answer) *kubelet.Source {
	t.Helper()
	socket := socketPath(t)
	serve(t, socket, a)
	return made(socket)
}

// An answer answers ListPods.
type answer func(context.Context) ([][]byte, error)

// A wire is a codec for messages that are encoded already.
type wire struct{}

func (wire) Name() string                  { return "proto" }
func (wire) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (wire) Unmarshal(message []byte, v any) error {
	*v.(*[]byte) = slices.Clone(message)
	return nil
}

// serve serves a on the socket until the end of the test, or a call of stop. The file of the
// socket stays, as after a kubelet that was killed. The generated code of k8s.io/kubelet is used
// in examples/e2e/kubelet.
func serve(t testing.TB, socket string, a answer) (stop func()) {
	t.Helper()
	list := func(_ any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request []byte
		if err := read(&request); err != nil || len(request) > 0 {
			return nil, status.Errorf(codes.InvalidArgument, "a request of %d bytes, which has no field: %v", len(request), err)
		}
		pods, err := a(ctx)
		response := []byte{}
		for _, pod := range pods {
			response = protowire.AppendTag(response, 1, protowire.BytesType)
			response = protowire.AppendBytes(response, pod)
		}
		return response, err
	}
	return serveGRPC(t, socket, "v1alpha1.Pods", grpc.MethodDesc{MethodName: "ListPods", Handler: list})
}

func serveGRPC(t testing.TB, socket, service string, methods ...grpc.MethodDesc) (stop func()) {
	t.Helper()
	g := grpc.NewServer(grpc.ForceServerCodec(wire{}))
	g.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: methods}, nil)
	l := listen(t, socket)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l) // an error of the server is one of the source
	}()
	stop = func() { g.Stop(); <-done }
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
	t.Cleanup(func() { _ = l.Close() }) // nothing was written
	return l
}

// socketPath returns a path that is short enough for a socket.
func socketPath(t testing.TB) string { return filepath.Join(t.TempDir(), "s") }

// list returns an answer with these pods.
func list(pods ...*corev1.Pod) answer {
	return func(context.Context) ([][]byte, error) { return marshal(pods...), nil }
}

func marshal(pods ...*corev1.Pod) (texts [][]byte) {
	for _, p := range pods {
		texts = append(texts, must(p.Marshal()))
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
