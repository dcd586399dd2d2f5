// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// indexer returns an informer's store with these pods.
func indexer(t *testing.T, pods ...corev1.Pod) cache.Indexer {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for i := range pods {
		if err := index.Add(&pods[i]); err != nil {
			t.Fatal(err)
		}
	}
	return index
}

// inStepAt returns an asOf function that always returns t.
func inStepAt(t time.Time) func() time.Time { return func() time.Time { return t } }

func TestFromLister(t *testing.T) {
	then := time.Now().Add(-time.Minute)
	got := func(n *corev1.Node, err error) func(context.Context, string) (*corev1.Node, error) {
		return func(context.Context, string) (*corev1.Node, error) { return n, err }
	}
	right := Options{GetNode: got(node("here", "boot-1"), nil), BootID: boot("boot-1")}
	for _, row := range []struct {
		reason     string
		asOf       time.Time
		opts       Options
		extra      []corev1.Pod
		want       string
		err        string
		incomplete bool
	}{
		{reason: "the pods of the node, and no others", asOf: then, opts: Options{SkipNodeCheck: true}, want: "a"},
		{reason: "the right node", asOf: then, opts: right, want: "a"},
		{reason: "not in sync", opts: Options{SkipNodeCheck: true}, err: "not known to be in sync", incomplete: true},
		{reason: "the boot ID of another kernel", asOf: then, opts: Options{GetNode: got(node("here", "boot-0"), nil), BootID: boot("boot-1")}, err: "boot-0", incomplete: true},
		{reason: "no such node, or the lister of nodes does not have it yet", asOf: then, err: "no such Node",
			opts: Options{GetNode: got(nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "here")), BootID: boot("boot-1")}},
		{reason: "a pod that can't be parsed", asOf: then, opts: right, extra: []corev1.Pod{pod("bad", "here", "nonsense")}, err: "shop/bad"},
		{reason: "a pod of another node that can't be parsed", asOf: then, opts: right, extra: []corev1.Pod{pod("bad", "there", "nonsense")}, want: "a"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			lister := listerscorev1.NewPodLister(indexer(t, append(row.extra, pod("a", "here"), pod("b", "there"), pod("c", ""))...))
			pods, err := must(FromLister(lister, inStepAt(row.asOf), "here", row.opts)).Pods(t.Context())
			if row.err == "" {
				if err != nil || names(pods) != row.want || !pods.AsOf.Equal(then) {
					t.Errorf("got %q as of %v, %v, want %q as of %v", names(pods), pods.AsOf, err, row.want, then)
				}
				return
			}
			if !nameOnly(pods) || err == nil || !strings.Contains(err.Error(), row.err) || errors.Is(err, podsource.ErrIncomplete) != row.incomplete {
				t.Errorf("got %v, %v, want an error that says %q (waiting may help: %v)", pods, err, row.err, row.incomplete)
			}
			if errors.Is(err, podsource.ErrPermanent) {
				t.Errorf("an error of the caller's cache is permanent: %v", err)
			}
		})
	}
}

// A brokenLister returns an error.
type brokenLister struct{ listerscorev1.PodLister }

func (brokenLister) List(labels.Selector) ([]*corev1.Pod, error) { return nil, errors.New("broken") }

func TestBrokenLister(t *testing.T) {
	s := must(FromLister(brokenLister{}, time.Now, "here", Options{SkipNodeCheck: true}))
	if pods, err := s.Pods(t.Context()); !nameOnly(pods) || err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, %v", pods, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s = must(FromLister(listerscorev1.NewPodLister(indexer(t)), time.Now, "here", Options{SkipNodeCheck: true}))
	if pods, err := s.Pods(ended); !nameOnly(pods) || !errors.Is(err, context.Canceled) {
		t.Errorf("the context had ended: got %v, %v", pods, err)
	}
}
