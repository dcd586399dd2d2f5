// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// staleSocket returns a socket file on which nothing listens, as a runtime leaves one that was
// killed.
func staleSocket(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// listen accepts connections on a socket, and calls do with each.
func listen(t testing.TB, do func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			do(conn)
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return path
}

func TestNoAnswer(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		reason, socket, says string
	}{
		{"no socket", filepath.Join(dir, "none"), "there is no socket"},
		{"no directory", filepath.Join(dir, "no", "directory"), "there is no socket"},
		{"a file instead of a directory", filepath.Join(file, "s"), "there is no socket"},
		{"a socket on which nothing listens", staleSocket(t), "nothing listens on it"},
		{"a file", file, "nothing listens on it"},
		{"a server that closes the connection", listen(t, func(c net.Conn) { _ = c.Close() }), "not ready"},
		{"a server with another protocol", listen(t, func(c net.Conn) {
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH\r\n"))
			_ = c.Close()
		}), "not ready"},
	} {
		unasked := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			t.Errorf("%s: the source was replaced, although the sandboxes of the runtime may run", row.reason)
			return nil, nil
		})
		got, err := podsource.Fallback(source(t, row.socket, cri.Options{}), unasked).Pods(t.Context())
		if len(got.Pods) != 0 || !errors.Is(err, podsource.ErrIncomplete) || errors.Is(err, podsource.ErrNotHere) ||
			!strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), row.socket) {
			t.Errorf("got %v, %v, want %v that says %q: %s", got, err, podsource.ErrIncomplete, row.says, row.reason)
		}
	}
}

// The context ends every call, also if the server never answers.
func TestHangingServer(t *testing.T) {
	web := sandbox("a1", "web", ready)
	for _, row := range []struct {
		reason string
		socket func(arrived func()) string
	}{
		{"it accepts and does not reply", func(arrived func()) string { return listen(t, func(net.Conn) { arrived() }) }},
		{"it does not list", func(arrived func()) string {
			return serve(t, &fakeRuntime{listing: func(ctx context.Context) error {
				arrived()
				<-ctx.Done()
				return ctx.Err()
			}}).socket
		}},
		{"it does not return a status", func(arrived func()) string {
			return serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web, web, web}, asked: func(ctx context.Context, _ string) error {
				arrived()
				<-ctx.Done()
				return ctx.Err()
			}}).socket
		}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := source(t, row.socket(cancel), cri.Options{WithStatus: true})
		if got, err := s.Pods(ctx); !cmp.Equal(got, nameOnly, equal) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, %v, want %v: %s", got, err, context.Canceled, row.reason)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	f := serve(t, &fakeRuntime{})
	if got, err := source(t, f.socket, cri.Options{}).Pods(ended); !cmp.Equal(got, nameOnly, equal) || !errors.Is(err, context.Canceled) || f.lists.Load() != 0 {
		t.Errorf("got %v, %v, and %d calls after the context had ended", got, err, f.lists.Load())
	}
}

// The end of the context ends a call (R13, hazard 64), and then no other runtime of a search is
// called.
func TestContextEndsInASearch(t *testing.T) {
	var second atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	among, err := cri.Among(cri.Options{}, listen(t, func(net.Conn) { cancel() }), listen(t, func(net.Conn) { second.Store(true) }))
	if err != nil {
		t.Fatal(err)
	}
	got, err := among.Pods(ctx)
	names := err != nil && strings.Contains(err.Error(), "container runtime at unix://")
	if !cmp.Equal(got, nameOnly, equal) || !errors.Is(err, context.Canceled) || !names {
		t.Errorf("got %v, %v", got, err)
	}
	if second.Load() {
		t.Error("the second runtime was called after the end of the context")
	}
}

// No goroutine and no descriptor is left after a call.
func TestNothingIsLeft(t *testing.T) {
	web := sandbox("a1", "web", ready)
	healthy := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web}, statuses: byID(statusOf(web, "10.0.0.1"))}).socket
	broken := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web}, asked: func(context.Context, string) error {
		return status.Error(codes.Internal, "broken")
	}}).socket
	ctx, cancel := context.WithCancel(t.Context())
	hanging := serve(t, &fakeRuntime{listing: func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}).socket
	stale := staleSocket(t)
	ask := func() {
		for _, socket := range []string{healthy, broken, stale} {
			_, _ = source(t, socket, cri.Options{WithStatus: true}).Pods(t.Context())
		}
		_, _ = source(t, hanging, cri.Options{}).Pods(ctx)
	}
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	for range 20 {
		ask()
	}
	// The servers notice the end of their connections a little later.
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		g, d := runtime.NumGoroutine(), openDescriptors(t)
		if g <= goroutines && d <= descriptors {
			return
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines and %d descriptors, there were %d and %d before\n%s",
				g, d, goroutines, descriptors, buf[:runtime.Stack(buf, true)])
		}
	}
}

// openDescriptors returns the number of open descriptors on Linux, and 0 elsewhere.
func openDescriptors(t *testing.T) int {
	if runtime.GOOS != "linux" {
		return 0
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
