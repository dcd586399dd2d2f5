// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"fmt"
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
		if len(got.Pods) != 0 || !errors.Is(err, podsource.ErrIncomplete) ||
			!strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), row.socket) {
			t.Errorf("got %v, %v, want %v that says %q: %s", got, err, podsource.ErrIncomplete, row.says, row.reason)
		}
	}
}

// The end of the context ends every call (R13, hazard 64), also if the server never answers. Then no
// other runtime of a search is called.
func TestHangingServer(t *testing.T) {
	for _, row := range []struct{ reason, call string }{ // what does not return
		{"it accepts and does not reply", ""}, {"it does not list its sandboxes", "sandboxes"},
		{"it does not list its containers", "containers"}, {"it does not return a status", "a1"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox("a1", "web", ready)}, called: func(ctx context.Context, of string) error {
			if of == row.call {
				cancel()
				<-ctx.Done()
			}
			return ctx.Err()
		}}
		if row.call == "" {
			f.socket = listen(t, func(net.Conn) { cancel() })
		} else {
			serve(t, f)
		}
		var second atomic.Bool
		s, err := cri.Among(cri.Options{WithStatus: true}, f.socket, listen(t, func(net.Conn) { second.Store(true) }))
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Pods(ctx)
		names := strings.Contains(fmt.Sprint(err), "container runtime at unix://"+f.socket+": ")
		if !cmp.Equal(got, nameOnly, equal) || !errors.Is(err, context.Canceled) || !names || second.Load() {
			t.Errorf("got %v, %v, want %v; the second runtime was called: %t: %s", got, err, context.Canceled, second.Load(), row.reason)
		}
	}
}

// No goroutine and no connection is left after a call. Each connection has goroutines in its server.
func TestNothingIsLeft(t *testing.T) {
	web := sandbox("a1", "web", ready)
	healthy := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web}, statuses: byID(statusOf(web, "10.0.0.1"))}).socket
	broken := serve(t, &fakeRuntime{called: failing("containers", status.Error(codes.Internal, "broken"))}).socket
	ctx, cancel := context.WithCancel(t.Context())
	hanging := serve(t, &fakeRuntime{called: func(ctx context.Context, _ string) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}).socket
	before := runtime.NumGoroutine()
	for range 20 {
		for _, socket := range []string{healthy, broken} {
			_, _ = source(t, socket, cri.Options{WithStatus: true}).Pods(t.Context())
		}
		_, _ = source(t, hanging, cri.Options{}).Pods(ctx)
	}
	// The servers notice the end of their connections a little later.
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, there were %d before\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}
