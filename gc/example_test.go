// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// exampleNode makes a data dir with a network "podnet" and old reservations.
func exampleNode(owners map[string]string) (dataDir string) {
	dataDir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	if err := os.Mkdir(filepath.Join(dataDir, "podnet"), 0o755); err != nil {
		panic(err)
	}
	made := time.Now().Add(-time.Hour)
	for ip, owner := range owners {
		file := filepath.Join(dataDir, "podnet", ip)
		if err := os.WriteFile(file, []byte(owner+"\r\neth0"), 0o600); err != nil {
			panic(err)
		}
		if err := os.Chtimes(file, made, made); err != nil {
			panic(err)
		}
	}
	return dataDir
}

func ExampleReconciler_Reconcile() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": "sandbox1", "10.0.0.3": "sandbox2", "10.0.0.4": "sandbox3"})
	defer func() { _ = os.RemoveAll(dataDir) }()

	store := hostlocal.New(dataDir)
	source := podsource.Static{
		{ContainerIDs: []string{"sandbox1"}},                 // as a runtime knows a pod
		{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}, // as an API server does
	}
	reconciler, err := gc.New(store, []string{"podnet"}, source, gc.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := reconciler.Reconcile(context.Background())
	if err != nil {
		fmt.Println(err)
	}
	for _, e := range report.Reservations {
		fmt.Println(e.IP, e.Verdict, "-", e.Reason.Text())
	}
	// Output:
	// 10.0.0.2 in-use - its container belongs to a live pod
	// 10.0.0.3 released - no live pod had its container or its address
	// 10.0.0.4 in-use - a live pod has its address
}

// A source that fails at first costs the agent's start a moment, and no address.
func ExampleReconciler_AtStartup() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": "sandbox1", "10.0.0.3": "sandbox2"})
	defer func() { _ = os.RemoveAll(dataDir) }()

	store := hostlocal.New(dataDir)
	synced := false
	source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		if !synced {
			synced = true
			return nil, fmt.Errorf("pod cache: %w", podsource.ErrIncomplete)
		}
		return []podsource.Pod{{ContainerIDs: []string{"sandbox2"}}}, nil
	})
	reconciler, err := gc.New(store, []string{"podnet"}, source, gc.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := reconciler.AtStartup(context.Background())
	fmt.Println(report.Counts()[gc.Released], "released, error:", err)
	// Output:
	// 1 released, error: <nil>
}

// A dry run shows what would be released, before an agent is trusted with it. A
// source that names no pod is refused unless the caller asserts that this is normal.
func ExampleOptions_dryRun() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": "sandbox1"})
	defer func() { _ = os.RemoveAll(dataDir) }()

	store := hostlocal.New(dataDir)
	for _, source := range []podsource.Source{podsource.Static{}, podsource.AllowEmpty(podsource.Static{})} {
		reconciler, err := gc.New(store, []string{"podnet"}, source, gc.Options{DryRun: true})
		if err != nil {
			fmt.Println(err)
			return
		}
		report, err := reconciler.Reconcile(context.Background())
		fmt.Println(report.Reservations[0].Verdict, errors.Is(err, gc.ErrNoPods))
	}
	// Output:
	// failed true
	// leaked false
}
