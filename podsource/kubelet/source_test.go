// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var equal = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0)}

// TestPods: the pods are those of kubepod.Convert, but for the managed fields, which are about an earlier status: here
// an hour old, when the pod has just been evicted. A pod that can't be read whole is in the note, and no error.
func TestPods(t *testing.T) {
	evicted, hourAgo := running("evicted"), metav1.NewTime(time.Now().Add(-time.Hour))
	evicted.Status.Phase, evicted.Status.Reason = corev1.PodFailed, "Evicted"
	evicted.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: &hourAgo}}
	got, err := served(t, list(running("web", "10.0.0.2", "fd00::2"), evicted, running("spoiled", "10.0.0.3", "010.0.0.4"))).Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name string, ips ...string) podsource.Pod {
		p := podsource.Pod{UID: types.UID("uid-of-" + name), StartedAt: begun}
		p.Namespace, p.Name = "default", name
		for _, ip := range ips {
			p.IPs = append(p.IPs, netip.MustParseAddr(ip))
		}
		return p
	}
	want := podsource.Answer{Source: "kubelet", Networks: []string{podsource.EveryNetwork}, Note: got.Note,
		Pods: []podsource.Pod{pod("web", "10.0.0.2", "fd00::2"), pod("evicted"), pod("spoiled", "10.0.0.3")}}
	want.Pods[1].Finished, want.Pods[2].MoreIPs = true, true
	if diff := cmp.Diff(want, got, equal); diff != "" || !strings.Contains(got.Note, "default/spoiled") {
		t.Errorf("the note is %q (-want +got):\n%s", got.Note, diff)
	}
}

// TestErrors: no error comes with a list (R2).
//
// Guard: [decode] leaves out no pod.
func TestErrors(t *testing.T) {
	good := marshal(running("web", "10.0.0.2"))[0]
	beside := func(text []byte) answer {
		return func(context.Context) ([][]byte, error) { return [][]byte{good, text, good}, nil }
	}
	coded := func(code codes.Code, message string) answer { return fails(status.Error(code, message)) }
	incomplete, notHere := podsource.ErrIncomplete, podsource.ErrNotHere
	for _, row := range []struct {
		reason string
		answer answer
		want   error // one of two kinds, or nil for neither. Fallback uses the second source after one of them
		says   string
	}{
		{"it has just started", coded(codes.FailedPrecondition, "Kubelet is initializing"), incomplete, "Kubelet is initializing"},
		{"it is shutting down", coded(codes.Unavailable, "draining"), incomplete, "restarted"},
		{"too many callers", coded(codes.ResourceExhausted, "rejected by rate limit"), incomplete, "rate of calls"},
		{"the server's clock is faster", coded(codes.DeadlineExceeded, "late"), incomplete, "hang?"},
		{"this version does not have the method", coded(codes.Unimplemented, "ListPods"), notHere, "does not serve the Pods API"},
		{"permission denied", coded(codes.PermissionDenied, "no"), nil, "PermissionDenied"},
		{"another error", fails(errors.New("disk failure")), nil, "disk failure"},
		{"no bytes, which decode to a pod without a name (hazard 07)", beside(nil), nil, "pod 2 of 3: "},
		{"no protobuf (hazard 07)", beside([]byte("web")), nil, "pod 2 of 3 can't be read: "},
		{"truncated (hazard 07)", beside(good[:len(good)-1]), nil, "pod 2 of 3"},
	} {
		socket := socketPath(t)
		serve(t, socket, row.answer)
		source := made(socket)
		got, err := source.Pods(t.Context())
		if err == nil || !cmp.Equal(podsource.Answer{Source: "kubelet"}, got, equal) {
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
		if asked := err == nil && len(got.Pods) == 1; asked != (row.want == notHere) {
			t.Errorf("%s: the second choice was asked: %t, want %t (%v)", row.reason, asked, row.want == notHere, err)
		}
	}
}

// TestRestart: Fallback uses the second source on a node without the Pods API, and not while a kubelet that serves it
// restarts. A source survives that.
func TestRestart(t *testing.T) {
	socket, other := socketPath(t), socketPath(t)
	source := made(socket)
	ask := func(reason string, want error) {
		t.Helper()
		got, err := source.Pods(t.Context())
		if !errors.Is(err, want) || (err == nil) != (len(got.Pods) == 1) {
			t.Errorf("%s: got %v, %v, want error %v", reason, got, err, want)
		}
	}
	serveGRPC(t, other, "another")
	for _, notServed := range []string{socket, socket + "/s", other} { // no socket, no directory, and no service
		got, err := podsource.Fallback(made(notServed), podsource.Static{{UID: "1"}}).Pods(t.Context())
		if err != nil || len(got.Pods) != 1 {
			t.Errorf("%s: the second choice was not asked: %v", notServed, err)
		}
	}
	stop := serve(t, socket, list(running("web", "10.0.0.2")))
	ask("up", nil)
	stop()
	ask("killed: the file exists, and nothing listens", podsource.ErrIncomplete)
	must(0, os.Remove(socket))
	began := make(chan struct{})
	stop = serve(t, socket, hangs(began))
	go func() {
		<-began
		stop()
	}()
	ask("killed during a call", podsource.ErrIncomplete)
	must(0, os.Remove(socket))
	serve(t, socket, list(running("web", "10.0.0.2")))
	ask("up again", nil)
}

// TestLostConnection: a server accepts a connection, and closes it, or shuts down before it accepts the call. gRPC dials
// again, but there is only one connection.
func TestLostConnection(t *testing.T) {
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0} // HTTP/2 frames, RFC 9113: SETTINGS, and
	goAway := append([]byte{0, 0, 8, 7, 0}, make([]byte, 12)...)
	for _, first := range [][]byte{nil, append(settings, goAway...)} {
		socket := socketPath(t)
		l, done := listen(t, socket), make(chan struct{})
		go func() {
			defer close(done)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := c.Write(first); err == nil && first != nil {
				_, _ = io.Copy(io.Discard, c)
			}
		}()
		_, err := made(socket).Pods(t.Context())
		if !errors.Is(err, podsource.ErrIncomplete) {
			t.Errorf("after %v: got %v, want %v", first, err, podsource.ErrIncomplete)
		}
		_ = l.Close() // nothing was written
		<-done
	}
}

// TestLargeAnswer: gRPC's own limit of 4 MB does not count.
func TestLargeAnswer(t *testing.T) {
	texts := slices.Repeat(marshal(big(running("web", "10.0.0.2"))), 1000) // of about 30 kB each
	socket := socketPath(t)
	serve(t, socket, func(context.Context) ([][]byte, error) { return texts, nil })
	got, err := made(socket).Pods(t.Context())
	if err != nil || len(got.Pods) != 1000 {
		t.Errorf("got %d pods and error %v", len(got.Pods), err)
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
			go func() {
				if c, err := l.Accept(); err == nil {
					t.Cleanup(func() { c.Close() })
					began <- struct{}{}
				}
			}()
		}},
		{"it does not accept", func(t *testing.T, socket string, began chan struct{}) {
			listen(t, socket)
			began <- struct{}{}
		}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			socket, began := socketPath(t), make(chan struct{}, 1)
			row.serve(t, socket, began)

			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-began; cancel() }()
			_, err := made(socket).Pods(ctx)
			if !errors.Is(err, context.Canceled) || errors.Is(err, podsource.ErrIncomplete) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		})
		noGoroutineLeft(t)
	}
}

// TestDependencies: every agent with this package links its dependencies.
func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	for _, prefix := range []string{
		"k8s.io/client-go", // an agent that asks only kubelet needs no client of the API server
		"k8s.io/kubernetes", "k8s.io/apiserver", "k8s.io/component-base",
		"github.com/hostlocal-gc/hostlocal-gc/gc", "github.com/hostlocal-gc/hostlocal-gc/hostlocal",
	} {
		if slices.ContainsFunc(deps, func(dep string) bool { return dep == prefix || strings.HasPrefix(dep, prefix+"/") }) {
			t.Errorf("%s is imported", prefix)
		}
	}
	if len(deps) < 100 {
		t.Errorf("too few dependencies: %v", deps)
	}
}
