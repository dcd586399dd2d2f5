// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var equal = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0)}

// nameOnly reports whether an answer has nothing but the name of its source, as required
// beside an error.
func nameOnly(a podsource.Answer) bool {
	return cmp.Equal(podsource.Answer{Source: "kubelet"}, a, equal)
}

func TestPods(t *testing.T) {
	static := running("etcd-node1", "10.0.0.9")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "1"}
	static.Status.StartTime = nil // it has no status yet
	agent := running("agent", "192.0.2.1")
	agent.Spec.HostNetwork = true
	done := running("job", "10.0.0.3")
	done.Status.Phase = corev1.PodSucceeded
	ended := ago(time.Hour)
	done.Status.ContainerStatuses = []corev1.ContainerStatus{{
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ended}},
	}}
	// It has just been evicted. The status in the API server is an hour old.
	evicted := running("evicted")
	evicted.Status.Phase, evicted.Status.Reason = corev1.PodFailed, "Evicted"
	evicted.Status.ContainerStatuses = make([]corev1.ContainerStatus, 1)
	hourAgo := ago(time.Hour)
	evicted.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: &hourAgo}}

	socket := socketPath(t)
	serve(t, socket, list(t, running("web", "10.0.0.2", "fd00::2"), running("new"), static, agent, done, evicted))
	got, err := made(kubelet.New(socket, kubelet.Options{})).Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name string, start, end time.Time, ips ...string) podsource.Pod {
		p := podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID("uid-of-" + name),
			StartedAt: start, Finished: !end.IsZero(), FinishedAt: end}
		for _, ip := range ips {
			p.IPs = append(p.IPs, netip.MustParseAddr(ip))
		}
		return p
	}
	var never time.Time
	want := []podsource.Pod{
		pod("web", begun, never, "10.0.0.2", "fd00::2"),
		pod("new", begun, never),
		pod("etcd-node1", never, never, "10.0.0.9"),
		pod("agent", begun, never),
		pod("job", begun, ended.Time, "10.0.0.3"),
		pod("evicted", begun, never), // its end is unknown: its managed fields are about an earlier status
	}
	want[3].HostNetwork = true
	want[5].Finished = true
	all := podsource.Answer{Source: "kubelet", Pods: want, Networks: []string{podsource.EveryNetwork}}
	if diff := cmp.Diff(all, got, equal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNoPods(t *testing.T) {
	socket := socketPath(t)
	serve(t, socket, list(t))
	if got, err := made(kubelet.New(socket, kubelet.Options{})).Pods(t.Context()); len(got.Pods) != 0 || got.Authoritative || err != nil {
		t.Errorf("an empty list is no error of the source, the caller decides (R9): got %v, %v", got, err)
	}
}

func TestErrors(t *testing.T) {
	for _, row := range []struct {
		reason   string
		err      error
		want     error // one of the two kinds below, or nil for neither
		says     string
		fallback bool
	}{
		{reason: "it has just started", err: status.Error(codes.FailedPrecondition, "Kubelet is initializing"),
			want: podsource.ErrIncomplete, says: "Kubelet is initializing"},
		{reason: "it is shutting down", err: status.Error(codes.Unavailable, "draining"), want: podsource.ErrIncomplete, says: "restarted?"},
		{reason: "too many callers", err: status.Error(codes.ResourceExhausted, "rejected by rate limit"), want: podsource.ErrIncomplete, says: "rate of calls"},
		{reason: "the server's clock is faster", err: status.Error(codes.DeadlineExceeded, "late"), want: podsource.ErrIncomplete, says: "hang?"},
		{reason: "this version does not have the method", err: status.Error(codes.Unimplemented, "method ListPods not implemented"),
			want: podsource.ErrNotHere, says: "does not serve the Pods API", fallback: true},
		{reason: "a pod that it can't marshal", err: status.Error(codes.Internal, "failed to marshal pod"), says: "failed to marshal pod"},
		{reason: "permission denied", err: status.Error(codes.PermissionDenied, "no"), says: "PermissionDenied"},
		{reason: "another error", err: errors.New("disk failure"), says: "disk failure"},
	} {
		socket := socketPath(t)
		serve(t, socket, fails(row.err))
		source := made(kubelet.New(socket, kubelet.Options{}))
		got, err := source.Pods(t.Context())
		if !nameOnly(got) || err == nil {
			t.Errorf("%s: got %v, %v", row.reason, got, err)
			continue
		}
		for _, kind := range []error{podsource.ErrIncomplete, podsource.ErrNotHere} {
			if got, want := errors.Is(err, kind), row.want == kind; got != want {
				t.Errorf("%s: %q is %v: %t, want %t", row.reason, err, kind, got, want)
			}
		}
		if !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), socket) {
			t.Errorf("%s: %q lacks %q or the socket", row.reason, err, row.says)
		}
		got, err = podsource.Fallback(source, podsource.Static{{UID: "1"}}).Pods(t.Context())
		if asked := err == nil && len(got.Pods) == 1; asked != row.fallback {
			t.Errorf("%s: the second choice was asked: %t, want %t (%v)", row.reason, asked, row.fallback, err)
		}
	}
}

// TestNotServed: Fallback uses the second source on a node without the Pods API.
func TestNotServed(t *testing.T) {
	missing := socketPath(t)
	other := socketPath(t)
	serveGRPC(t, other, func(*grpc.Server) {})
	for _, row := range []struct{ reason, socket string }{
		{"an older kubelet: no socket", missing},
		{"an older kubelet: no directory for the socket", missing + "/s"},
		{"a gRPC server without the service", other},
	} {
		source := made(kubelet.New(row.socket, kubelet.Options{}))
		if _, err := source.Pods(t.Context()); !errors.Is(err, podsource.ErrNotHere) || errors.Is(err, podsource.ErrIncomplete) {
			t.Errorf("%s: got %v, want %v", row.reason, err, podsource.ErrNotHere)
		}
		got, err := podsource.Fallback(source, podsource.Static{{UID: "1"}}).Pods(t.Context())
		if err != nil || len(got.Pods) != 1 {
			t.Errorf("%s: the second choice was not asked: %v", row.reason, err)
		}
	}
}

// TestRestart: a source survives a restart of kubelet.
func TestRestart(t *testing.T) {
	socket := socketPath(t)
	source := made(kubelet.New(socket, kubelet.Options{}))
	ask := func(reason string, want error) {
		t.Helper()
		got, err := source.Pods(t.Context())
		if !errors.Is(err, want) || (err == nil) != (len(got.Pods) == 1) {
			t.Errorf("%s: got %v, %v, want error %v", reason, got, err, want)
		}
	}
	ask("before its first start", podsource.ErrNotHere)
	stop := serve(t, socket, list(t, running("web", "10.0.0.2")))
	ask("up", nil)
	stop()
	ask("killed: the file exists, and nothing listens", podsource.ErrIncomplete)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}

	began := make(chan struct{})
	stop = serve(t, socket, hangs(began))
	go func() {
		<-began
		stop()
	}()
	ask("killed during a call", podsource.ErrIncomplete)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}

	serve(t, socket, list(t, running("web", "10.0.0.2")))
	ask("up again", nil)
}

// TestClosedAtOnce: a server accepts a connection, and closes it.
func TestClosedAtOnce(t *testing.T) {
	socket := socketPath(t)
	l := listen(t, socket)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close() //nolint:errcheck // the server does nothing else
		}
	}()
	if _, err := made(kubelet.New(socket, kubelet.Options{})).Pods(t.Context()); !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("got %v, want %v", err, podsource.ErrIncomplete)
	}
}

// TestGoAway: a server shuts down before it accepts the call. gRPC dials again, but there is
// only one connection.
func TestGoAway(t *testing.T) {
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0} // HTTP/2 frames, RFC 9113: SETTINGS, and
	goAway := append([]byte{0, 0, 8, 7, 0}, make([]byte, 12)...)
	socket := socketPath(t)
	l := listen(t, socket)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := c.Write(append(settings, goAway...)); err == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	_, err := made(kubelet.New(socket, kubelet.Options{})).Pods(t.Context())
	if !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "the connection was lost") {
		t.Errorf("got %v, want %v", err, podsource.ErrIncomplete)
	}
}

func TestLargeAnswer(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 1000 {
		pods = append(pods, big(running(fmt.Sprintf("pod-%d", i), fmt.Sprintf("10.0.%d.%d", i/250, 2+i%250))))
	}
	texts := marshal(t, pods...)
	bytes := 0
	for _, text := range texts {
		bytes += len(text)
	}
	t.Logf("%d pods of %d kB each, %d MB in all", len(texts), len(texts[0])/1000, bytes/1e6)
	if bytes < 5*4<<20 {
		t.Fatalf("an answer of %d bytes is not large", bytes)
	}
	socket := socketPath(t)
	serve(t, socket, func(context.Context) ([][]byte, error) { return texts, nil })

	got, err := made(kubelet.New(socket, kubelet.Options{})).Pods(t.Context())
	if err != nil || len(got.Pods) != len(pods) {
		t.Fatalf("got %d pods and error %v", len(got.Pods), err)
	}
	if want := netip.MustParseAddr("10.0.3.251"); !cmp.Equal(got.Pods[999].IPs, []netip.Addr{want}, equal) {
		t.Errorf("the last pod has %v, want %v", got.Pods[999].IPs, want)
	}

	_, err = made(kubelet.New(socket, kubelet.Options{MaxBytes: bytes})).Pods(t.Context())
	if err == nil || !strings.Contains(err.Error(), "raise Options.MaxBytes") || errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("got %v, want an error that names the option, and is not ErrIncomplete", err)
	}
}

// TestHanging: the context ends a call, wherever the server hangs.
func TestHanging(t *testing.T) {
	for _, row := range []struct {
		reason string
		serve  func(t *testing.T, socket string, began chan struct{})
	}{
		{"it never answers", func(t *testing.T, socket string, began chan struct{}) { serve(t, socket, hangs(began)) }},
		{"it accepts and does not reply", func(t *testing.T, socket string, began chan struct{}) {
			l := listen(t, socket)
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					t.Cleanup(func() { c.Close() })
					began <- struct{}{}
				}
			}()
		}},
		{"it does not accept", func(t *testing.T, socket string, began chan struct{}) {
			l := listen(t, socket)
			t.Cleanup(func() { l.Close() })
			began <- struct{}{}
		}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			socket, began := socketPath(t), make(chan struct{}, 1)
			row.serve(t, socket, began)

			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-began; cancel() }()
			_, err := made(kubelet.New(socket, kubelet.Options{})).Pods(ctx)
			if !errors.Is(err, context.Canceled) || errors.Is(err, podsource.ErrIncomplete) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		})
		noGoroutineLeft(t)
	}
}

func TestNothingIsLeft(t *testing.T) {
	t.Run("20 calls", func(t *testing.T) {
		socket := socketPath(t)
		serve(t, socket, list(t, running("web", "10.0.0.2")))
		source := made(kubelet.New(socket, kubelet.Options{}))
		for range 20 {
			if _, err := source.Pods(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
	noGoroutineLeft(t)
}

// R2: one pod that can't be read makes the whole answer an error.
//
// Guard: [decode] and [parseResponse] leave out no pod.
func TestHazard07PodThatCantBeRead(t *testing.T) {
	good := marshal(t, running("web", "10.0.0.2"))[0]
	notAnAddress := running("db", "10.0.0.300")
	for _, row := range []struct {
		reason string
		text   []byte
		want   string
	}{
		{"no bytes, which decode to a pod without a name", nil, "pod 2 of 3: "},
		{"no protobuf", []byte("web"), "pod 2 of 3 can't be read: "},
		{"truncated", good[:len(good)-1], "pod 2 of 3"},
		{"a pod with an invalid address", marshal(t, notAnAddress)[0], "pod 2 of 3: pod default/db (UID uid-of-db): "},
	} {
		socket := socketPath(t)
		serve(t, socket, func(context.Context) ([][]byte, error) { return [][]byte{good, row.text, good}, nil })
		got, err := made(kubelet.New(socket, kubelet.Options{})).Pods(t.Context())
		if !nameOnly(got) || err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %d pods, and error %v, want one that says %q", row.reason, len(got.Pods), err, row.want)
		}
	}
}
