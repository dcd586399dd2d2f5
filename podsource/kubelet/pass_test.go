// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reserved makes a network's directory in which each address has been reserved for an hour,
// by a container ID of 64 hexadecimal digits.
func reserved(t *testing.T, addresses ...string) (*hostlocal.Store, string) {
	t.Helper()
	dataDir := t.TempDir()
	dir := filepath.Join(dataDir, "podnet")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for i, ip := range addresses {
		file := filepath.Join(dir, ip)
		if err := os.WriteFile(file, fmt.Appendf(nil, "%064x\r\neth0", i+1), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
	}
	return hostlocal.New(dataDir), dir
}

func reconciler(t *testing.T, store *hostlocal.Store, source podsource.Source) *gc.Reconciler {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	r, err := gc.New(store, []string{"podnet"}, source, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// R2: after any error of kubelet nothing is released. When kubelet answers, the leak is
// released, and nothing else.
//
// Guard: [Source.Pods] returns a complete list or an error.
func TestHazard06PassesWithARealSocket(t *testing.T) {
	store, dir := reserved(t, "10.0.0.2", "10.0.0.3")
	live, leaked := filepath.Join(dir, "10.0.0.2"), filepath.Join(dir, "10.0.0.3")
	web := running("web", "10.0.0.2")
	garbage := func(context.Context) ([][]byte, error) { return append(marshal(t, web), []byte("?")), nil }
	began := make(chan struct{}, 1)
	const hanging = "it hangs"
	for _, row := range []struct {
		reason string
		answer answer
		want   error // nil for any
	}{
		{"no socket", nil, gc.ErrRefused},
		{"it has just started", fails(status.Error(codes.FailedPrecondition, "Kubelet is initializing")), podsource.ErrIncomplete},
		{"it does not serve the Pods API", fails(status.Error(codes.Unimplemented, "?")), gc.ErrRefused},
		{hanging, hangs(began), context.Canceled},
		{"one pod can't be read", garbage, nil},
		{"no pod at all", list(t), gc.ErrNoPods},
	} {
		socket := socketPath(t)
		if row.answer != nil {
			serve(t, socket, row.answer)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if row.reason == hanging {
			go func() { <-began; cancel() }()
		}
		report, err := reconciler(t, store, made(kubelet.New(socket, kubelet.Options{}))).Reconcile(ctx)
		cancel()
		if err == nil || row.want != nil && !errors.Is(err, row.want) {
			t.Errorf("%s: got error %v, want %v", row.reason, err, row.want)
		}
		if report.Counts()[gc.Released] != 0 || !exists(t, live) || !exists(t, leaked) {
			t.Fatalf("%s: something was released", row.reason)
		}
	}

	socket := socketPath(t)
	serve(t, socket, list(t, web))
	report, err := reconciler(t, store, made(kubelet.New(socket, kubelet.Options{}))).Reconcile(t.Context())
	if err != nil || report.Counts()[gc.Released] != 1 || !exists(t, live) || exists(t, leaked) {
		t.Errorf("ready: got %v and error %v; the live address is reserved: %t, the leak: %t",
			report.Counts(), err, exists(t, live), exists(t, leaked))
	}
}

// The hook waits until kubelet knows all its pods.
func TestStartupWaitsForKubelet(t *testing.T) {
	store, dir := reserved(t, "10.0.0.2", "10.0.0.3")
	socket := socketPath(t)
	asked := 0
	serve(t, socket, func(context.Context) ([][]byte, error) {
		if asked++; asked < 3 {
			return nil, status.Error(codes.FailedPrecondition, "Kubelet is initializing")
		}
		return marshal(t, running("web", "10.0.0.2")), nil
	})
	report, err := reconciler(t, store, made(kubelet.New(socket, kubelet.Options{}))).AtStartup(t.Context())
	if err != nil || report.Counts()[gc.Released] != 1 {
		t.Errorf("got %v and error %v", report.Counts(), err)
	}
	if !exists(t, filepath.Join(dir, "10.0.0.2")) || exists(t, filepath.Join(dir, "10.0.0.3")) {
		t.Error("the leak is still reserved, or the live address is not")
	}
}
