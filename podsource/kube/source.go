// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
)

// What the zero Options stand for.
const (
	// DefaultTimeout is less than gc.Options.SourceTimeout, so that an error names
	// the source.
	DefaultTimeout = 10 * time.Second
	// DefaultPageSize is more than nearly all nodes may run, so that one page is
	// the rule, and what kubectl asks for at once.
	DefaultPageSize = 500
)

// Options say how a Source works. The zero value is the safe default of [New]
// and [NewInformer].
type Options struct {
	// Timeout is how long one answer may take in all, the Node and every page of
	// pods. The context given to Pods may end it earlier. Zero is
	// [DefaultTimeout].
	Timeout time.Duration
	// PageSize is how many pods are asked for at once. All pages are of one
	// moment, that of the first. Zero is [DefaultPageSize].
	PageSize int64
	// WatchCache has the API server answer [New] from its memory, in one piece of
	// whatever size, without a look at etcd. That spares an old or overloaded
	// control plane. Since Kubernetes 1.31 servers answer without this option from
	// memory too, and make sure that it is up to date.
	//
	// Such an answer may be from before pods that live here came. The server is
	// held to one that is not older than the Node object, and so than kubelet's
	// last report of the node's state, the time of which is the answer's AsOf: up
	// to five minutes ago. That takes it that the API server keeps Nodes and pods
	// in the same etcd, as it does unless --etcd-servers-overrides says otherwise.
	// It can't be together with SkipNodeCheck.
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
	// lister's Get, or a client's. [New] and [NewInformer] have their client for
	// that, and call this instead where it is set.
	GetNode func(ctx context.Context, name string) (*corev1.Node, error)
	// SkipNodeCheck trusts the node's name and reads no Node object. Then another
	// node's list, or that of an older machine of the same name, is taken for
	// this one's, and every address that is not in it for leaked (hazard 23). And
	// nothing tells whether kubelet is still heard of (hazard 55).
	SkipNodeCheck bool
}

// wrong returns what is wrong with the options.
func (o *Options) wrong() (errs []error) {
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("Options.Timeout is %v; it must not be negative", o.Timeout))
	}
	if o.PageSize < 0 {
		errs = append(errs, fmt.Errorf("Options.PageSize is %d; it must not be negative", o.PageSize))
	}
	switch {
	case o.SkipNodeCheck && (o.NodeUID != "" || o.BootID != nil || o.GetNode != nil):
		errs = append(errs, errors.New("Options.SkipNodeCheck reads no Node, so NodeUID, BootID and GetNode would not count; leave it out, or them"))
	case o.SkipNodeCheck && o.WatchCache:
		errs = append(errs, errors.New("Options.WatchCache without the Node: nothing would tell how old an answer is; leave out SkipNodeCheck"))
	case o.SkipNodeCheck:
	case o.GetNode == nil:
		errs = append(errs, errors.New("nothing tells that this is the right node: set Options.GetNode, or SkipNodeCheck to trust its name"))
	case o.BootID == nil && runtime.GOOS != "linux":
		errs = append(errs, fmt.Errorf("%s has no %s with the kernel's boot ID: set Options.BootID, or SkipNodeCheck to trust the node's name",
			runtime.GOOS, bootIDFile))
	}
	return errs
}

// A Source gives the pods of one node as Kubernetes knows them. Make it with
// [New] or [FromLister].
type Source struct {
	nodeName string
	opts     Options
	ownNode  bool // the Node is read with the source's own client
	// list gives the pods, and their AsOf and Note. The Node is nil where it is
	// not checked.
	list func(ctx context.Context, node *corev1.Node) (podsource.Answer, error)
}

// newSource checks the arguments. Errs are of others of the caller's, or nil.
func newSource(nodeName string, opts Options, errs ...error) (*Source, error) {
	if nodeName == "" {
		// The selector would choose the pods that have no node yet.
		errs = append(errs, errors.New("it has no node name; in a pod that is the field spec.nodeName of the downward API"))
	} else if why := validation.IsDNS1123Subdomain(nodeName); len(why) > 0 {
		errs = append(errs, fmt.Errorf("no Node can have the name %q, as kubelet registers a host's name in lower case: %s",
			nodeName, strings.Join(why, "; ")))
	}
	if err := errors.Join(append(errs, opts.wrong()...)...); err != nil {
		return nil, fmt.Errorf("making a kube source: %w", err)
	}
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.PageSize == 0 {
		opts.PageSize = DefaultPageSize
	}
	return &Source{nodeName: nodeName, opts: opts}, nil
}

// Pods returns all pods that are bound to the node, or an error (R2). It wraps
// [podsource.ErrIncomplete] where waiting may help, [podsource.ErrPermanent] where
// the node's name or UID is another's, and never [podsource.ErrNotHere]: a file
// that a client misses is no sign that there is no API server.
//
// The pods come without container IDs. The answer declares that those have 64
// hexadecimal digits, so that what other containers own counts as foreign (R14).
// Its Note names pods of which an annotation could not be read.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a, err := s.ask(ctx)
	if err != nil {
		return podsource.Answer{Source: "kube"}, err
	}
	a.Source, a.Forms = "kube", []podsource.Form{podsource.Hex64}
	if note := kubepod.Note(a.Pods); note != "" {
		a.Note = strings.TrimPrefix(a.Note+"; "+note, "; ")
	}
	return a, nil
}

func (s *Source) ask(ctx context.Context) (podsource.Answer, error) {
	if s.list == nil {
		return podsource.Answer{}, errors.New("kube source was not made with New, NewInformer or FromLister")
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	node, err := s.checkNode(bounded)
	var a podsource.Answer
	if err == nil {
		a, err = s.list(bounded, node)
	}
	switch {
	case err == nil:
		return a, nil
	case ctx.Err() == nil && bounded.Err() != nil:
		return a, fmt.Errorf("%w: node %s: no answer within %v: %w", podsource.ErrIncomplete, s.nodeName, s.opts.Timeout, err)
	case ctx.Err() != nil:
		return a, fmt.Errorf("node %s: %w: %w", s.nodeName, ctx.Err(), err) // clients don't always pass it on
	}
	return a, fmt.Errorf("node %s: %w", s.nodeName, err)
}

// ifLocal converts a pod if it is bound to the node. The server was asked for no
// others, but what does not know or drops the selector, as a proxy or a fake may,
// answers with those of all nodes.
func (s *Source) ifLocal(pod *corev1.Pod) (p podsource.Pod, local bool, err error) {
	if pod.Spec.NodeName != s.nodeName {
		return p, false, nil
	}
	p, err = kubepod.Convert(pod)
	return p, err == nil, err
}
