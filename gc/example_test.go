// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"k8s.io/apimachinery/pkg/types"
)

// IDs of sandboxes are 64 hexadecimal digits, as the runtimes of Kubernetes make them.
var sandbox1, sandbox2, sandbox3 = strings.Repeat("5c7b9a1e", 8), strings.Repeat("ee3b0f0c", 8), strings.Repeat("6ba7b810", 8)

// must is for what can't fail here.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// exampleNode makes a data directory with a network "podnet" and old reservations.
func exampleNode(owners map[string]string) (dataDir string) {
	dataDir = must(os.MkdirTemp("", "example"))
	err := os.Mkdir(filepath.Join(dataDir, "podnet"), 0o755)
	made := time.Now().Add(-time.Hour)
	for ip, owner := range owners {
		file := filepath.Join(dataDir, "podnet", ip)
		err = errors.Join(err, os.WriteFile(file, []byte(owner+"\r\neth0"), 0o600), os.Chtimes(file, made, made))
	}
	return must(dataDir, err)
}

func ExampleReconciler_Reconcile() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": sandbox2, "10.0.0.4": sandbox3})
	defer func() { _ = os.RemoveAll(dataDir) }()

	store := hostlocal.New(dataDir)
	source := podsource.Static{
		{ContainerIDs: []string{sandbox1}},                   // a pod as a runtime lists it
		{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}, // and as an API server does
	}
	reconciler, err := gc.New(store, []string{"podnet"}, source, gc.Options{})
	if err != nil {
		panic(err)
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

// The errors of a pass, the most specific first. An agent goes on after each of them: leaks
// that were not released are still reserved, and the next pass tries again.
func ExampleReconciler_Reconcile_errors() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1})
	defer func() { _ = os.RemoveAll(dataDir) }()

	hangs := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	reconciler := must(gc.New(hostlocal.New(dataDir), []string{"podnet"}, hangs, gc.Options{SourceTimeout: 200 * time.Millisecond}))
	report, err := reconciler.Reconcile(context.Background())
	switch {
	case errors.Is(err, gc.ErrSourceTimeout):
		fmt.Println("a source does not answer")
	case errors.Is(err, gc.ErrNoPods):
		fmt.Println("a source reports no pod at all, and does not declare that there is none")
	case errors.Is(err, gc.ErrRefused):
		fmt.Println("a source failed, or its answer is too old")
	case errors.Is(err, hostlocal.ErrLocked):
		fmt.Println("another process held the plugin's lock")
	}
	fmt.Println(errors.Is(err, gc.ErrRefused), errors.Is(report.Err, gc.ErrRefused), report.Reservations[0].Reason)
	// Output:
	// a source does not answer
	// true true source-failed
}

// Start runs for the life of an agent: the start-up hook, and then a pass at each interval.
func ExampleReconciler_Start() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": sandbox2})
	defer func() { _ = os.RemoveAll(dataDir) }()

	ctx, stop := context.WithCancel(context.Background())
	reconciler := must(gc.New(hostlocal.New(dataDir), []string{"podnet"}, podsource.Static{{ContainerIDs: []string{sandbox2}}}, gc.Options{
		OnReport: func(report gc.Report, err error) {
			fmt.Println(report.Counts()[gc.Released], "released, error:", err)
			stop() // here the agent ends after the first pass
		},
	}))
	reconciler.Trigger() // asks for a pass now: for an ADD that found no free address, from any goroutine
	fmt.Println(reconciler.Start(ctx))
	// Output:
	// 1 released, error: <nil>
	// <nil>
}

// AtStartup tries again after an error of the source.
func ExampleReconciler_AtStartup() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": sandbox2})
	defer func() { _ = os.RemoveAll(dataDir) }()

	store := hostlocal.New(dataDir)
	synced := false
	source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		if !synced {
			synced = true
			return nil, fmt.Errorf("pod cache: %w", podsource.ErrIncomplete)
		}
		return []podsource.Pod{{ContainerIDs: []string{sandbox2}}}, nil
	})
	reconciler := must(gc.New(store, []string{"podnet"}, source, gc.Options{}))
	report, err := reconciler.AtStartup(context.Background())
	fmt.Println(report.Counts()[gc.Released], "released, error:", err)
	// Output:
	// 1 released, error: <nil>
}

// An agent that sets every option. New reports all values that are out of bounds at once.
func ExampleOptions() {
	opts := gc.Options{
		RuntimeRequestTimeout: 4 * time.Minute,                                     // as in kubelet's configuration
		MinAge:                15 * time.Minute,                                    // a younger reservation is kept
		StartingFor:           30 * time.Minute,                                    // how long a starting pod delays a release
		AllowForeign:          []string{"default-"},                                // nerdctl's containers, which no source here lists
		Only:                  func(r *hostlocal.Reservation) bool { return true }, // which leaks may be released
		SourceTimeout:         20 * time.Second,
		StartupTimeout:        time.Minute,
		Interval:              5 * time.Minute,
		Logger:                logr.Discard(),
	}
	_, err := gc.New(hostlocal.New(""), []string{"podnet"}, podsource.Static{}, opts)
	fmt.Println(err)

	opts.Interval, opts.MinAge = time.Millisecond, -1
	_, err = gc.New(hostlocal.New(""), []string{"podnet"}, podsource.Static{}, opts)
	fmt.Println(err)
	// Output:
	// <nil>
	// making a reconciler: MinAge is -1ns; it must be from 1s to 720h0m0s
	// Interval is 1ms; it must be from 1s to 24h0m0s
}

// All networks of the node, with a source that lists sandboxes. A container of another
// runtime is foreign, unless the caller allows its prefix. A dry run releases nothing.
func ExampleAllNetworks() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": "default-" + sandbox1})
	defer func() { _ = os.RemoveAll(dataDir) }()

	source := podsource.Static{{ContainerIDs: []string{sandbox2}}}
	for _, prefixes := range [][]string{nil, {"default-"}} {
		opts := gc.Options{AllowForeign: prefixes, DryRun: true}
		reconciler := must(gc.New(hostlocal.New(dataDir), []string{gc.AllNetworks}, source, opts))
		report, err := reconciler.Reconcile(context.Background())
		for _, e := range report.Reservations {
			fmt.Println(e.Network, e.IP, e.Verdict, e.Reason)
		}
		fmt.Println(err)
	}
	// Output:
	// podnet 10.0.0.2 foreign foreign-owner
	// podnet 10.0.0.3 foreign foreign-owner
	// <nil>
	// podnet 10.0.0.2 foreign foreign-owner
	// podnet 10.0.0.3 leaked unowned
	// <nil>
}

// What an agent logs or shows about a pass.
func ExampleReport() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": sandbox2})
	defer func() { _ = os.RemoveAll(dataDir) }()

	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return podsource.Answer{Source: "runtime", Networks: []string{podsource.EveryNetwork}, Note: "one sandbox has no name", Pods: []podsource.Pod{
			{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "1", ContainerIDs: []string{sandbox1}, Origin: "sandbox"},
		}}, nil
	})
	reconciler := must(gc.New(hostlocal.New(dataDir), []string{"podnet", "storage"}, source, gc.Options{}))
	report, err := reconciler.Reconcile(context.Background())
	fmt.Println("missing:", len(report.Missing), "in a directory that is there:", !report.DataDirMissing && report.DataDir == dataDir, err)
	for _, s := range report.Sources {
		fmt.Printf("source %s has %d entries, error %q, note %q\n", s.Name, s.Entries, s.Error, s.Note)
		fmt.Println("true during the call:", s.AsOf.IsZero() && s.Took <= report.Duration)
	}
	fmt.Println("calls of the sources:", report.Looks)
	fmt.Println("an ADD may have waited, at most for as long as the lock was held:", report.LongestHold <= report.LockHeld)
	fmt.Println("another pass may find more, at a time after this one:", report.NextCheck.After(report.Started))
	for _, e := range report.Reservations {
		if e.Pod != nil {
			fmt.Println(e.Reservation.IP, e.Verdict, "by", e.Pod.Namespace, e.Pod.Name, e.Pod.UID, "in", e.Pod.From)
		}
	}
	// Output:
	// missing: 1 in a directory that is there: true <nil>
	// source runtime has 1 entries, error "", note "one sandbox has no name"
	// true during the call: true
	// calls of the sources: 1
	// an ADD may have waited, at most for as long as the lock was held: true
	// another pass may find more, at a time after this one: false
	// 10.0.0.2 in-use by default web 1 in runtime: sandbox
}

// Addresses of pods without a reservation, and an address that two pods have.
func ExampleReport_conflicts() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1})
	defer func() { _ = os.RemoveAll(dataDir) }()

	pod := func(name, ip string) podsource.Pod {
		return podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, IPs: []netip.Addr{netip.MustParseAddr(ip)}}
	}
	source := podsource.Static{pod("web", "10.0.0.2"), pod("db", "10.0.0.2"), pod("cache", "10.0.0.7"), pod("proxy", "192.168.0.9")}
	reconciler := must(gc.New(hostlocal.New(dataDir), []string{"podnet"}, source, gc.Options{}))
	report, err := reconciler.Reconcile(context.Background())
	fmt.Println(report.Reservations[0].Reason, err)
	for _, d := range report.Duplicates {
		fmt.Println(d.IP, "is claimed by", d.Pods)
	}
	ranges := iprange.Set{{First: netip.MustParseAddr("10.0.0.2"), Last: netip.MustParseAddr("10.0.0.254")}} // see package cniconf
	for _, u := range report.Unreserved {
		fmt.Println(u.IP, "of", u.Pods[0], "has no reservation; host-local may give it to another pod:", u.AtRisk(ranges))
	}
	// Output:
	// two-pods <nil>
	// 10.0.0.2 is claimed by [default/web default/db]
	// 10.0.0.7 of default/cache has no reservation; host-local may give it to another pod: true
	// 192.168.0.9 of default/proxy has no reservation; host-local may give it to another pod: false
}

// A reason has a word for programs, the verdict that it leads to, the safety rule behind it, and
// a text for people.
func ExampleReasons() {
	for _, r := range gc.Reasons() {
		if r.Verdict() == gc.Verdicts()[1] {
			fmt.Println(r, r.Verdict(), r.Rule(), len(r.Text()) > 0)
		}
	}
	fmt.Println(gc.TooYoung.Text())
	// Output:
	// too-young young R5 true
	// not-yet-listed young R5 true
	// untrusted-timestamp young R5 true
	// stale-answer young R5 true
	// younger than the minimum age
}
