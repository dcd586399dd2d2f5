// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	listerscorev1 "k8s.io/client-go/listers/core/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// FromLister returns a source that reads the pods of an informer that the agent already has.
// It sends no request to the API server.
//
// The function asOf returns when the informer was last known to be in sync with the API
// server, or zero if that is not known yet; then the source returns
// [podsource.ErrIncomplete]. Ages are taken at this time (R5). So an informer with a broken
// watch releases less and less, and Start refuses it after two intervals. [InStep] makes
// the function. With one that returns time.Now() the list of a broken watch would count as
// current, and pods would lose their addresses.
//
// On a quiet node the source has no answer for about a minute after its start: AtStartup
// then returns an error, and a later pass releases. If the node must have its addresses back
// before its first ADD, give AtStartup a source of [New], or use [NewInformer].
//
// The informer may also have the pods of other nodes. It must not be filtered in any other
// way, such as by namespace or label: the source can't distinguish this from a node with
// fewer pods, and the addresses of the others are released (hazard 54). [NewInformer] makes
// one without a filter. [podsource.Require] detects a filter that leaves out the required
// pod.
//
// A transform of the informer must keep the name, UID and annotations of a pod,
// spec.nodeName, spec.hostNetwork, the spec's containers and the whole status. Without
// metadata.managedFields some finished pods hold their addresses until five minutes after
// this process first saw them.
//
// Options.GetNode is required for the check of the node, unless SkipNodeCheck is set. With a
// node lister:
//
//	GetNode: func(_ context.Context, name string) (*corev1.Node, error) { return nodes.Get(name) }
//
// An error about the Node is then never [podsource.ErrPermanent], since the lister may get
// another one later.
func FromLister(lister listerscorev1.PodLister, asOf func() time.Time, nodeName string, opts Options) (*Source, error) {
	var missing []error
	if lister == nil {
		missing = append(missing, errors.New("it needs a lister of pods"))
	}
	if asOf == nil {
		missing = append(missing, errors.New("it needs a function that returns when the lister's pods were current: pass the result of InStep for their informer"))
	}
	if opts.WatchCache {
		missing = append(missing, errors.New("Options.WatchCache is for New"))
	}
	s, err := newSource(nodeName, opts, missing...)
	if err != nil {
		return nil, err
	}
	s.list = func(ctx context.Context, _ *corev1.Node) (podsource.Answer, error) {
		a := podsource.Answer{AsOf: asOf()} // before the list is read, which may be newer
		if a.AsOf.IsZero() {
			return a, fmt.Errorf("%w: the informer of pods is not known to be in sync with the API server yet; wait about a minute, for its next event or bookmark", podsource.ErrIncomplete)
		}
		cached, err := lister.List(labels.Everything())
		if err != nil {
			return a, fmt.Errorf("listing the informer's pods: %w", err)
		}
		if a.Pods, err = s.localOf(cached); err != nil {
			return a, err
		}
		return a, ctx.Err()
	}
	return s, nil
}

// localOf converts the pods that are bound to the node, and leaves out the others.
func (s *Source) localOf(pods []*corev1.Pod) ([]podsource.Pod, error) {
	all := []podsource.Pod{}
	for _, pod := range pods {
		p, local, err := s.ifLocal(pod)
		if err != nil {
			return nil, err
		}
		if local {
			all = append(all, p)
		}
	}
	return all, nil
}

// A Synced is the part of an informer that InStep needs. A cache.SharedIndexInformer is one.
type Synced interface {
	HasSynced() bool
	LastSyncResourceVersion() string
}

// InStep returns a function that reports when an informer was last known to be in sync with
// the API server. That is the time of the last call before the informer's resource version
// changed, or zero before it has changed. So it is never a time at which a broken watch was
// still believed to work, nor that of a first list, which the API server may have answered
// from its watch cache, with an unknown age.
//
// The version changes with each event of the watch, and with the bookmarks that API servers
// send about once a minute if anything changes in the cluster. So the time is known about a
// minute after the start, which is longer than AtStartup waits; sources of [New] and
// [NewInformer] know it at once. The function notices a change only when it is called. Make
// one for the life of the process, when the informer is started, and call it also from a
// ticker, once a minute. If only passes call it, every ten minutes, an answer is ten minutes
// old, and a leak stays that much longer. The function may be called from several
// goroutines. It does not know how long an event took to arrive.
func InStep(informer Synced) func() time.Time {
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
		version, called = latest, now
		return at
	}
}
