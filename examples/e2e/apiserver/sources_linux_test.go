// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// mixed creates 300 pods of all phases, and leaks, and returns the expected verdict on each
// address.
func mixed(n *node) map[string]gc.Verdict {
	n.t.Helper()
	want := make(map[string]gc.Verdict)
	// held reserves an address with the expected verdict.
	held := func(i int, age time.Duration, verdict gc.Verdict) []netip.Addr {
		n.t.Helper()
		ips := n.reserve(fmt.Sprintf("%064x", i+1), age)
		want[only(ips)] = verdict
		return ips
	}
	for i := range 300 {
		name := fmt.Sprintf("pod-%d", i)
		switch i % 10 {
		case 0, 1, 2, 3:
			n.pod(name, with(held(i, old, gc.InUse)...))
		case 4: // its containers have ended, the pod is live for five minutes
			n.pod(name, with(held(i, old, gc.InUse)...), finished(corev1.PodSucceeded, recent))
		case 5: // an ADD that is not in the status yet
			held(i, 30*time.Minute, gc.Starting)
			n.pod(name, started(time.Hour))
		case 6:
			n.pod(name, with(held(i, old, gc.Released)...), finished(corev1.PodSucceeded, old))
		case 7:
			n.pod(name, with(held(i, old, gc.Released)...), finished(corev1.PodFailed, time.Hour))
		case 8: // it is being deleted
			n.pod(name, with(held(i, old, gc.InUse)...))
			n.remove(name, 3600)
		case 9:
			switch i / 10 % 3 {
			case 0:
				n.pod(name, onHostNetwork, with(netip.MustParseAddr("192.0.2.1")))
			case 1:
				n.backdate(n.pod(name, evicted(2*old)), 2*old)
			case 2:
				n.pod(name, phase(corev1.PodPending), started(time.Hour))
			}
		}
	}
	for i := range 30 {
		// Pods of another node claim nothing here.
		leaked := held(1000+i, 3*old, gc.Released)
		n.pod(fmt.Sprintf("elsewhere-%d", i), with(leaked...), boundTo("another-node"))
	}
	return want
}

// Every way to list the pods gives the right verdicts.
func TestNodeWith300Pods(t *testing.T) {
	n := newNode(t)
	want := mixed(n)
	planned := maps.Clone(want)
	for ip, verdict := range planned {
		if verdict == gc.Released {
			planned[ip] = gc.Leaked
		}
	}
	own, _ := watching(n, n.client.CoreV1())
	for way, source := range map[string]podsource.Source{
		"default options":          n.source(),
		"JSON":                     newSource(newMeter(t, "application/json"), n.name, kube.Options{}),
		"pages of 7":               newSource(newMeter(t, ""), n.name, kube.Options{PageSize: 7}),
		"watch cache":              caughtUp(n, newSource(n.client.CoreV1(), n.name, kube.Options{WatchCache: true}), 300),
		"a proxy without selector": newSource(withoutSelector(t), n.name, kube.Options{}),
		"the agent's informer":     informer(n, "spec.nodeName="+n.name),
		"an informer of all nodes": informer(n, ""),
		"NewInformer":              own,
	} {
		report, err := n.pass(source, gc.Options{DryRun: true})
		if err != nil {
			t.Errorf("%s: %v", way, err)
			continue
		}
		if diff := cmp.Diff(planned, n.verdicts(report)); diff != "" {
			t.Errorf("%s: verdicts of the plan (-want +got):\n%s", way, diff)
		}
	}
	n.collect(want)
	for ip, verdict := range want {
		if verdict == gc.Released {
			delete(want, ip)
		}
	}
	n.collect(want) // a second pass releases nothing (R12)
}

// withoutSelector returns a client whose requests lose their selector, as through a proxy.
func withoutSelector(t *testing.T) *meter {
	m := newMeter(t, "")
	m.before = func(r *http.Request) {
		query := r.URL.Query()
		query.Del("fieldSelector")
		r.URL.RawQuery = query.Encode()
	}
	return m
}

// caughtUp returns the source when it returns that many pods.
func caughtUp(n *node, source podsource.Source, pods int) podsource.Source {
	n.t.Helper()
	err := wait.PollUntilContextTimeout(n.t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		got, err := source.Pods(ctx)
		return len(got.Pods) == pods, err
	})
	n.must(err)
	return source
}

// informer runs an informer of pods and one of nodes, as agents do, and returns a source of
// their listers that is in sync.
func informer(n *node, selector string) podsource.Source {
	n.t.Helper()
	source, _ := lister(n, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector }))
	n.inStep(source)
	return source
}

// lister returns a source of the listers of two informers, before it is in sync, and the
// informer of pods.
func lister(n *node, filter informers.SharedInformerOption) (podsource.Source, cache.SharedIndexInformer) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	factory := informers.NewSharedInformerFactory(n.client, 0)
	pods := informers.NewSharedInformerFactoryWithOptions(n.client, 0, filter)
	nodes, podInformer := factory.Core().V1().Nodes(), pods.Core().V1().Pods()
	source := made(kube.FromLister(podInformer.Lister(), kube.InStep(podInformer.Informer()), n.name, kube.Options{
		GetNode: func(_ context.Context, name string) (*corev1.Node, error) { return nodes.Lister().Get(name) },
	}))
	nodes.Informer() // so that the factory starts it
	n.t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		pods.Shutdown()
	})
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if _, err := source.Pods(ctx); err == nil {
		n.t.Error("an informer that was not started returned a list")
	}
	pods.Start(ctx.Done())
	pods.WaitForCacheSync(ctx.Done())
	if _, err := source.Pods(ctx); !errors.Is(err, podsource.ErrIncomplete) {
		n.t.Errorf("a first list, perhaps from the server's watch cache, was accepted: %v", err)
	}
	return source, podInformer.Informer()
}

// inStep creates a pod, and waits until the source knows that its informer is in sync.
func (n *node) inStep(source podsource.Source) {
	n.t.Helper()
	n.pod(fmt.Sprintf("event-%d", numbers.Add(1)), onHostNetwork)
	err := wait.PollUntilContextTimeout(n.t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := source.Pods(ctx)
		return err == nil, nil
	})
	n.must(err)
}

// watching runs a source of NewInformer, and returns it with a function that stops it.
func watching(n *node, client kube.Client) (*kube.Informer, func()) {
	n.t.Helper()
	source := made(kube.NewInformer(client, n.name, kube.Options{Timeout: patience}))
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Start(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(stop)
	n.until(source, "a list", func(a podsource.Answer) bool { return true })
	return source, stop
}

// until returns the first answer of the source for which ok returns true.
func (n *node) until(source podsource.Source, what string, ok func(podsource.Answer) bool) (a podsource.Answer) {
	n.t.Helper()
	err := wait.PollUntilContextTimeout(n.t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		a, err = source.Pods(ctx)
		return err == nil && ok(a), nil
	})
	if err != nil {
		n.t.Fatalf("waiting for %s: %v, the last answer had %d pods", what, err, len(a.Pods))
	}
	return a
}
