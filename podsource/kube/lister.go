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

// FromLister returns a source that reads the pods from an informer of the
// agent's, and costs the API server nothing.
//
// AsOf tells when the informer was last known to be in step with the API server,
// or zero where that is not known yet, as before it has synced: then the source
// answers with [podsource.ErrIncomplete]. Ages count up to that time (R5), so an
// informer whose watch has broken, and which goes on to answer with what it had,
// releases less and less, and a loop refuses it after two intervals. [InStep] makes
// the function of an informer. One that returns time.Now() would cost pods their
// addresses, as a list from a dead watch would pass for a current one.
//
// Right after the start the hook gets no answer from it, for about a minute on a
// quiet node: AtStartup then waits in vain, and a later pass releases. Where the node
// must have its addresses back before its first ADD, give the hook a source by [New],
// or use [NewInformer].
//
// The informer may hold the pods of other nodes as well, but it must not be
// filtered in any other way: one that holds the pods of some namespaces, or those
// with a label, can't be told from a node with fewer pods, and the others'
// addresses are released (hazard 54). Nothing here can check that. [NewInformer]
// can't be filtered, and [podsource.Require] finds a filter that leaves out the
// pod that it names.
//
// If the informer has a transform, that must leave the name, UID and annotations
// of a pod, spec.nodeName, spec.hostNetwork, the spec's containers and the whole
// status. Without metadata.managedFields some finished pods hold what they held
// until five minutes after this process first saw them.
//
// Options.GetNode is needed for the check of the node, or SkipNodeCheck has to
// say that there is none. With a node lister:
//
//	GetNode: func(_ context.Context, name string) (*corev1.Node, error) { return nodes.Get(name) }
//
// What is wrong with the Node is never [podsource.ErrPermanent] then, as the lister
// may have another one a moment later.
func FromLister(lister listerscorev1.PodLister, asOf func() time.Time, nodeName string, opts Options) (*Source, error) {
	var missing []error
	if lister == nil {
		missing = append(missing, errors.New("it needs a lister of pods"))
	}
	if asOf == nil {
		missing = append(missing, errors.New("it needs a function that tells the age of the lister's pods: pass what InStep returns for their informer"))
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
			return a, fmt.Errorf("%w: the informer of pods is not known to be in step with the API server yet; that takes its next event or bookmark, a minute or so", podsource.ErrIncomplete)
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

// localOf converts those of the pods that are bound to the node.
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

// A Synced is what InStep asks of an informer. A cache.SharedIndexInformer is one.
type Synced interface {
	HasSynced() bool
	LastSyncResourceVersion() string
}

// InStep returns a function that tells when an informer was last known to be in
// step with the API server: when the function was called last before the
// informer's resource version moved on, and zero before that was seen. So it is
// never a time at which a watch that has broken was still thought to work, nor a
// first list that the API server gave from its memory, of which nothing tells how
// old it is.
//
// The version moves on with each event of the watch, and with the bookmarks that
// API servers send about once a minute where anything at all has happened in the
// cluster. So right after the start it takes about a minute until anything is
// known, longer than the hook of package gc waits; [New] and [NewInformer] know at
// once. It learns only when it is called: make one for the life of the process, when
// the informer is started, and call it also from a ticker, once a minute. With passes
// every ten minutes alone an answer is ten minutes old, and a leak stays as much longer.
// The function may be called from several goroutines. Nothing is known of how
// long an event was under way.
func InStep(informer Synced) func() time.Time {
	var mu sync.Mutex
	var version string       // at the last call
	var called, at time.Time // when that was, and the result
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
