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
	"k8s.io/apimachinery/pkg/util/sets"
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
	fmt.Println(report.Reservations[0].Reason)
	// Output:
	// a source does not answer
	// source-failed
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

// A function with the signature of one that an agent may have: a network, and the addresses in use. A pod whose
// status has no address yet loses it after MinAge.
func garbageCollect(dataDir, network string, inUse sets.Set[string]) error {
	var live podsource.Static
	for ip := range inUse {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		live = append(live, podsource.Pod{IPs: []netip.Addr{addr}})
	}
	reconciler, err := gc.New(hostlocal.New(dataDir), []string{network}, live, gc.Options{})
	if err != nil {
		return err
	}
	_, err = reconciler.AtStartup(context.Background())
	return err
}

func ExampleReconciler_AtStartup_addresses() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": sandbox2, "fd00::2": sandbox3, "fd00::3": sandbox2})
	defer func() { _ = os.RemoveAll(dataDir) }()

	err := garbageCollect(dataDir, "podnet", sets.New[string]()) // AllowEmpty around the list would release all
	fmt.Println(errors.Is(err, gc.ErrNoPods), strings.Contains(err.Error(), "gave up after"))
	err = garbageCollect(dataDir, "podnet", sets.New("10.0.0.3", "10.0.0.9")) // of another plugin
	for _, r := range must(hostlocal.New(dataDir).List(context.Background())).Reservations {
		fmt.Println(r.IP, err) // the container of 10.0.0.3 has two addresses
	}
	fmt.Println(garbageCollect(dataDir, "missing", sets.New("10.0.0.3")))
	must(os.Create(filepath.Join(dataDir, "file")))
	fmt.Println(strings.Contains(garbageCollect(dataDir, "file", sets.New("10.0.0.3")).Error(), "is a regular file, not a directory"))
	// Output:
	// true false
	// 10.0.0.3 <nil>
	// fd00::3 <nil>
	// <nil>
	// true
}

// The same with pods, and with the interfaces in the agent's store, before the agent serves an ADD. What is
// in neither is released at once, however young it is.
func releaseLeaked(
	dataDir, network string, pods podsource.Source, interfaces func(context.Context) ([]podsource.Attachment, error),
) (gc.Report, error) {
	source := podsource.Union(pods, podsource.Attachments([]string{network}, podsource.Always, interfaces))
	reconciler, err := gc.New(hostlocal.New(dataDir), []string{network}, source, gc.Options{})
	if err != nil {
		return gc.Report{}, err
	}
	return reconciler.AtStartup(context.Background(), gc.NoADDInFlight)
}

func ExampleReconciler_AtStartup_interfaces() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": sandbox2, "10.0.0.4": sandbox3, "fd00::3": sandbox2})
	defer func() { _ = os.RemoveAll(dataDir) }()

	web := types.NamespacedName{Namespace: "default", Name: "web"} // its status has no address yet
	pods := podsource.Static{{NamespacedName: web}, {IPs: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}}
	report, err := releaseLeaked(dataDir, "podnet", pods, func(context.Context) ([]podsource.Attachment, error) {
		return []podsource.Attachment{{Network: "podnet", ContainerID: sandbox2, IfName: "eth0", Pod: web}}, nil
	})
	for _, e := range report.Reservations {
		fmt.Println(e.IP, e.Verdict, e.Reason, err)
	}
	// Output:
	// 10.0.0.2 released released-leak <nil>
	// 10.0.0.3 in-use container-live <nil>
	// 10.0.0.4 in-use address-claimed <nil>
	// fd00::3 in-use container-live <nil>
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
	opts.Interval, opts.MinAge = time.Millisecond, -1
	_, err := gc.New(hostlocal.New(""), []string{"podnet"}, podsource.Static{}, opts)
	fmt.Println(err)
	// Output:
	// making a reconciler: MinAge is -1ns; it must be from 1s to 720h0m0s
	// Interval is 1ms; it must be from 1s to 24h0m0s
}

// All networks of the node, with a source that lists sandboxes. Every owner is then foreign,
// unless the caller allows its prefix, here nerdctl's. A dry run releases nothing.
func ExampleAllNetworks() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1, "10.0.0.3": "default-" + sandbox1})
	defer func() { _ = os.RemoveAll(dataDir) }()

	opts := gc.Options{AllowForeign: []string{"default-"}, DryRun: true}
	reconciler := must(gc.New(hostlocal.New(dataDir), []string{gc.AllNetworks}, podsource.Static{{ContainerIDs: []string{sandbox2}}}, opts))
	report, err := reconciler.Reconcile(context.Background())
	for _, e := range report.Reservations {
		fmt.Println(e.Network, e.IP, e.Verdict, e.Reason, err)
	}
	// Output:
	// podnet 10.0.0.2 foreign foreign-owner <nil>
	// podnet 10.0.0.3 leaked unowned <nil>
}

// What an agent logs or shows about a pass, also of addresses without a reservation, and of one that two pods have.
func ExampleReport() {
	dataDir := exampleNode(map[string]string{"10.0.0.2": sandbox1})
	defer func() { _ = os.RemoveAll(dataDir) }()

	pod := func(name, ip string) podsource.Pod {
		return podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, IPs: []netip.Addr{netip.MustParseAddr(ip)}}
	}
	pods := []podsource.Pod{pod("web", "10.0.0.2"), pod("db", "10.0.0.2"), pod("cache", "10.0.0.7"), pod("proxy", "192.168.0.9")}
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return podsource.Answer{Source: "runtime", Networks: []string{podsource.EveryNetwork}, Note: "one sandbox has no name", Pods: pods}, nil
	})
	reconciler := must(gc.New(hostlocal.New(dataDir), []string{"podnet", "storage"}, source, gc.Options{}))
	report, err := reconciler.Reconcile(context.Background())
	fmt.Println("missing:", report.Missing, report.DataDirMissing, "another pass may find more:", !report.NextCheck.IsZero(), err)
	for _, s := range report.Sources {
		fmt.Printf("source %s: %d entries, error %q, note %q, %d calls\n", s.Name, s.Entries, s.Error, s.Note, report.Looks)
	}
	for _, e := range report.Reservations {
		fmt.Println(e.Reservation.IP, e.Verdict, e.Reason, "of", e.Pod.Namespace, e.Pod.Name, "in", e.Pod.From()) // a nil Pod is none
	}
	for _, d := range report.Duplicates {
		fmt.Println(d.IP, "is claimed by", d.Pods)
	}
	ranges := iprange.Set{{First: netip.MustParseAddr("10.0.0.2"), Last: netip.MustParseAddr("10.0.0.254")}} // see package cniconf
	for _, u := range report.Unreserved {
		fmt.Println(u.IP, "of", u.Pods[0], "has no reservation; host-local may give it to another pod:", u.AtRisk(ranges))
	}
	// Output:
	// missing: [storage] false another pass may find more: false <nil>
	// source runtime: 4 entries, error "", note "one sandbox has no name", 1 calls
	// 10.0.0.2 conflict two-pods of default web in runtime
	// 10.0.0.2 is claimed by [default/web default/db]
	// 10.0.0.7 of default/cache has no reservation; host-local may give it to another pod: true
	// 192.168.0.9 of default/proxy has no reservation; host-local may give it to another pod: false
}

// A reason has a word for programs, the verdict that it leads to, the safety rule behind it, and
// a text for people.
func ExampleReason() {
	for r := gc.Reason(1); r.String() != ""; r++ {
		if r.Verdict() == gc.Young {
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
