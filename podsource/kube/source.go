// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
)

// What the zero Options stand for.
const (
	// DefaultTimeout is what kubelet, too, gives the API server.
	DefaultTimeout = 30 * time.Second
	// DefaultPageSize is more than nearly all nodes may run, so that one page is
	// the rule, and what kubectl asks for at once.
	DefaultPageSize = 500
)

// Options say how a Source works. The zero value is the safe default of [New].
type Options struct {
	// Timeout is how long one answer may take in all, the Node and every page of
	// pods. The context given to Pods may end it earlier. Zero is
	// [DefaultTimeout].
	Timeout time.Duration
	// PageSize is how many pods are asked for at once. All pages are of one
	// moment, that of the first. Zero is [DefaultPageSize].
	PageSize int64
	// WatchCache has the API server answer from its memory, in one piece of
	// whatever size, without a look at etcd (resourceVersion=0). That spares an
	// old or overloaded control plane.
	//
	// The risk: nothing bounds how old such an answer is. A server that lost
	// etcd or is just starting may give a list from before pods that live here
	// came, and two servers may answer in turn from different times. MinAge has
	// to cover that as well. Since Kubernetes 1.31 servers answer without this
	// option from memory too, and make sure that it is up to date.
	WatchCache bool
	// NodeUID, if set, is the UID that the Node object must have: it changes when
	// the object is deleted and made anew.
	NodeUID types.UID
	// BootID returns the boot ID of the kernel that runs this node's pods, as
	// kubelet reports it. Nil reads /proc/sys/kernel/random/boot_id, which is the
	// host's in a container, too, and which only Linux has. A sandbox with a
	// kernel of its own has another.
	BootID func() (string, error)
	// GetNode reads the Node object for a source made by [FromLister]: a node
	// lister's Get, or a client's. [New] has its client for that, and calls this
	// instead where it is set.
	GetNode func(ctx context.Context, name string) (*corev1.Node, error)
	// SkipNodeCheck trusts the node's name and reads no Node object. Then another
	// node's list, or that of an older machine of the same name, is taken for
	// this one's, and every address that is not in it for leaked (hazard 23).
	SkipNodeCheck bool
}

func (o Options) timeout() time.Duration {
	if o.Timeout <= 0 {
		return DefaultTimeout
	}
	return o.Timeout
}

func (o Options) pageSize() int64 {
	if o.PageSize <= 0 {
		return DefaultPageSize
	}
	return o.PageSize
}

// A Source gives the pods of one node as Kubernetes knows them. Make it with
// [New] or [FromLister].
type Source struct {
	nodeName string
	opts     Options
	list     func(ctx context.Context) ([]podsource.Pod, error)
}

// Pods returns all pods that are bound to the node, or an error (R2). It wraps
// [podsource.ErrIncomplete] where waiting may help, and never
// [podsource.ErrNotHere]: a file that a client misses is no sign that there is no
// API server.
//
// The pods come without container IDs. The answer declares that those have 64
// hexadecimal digits, so that what other containers own counts as foreign (R14).
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "kube"}
	pods, err := s.ask(ctx)
	if err != nil {
		return a, err
	}
	a.Pods, a.Forms = pods, []podsource.Form{podsource.Hex64}
	return a, nil
}

func (s *Source) ask(ctx context.Context) ([]podsource.Pod, error) {
	if s.list == nil {
		return nil, errors.New("kube source was made without a client or a lister, or not with New or FromLister")
	}
	if s.nodeName == "" {
		// The selector would choose the pods that have no node yet.
		return nil, errors.New("kube source was made without a node name; in a pod it is the field spec.nodeName of the downward API")
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.timeout())
	defer cancel()
	err := s.checkNode(bounded)
	var pods []podsource.Pod
	if err == nil {
		pods, err = s.list(bounded)
	}
	switch {
	case err == nil:
		return pods, nil
	case ctx.Err() == nil && bounded.Err() != nil:
		return nil, fmt.Errorf("%w: node %s: no answer within %v: %w", podsource.ErrIncomplete, s.nodeName, s.opts.timeout(), err)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("node %s: %w: %w", s.nodeName, ctx.Err(), err) // clients don't always pass it on
	}
	return nil, fmt.Errorf("node %s: %w", s.nodeName, err)
}

// appendIfLocal adds a pod to pods if it is bound to the node. The server was asked for
// no others, but what does not know or drops the selector, as a proxy or a fake
// may, answers with those of all nodes.
func (s *Source) appendIfLocal(pods []podsource.Pod, pod *corev1.Pod) ([]podsource.Pod, error) {
	if pod.Spec.NodeName != s.nodeName {
		return pods, nil
	}
	p, err := kubepod.Convert(pod)
	if err != nil {
		return nil, err
	}
	return append(pods, p), nil
}
