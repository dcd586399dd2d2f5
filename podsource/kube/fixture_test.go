// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// attachments are those of the pods of one node.
type attachments []podsource.Attachment

func (all *attachments) add(a podsource.Attachment) { *all = append(*all, a) }

func (all *attachments) remove(a podsource.Attachment) {
	*all = slices.DeleteFunc(*all, func(b podsource.Attachment) bool { return a.ContainerID == b.ContainerID && a.IfName == b.IfName })
}

// pods returns the pods with their addresses, as kubelet reports them.
func (all attachments) pods() (pods []corev1.Pod) {
	for _, a := range all {
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Namespace == a.Pod.Namespace && p.Name == a.Pod.Name })
		if i < 0 {
			i, pods = len(pods), append(pods, pod(a.Pod.Name, "here"))
			pods[i].Namespace = a.Pod.Namespace
		}
		pods[i].Status.PodIPs = append(pods[i].Status.PodIPs, corev1.PodIP{IP: a.IPs[0].String()})
	}
	return pods
}

// The hazards of gctest, with an API server.
func TestSourceOfNew(t *testing.T) {
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		server, bootID := newAPIServer(t), "boot-1"
		var all attachments
		client := server.client(t)
		refused := func(http.ResponseWriter) bool { return false }
		server.before = func(_ int, w http.ResponseWriter) bool { return refused(w) }
		return gctest.Fixture{
			Source:   must(New(client, "here", Options{PageSize: 2, BootID: func() (string, error) { return bootID, nil }})),
			Networks: []string{podsource.EveryNetwork},
			Attach:   func(a podsource.Attachment) { all.add(a); server.set(false, all.pods()...) },
			Detach:   func(a podsource.Attachment) { all.remove(a); server.set(false, all.pods()...) },
			Break: func() {
				refused = func(w http.ResponseWriter) bool {
					refuse(w, apierrors.NewInternalError(fmt.Errorf("etcd is down")))
					return true
				}
			},
			Repair: func() { refused = func(http.ResponseWriter) bool { return false } },
			Lose:   func() { server.node = nil },
			Reboot: func() {
				all, bootID = nil, "boot-2"
				server.node = node("here", bootID)
				server.set(true)
			},
		}
	})
}

// The hazards of gctest, with an informer. Its list is as old as the last event.
func TestSourceOfFromLister(t *testing.T) {
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		var all attachments
		informer, broken := newFakeInformer(), false
		source := must(FromLister(informer, "here", Options{SkipNodeCheck: true}))
		_, _ = source.Pods(t.Context()) // it is in sync with the first event
		event := func() {
			if !broken {
				informer.set(all.pods())
			}
		}
		return gctest.Fixture{
			Source:   source,
			Networks: []string{podsource.EveryNetwork},
			Attach:   func(a podsource.Attachment) { all.add(a); event() },
			Detach:   func(a podsource.Attachment) { all.remove(a); event() },
			Break:    func() { broken = true },
			Repair:   func() { broken = false },
			Reboot:   func() { all = nil; event() },
		}
	})
}

// A fakeInformer is an informer that has synced if it has a version.
type fakeInformer struct {
	cache.Store
	version atomic.Int64
}

func newFakeInformer(objects ...any) *fakeInformer {
	f := &fakeInformer{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	f.version.Store(10)
	if err := f.Replace(objects, ""); err != nil {
		panic(err)
	}
	return f
}

// set is an event, after which the informer has these pods.
func (f *fakeInformer) set(pods []corev1.Pod) {
	var objects []any
	for i := range pods {
		objects = append(objects, &pods[i])
	}
	if err := f.Replace(objects, ""); err != nil {
		panic(err)
	}
	f.version.Add(1)
}

func (f *fakeInformer) GetStore() cache.Store { return f.Store }
func (f *fakeInformer) HasSynced() bool       { return f.version.Load() > 0 }
func (f *fakeInformer) LastSyncResourceVersion() string {
	return strconv.FormatInt(f.version.Load(), 10)
}
