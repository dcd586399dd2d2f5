// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
)

// DefaultPageSize is the default of Options.PageSize: more pods than most nodes may run, so
// that there is mostly one page. kubectl uses the same.
const DefaultPageSize = 500

// Options configure a Source. The zero value is the safe default for [New].
type Options struct {
	// PageSize is the number of pods in one page. All pages show the state at the time
	// of the first one. Zero is [DefaultPageSize].
	PageSize int64
	// NodeUID, if set, is the UID that the Node object must have. It changes when the
	// object is deleted and created again.
	NodeUID types.UID
	// BootID returns the boot ID of the kernel that runs this node's pods, as kubelet
	// reports it. If it is nil, the source reads /proc/sys/kernel/random/boot_id. Only
	// Linux has this file, and in a container it is that of the host. A sandbox with its
	// own kernel has another boot ID.
	BootID func() (string, error)
	// GetNode reads the Node object for a source of [FromLister]: the Get of a node
	// lister, or of a client. [New] uses its client if it is nil.
	GetNode func(ctx context.Context, name string) (*corev1.Node, error)
	// SkipNodeCheck trusts the node's name and does not read the Node object. Then the
	// list of another node, or of an older machine of the same name, is taken for this
	// node's, and all addresses that are not in it count as leaked (hazard 23). It is
	// not noticed either when kubelet no longer reports to the control plane
	// (hazard 55).
	SkipNodeCheck bool
}

// validate returns everything that is wrong with the options.
func (o *Options) validate() (errs []error) {
	if o.PageSize < 0 {
		errs = append(errs, fmt.Errorf("Options.PageSize is %d; it must not be negative", o.PageSize))
	}
	switch {
	case o.SkipNodeCheck && (o.NodeUID != "" || o.BootID != nil || o.GetNode != nil):
		errs = append(errs, errors.New("Options.SkipNodeCheck reads no Node, so NodeUID, BootID and GetNode have no effect with it; use one or the other"))
	case o.SkipNodeCheck:
	case o.GetNode == nil:
		errs = append(errs, errors.New("the node can't be verified: set Options.GetNode, or SkipNodeCheck to trust its name"))
	case o.BootID == nil && runtime.GOOS != "linux":
		errs = append(errs, fmt.Errorf("%s has no %s with the kernel's boot ID: set Options.BootID, or SkipNodeCheck to trust the node's name",
			runtime.GOOS, bootIDFile))
	}
	return errs
}

// A Source returns the pods of one node as the API server knows them. It is made by
// [New] or [FromLister].
type Source struct {
	nodeName string
	opts     Options
	ownNode  bool                                                // the Node is read with the source's own client
	list     func(ctx context.Context) (podsource.Answer, error) // the pods, with AsOf
}

// newSource checks the arguments. Missing is the error of another argument, or nil.
func newSource(nodeName string, opts Options, missing error) (*Source, error) {
	errs := append(opts.validate(), missing)
	if nodeName == "" {
		// The selector would select the pods without a node.
		errs = append(errs, errors.New("it has no node name; in a pod that is the field spec.nodeName of the downward API"))
	} else if why := validation.IsDNS1123Subdomain(nodeName); len(why) > 0 {
		errs = append(errs, fmt.Errorf("no Node can have the name %q, as kubelet registers a host's name in lower case: %s",
			nodeName, strings.Join(why, "; ")))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("making a kube source: %w", err)
	}
	if opts.PageSize == 0 {
		opts.PageSize = DefaultPageSize
	}
	return &Source{nodeName: nodeName, opts: opts}, nil
}

// String returns the name of the source, also for one that does not answer.
func (s *Source) String() string { return "kube" }

// Pods returns all pods that are bound to the node, or an error (R2). The error wraps
// [podsource.ErrIncomplete] if a later call may succeed, and [podsource.ErrPermanent] if the
// node's name or UID is that of another one. It is never [podsource.ErrNotHere]: that a
// client lacks a file does not mean that there is no API server.
//
// The pods have no container IDs. The answer lists Kubernetes pods in every network, so
// reservations of containers that are no sandboxes are foreign (R14). Its Note names a pod
// that has an address, or an annotation, that can't be read.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a, err := s.ask(ctx)
	if err != nil {
		return podsource.Answer{Source: s.String()}, fmt.Errorf("node %s: %w", s.nodeName, err)
	}
	a.Source, a.Networks, a.Note = s.String(), []string{podsource.EveryNetwork}, kubepod.Note(a.Pods)
	return a, nil
}

func (s *Source) ask(ctx context.Context) (podsource.Answer, error) {
	if s.list == nil {
		return podsource.Answer{}, errors.New("the kube source was not made with New or FromLister")
	}
	if err := s.checkNode(ctx); err != nil {
		return podsource.Answer{}, err
	}
	return s.list(ctx)
}

// appendIfLocal appends a pod if it is bound to the node. Other pods come from an informer of
// several nodes, or from a proxy or a fake that ignores the field selector.
func (s *Source) appendIfLocal(pods []podsource.Pod, pod *corev1.Pod) []podsource.Pod {
	if pod.Spec.NodeName == s.nodeName {
		pods = append(pods, kubepod.Convert(pod))
	}
	return pods
}
