// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	listerscorev1 "k8s.io/client-go/listers/core/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// FromLister returns a source that reads the pods from an informer of the
// agent's, and costs the API server nothing. Synced is the informer's HasSynced;
// until it is true the source answers with [podsource.ErrIncomplete].
//
// The informer may hold the pods of other nodes as well. If it has a transform,
// that must leave the name, UID and annotations of a pod, spec.nodeName,
// spec.hostNetwork, the spec's containers and the whole status. Without
// metadata.managedFields some finished pods hold what they held until five
// minutes after this process first saw them.
//
// Options.GetNode is needed for the check of the node, or SkipNodeCheck has to
// say that there is none. With a node lister:
//
//	GetNode: func(_ context.Context, name string) (*corev1.Node, error) { return nodes.Get(name) }
//
// The risk: an informer whose watch has broken goes on to answer with what it
// had, and nothing bounds how old that is. MinAge has to cover it.
func FromLister(lister listerscorev1.PodLister, synced func() bool, nodeName string, opts Options) *Source {
	s := &Source{nodeName: nodeName, opts: opts}
	if lister == nil {
		return s
	}
	s.list = func(ctx context.Context) ([]podsource.Pod, error) {
		if synced == nil {
			return nil, errors.New("kube source was made without the HasSynced of its informer")
		}
		if !synced() {
			return nil, fmt.Errorf("%w: the informer of pods has not synced yet", podsource.ErrIncomplete)
		}
		cached, err := lister.List(labels.Everything())
		if err != nil {
			return nil, fmt.Errorf("listing the informer's pods: %w", err)
		}
		pods := []podsource.Pod{}
		for _, pod := range cached {
			if pods, err = s.appendIfLocal(pods, pod); err != nil {
				return nil, err
			}
		}
		return pods, ctx.Err()
	}
	return s
}
