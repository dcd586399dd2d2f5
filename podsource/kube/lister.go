// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An Informer is the part of an informer of pods that FromLister needs. A
// cache.SharedIndexInformer is one.
type Informer interface {
	GetStore() cache.Store
	HasSynced() bool
	LastSyncResourceVersion() string
}

// FromLister returns a source that lists the pods of an informer that the agent already has,
// and sends no request to the API server. With a factory of informers:
//
//	nodes, pods := factory.Core().V1().Nodes().Lister(), factory.Core().V1().Pods().Informer()
//	source, err := kube.FromLister(pods, nodeName, kube.Options{
//		GetNode: func(_ context.Context, name string) (*corev1.Node, error) { return nodes.Get(name) },
//	})
//
// GetNode is required, unless SkipNodeCheck is set. An error about the Node is never
// [podsource.ErrPermanent], since the lister may get another one later.
//
// The informer may also have the pods of other nodes. It must not be filtered in any other
// way, such as by namespace or label: the source can't distinguish this from a node with
// fewer pods, and the addresses of the others are released (hazard 54). [podsource.Require]
// detects a filter that leaves out the required pod. A transform must keep the name, UID and
// annotations of a pod, spec.nodeName, spec.hostNetwork, the spec's containers and the whole
// status. Without metadata.managedFields some finished pods hold their addresses until five
// minutes after this process first saw them.
//
// The AsOf of an answer is the time of the last call of Pods before the informer's resource
// version changed: then the informer was in sync with the API server. So a broken watch
// releases less and less, and is an error of a loop after two intervals. The version changes
// with each event and, if anything changes in the cluster, with a bookmark about once a
// minute. Until it has changed once, the error is [podsource.ErrIncomplete]: the first list
// may be from the API server's watch cache, with an unknown age. AtStartup may not wait that
// long; give it a source of [New] if the node must have its addresses back before its first
// ADD. An agent that calls Pods once a minute, too, has younger answers.
func FromLister(informer Informer, nodeName string, opts Options) (*Source, error) {
	var missing error
	if informer == nil {
		missing = errors.New("it needs an informer of pods")
	}
	s, err := newSource(nodeName, opts, missing)
	if err != nil {
		return nil, err
	}
	asOf := inStep(informer)
	s.list = func(ctx context.Context) (podsource.Answer, error) {
		a := podsource.Answer{AsOf: asOf(), Pods: []podsource.Pod{}} // before the list is read, which may be newer
		if a.AsOf.IsZero() {
			return a, fmt.Errorf("%w: the informer of pods is not known to be in sync with the API server yet; "+
				"wait about a minute, for its next event or bookmark", podsource.ErrIncomplete)
		}
		for _, object := range informer.GetStore().List() {
			pod, ok := object.(*corev1.Pod)
			if !ok {
				return a, fmt.Errorf("the informer has an object of type %T; it must be one of pods, with their whole status", object)
			}
			a.Pods = s.appendIfLocal(a.Pods, pod)
		}
		return a, ctx.Err()
	}
	return s, nil
}

// inStep returns a function that reports when an informer was last known to be in sync with
// the API server: the time of the last call before the informer's resource version changed, or
// zero before it has changed. So it is never a time at which a broken watch was still believed
// to work. It does not know how long an event took to arrive.
func inStep(informer Informer) func() time.Time {
	var mu sync.Mutex
	var version string       // at the last call
	var called, at time.Time // the time of the last call, and the result
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now, latest := time.Now(), ""
		if informer.HasSynced() {
			latest = informer.LastSyncResourceVersion()
		}
		if version != "" && latest != "" && latest != version {
			at = called
		}
		if latest == "" { // it was replaced by one that has not synced yet
			at = time.Time{}
		}
		version, called = latest, now
		return at
	}
}
