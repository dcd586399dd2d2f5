// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	listerscorev1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// indexer holds pods as an informer does.
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

func TestFromLister(t *testing.T) {
	yes, no := func() bool { return true }, func() bool { return false }
	got := func(n *corev1.Node, err error) func(context.Context, string) (*corev1.Node, error) {
		return func(context.Context, string) (*corev1.Node, error) { return n, err }
	}
	for _, row := range []struct {
		reason     string
		synced     func() bool
		opts       Options
		extra      []corev1.Pod
		want       string
		err        string
		incomplete bool
	}{
		{reason: "the node's pods, and no other's", synced: yes, opts: Options{SkipNodeCheck: true}, want: "a"},
		{reason: "the right node", synced: yes, opts: Options{GetNode: got(node("here", "boot-1"), nil)}, want: "a"},
		{reason: "not synced: it holds a part", synced: no, opts: Options{SkipNodeCheck: true}, err: "has not synced", incomplete: true},
		{reason: "nobody knows whether it has synced", opts: Options{SkipNodeCheck: true}, err: "HasSynced"},
		{reason: "nothing tells whether this is the right node", synced: yes, err: "set Options.GetNode"},
		{reason: "another kernel's node", synced: yes, opts: Options{GetNode: got(node("here", "boot-0"), nil)}, err: "boot-0", incomplete: true},
		{reason: "no such node", synced: yes, opts: Options{GetNode: got(nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "here"))}, err: "no such Node"},
		{reason: "a pod that does not parse", synced: yes, opts: Options{SkipNodeCheck: true}, extra: []corev1.Pod{pod("bad", "here", "nonsense")}, err: "shop/bad"},
		{reason: "another node's pod that does not parse is not ours", synced: yes, opts: Options{SkipNodeCheck: true}, extra: []corev1.Pod{pod("bad", "there", "nonsense")}, want: "a"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			lister := listerscorev1.NewPodLister(indexer(t, append(row.extra, pod("a", "here"), pod("b", "there"), pod("c", ""))...))
			row.opts.BootID = boot("boot-1")
			pods, err := FromLister(lister, row.synced, "here", row.opts).Pods(t.Context())
			if row.err == "" {
				if err != nil || names(pods) != row.want {
					t.Errorf("got %q, %v, want %q", names(pods), err, row.want)
				}
				return
			}
			if !silent(pods) || err == nil || !strings.Contains(err.Error(), row.err) || errors.Is(err, podsource.ErrIncomplete) != row.incomplete {
				t.Errorf("got %v, %v, want an error that says %q (waiting may help: %v)", pods, err, row.err, row.incomplete)
			}
		})
	}
}

// A brokenLister fails.
type brokenLister struct{ listerscorev1.PodLister }

func (brokenLister) List(labels.Selector) ([]*corev1.Pod, error) { return nil, errors.New("broken") }

func TestBrokenLister(t *testing.T) {
	s := FromLister(brokenLister{}, func() bool { return true }, "here", Options{SkipNodeCheck: true})
	if pods, err := s.Pods(t.Context()); !silent(pods) || err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, %v", pods, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s = FromLister(listerscorev1.NewPodLister(indexer(t)), func() bool { return true }, "here", Options{SkipNodeCheck: true})
	if pods, err := s.Pods(ended); !silent(pods) || !errors.Is(err, context.Canceled) {
		t.Errorf("the context had ended: got %v, %v", pods, err)
	}
}
