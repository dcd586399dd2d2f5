// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A Client reads pods and nodes: the CoreV1() of a clientset is a Client.
type Client interface {
	typedcorev1.PodsGetter
	typedcorev1.NodesGetter
}

// New returns a source that asks the API server on every call of Pods: one GET of the Node,
// and one LIST for each page of the pods bound to it. New itself sends no request. Its error
// names everything that is wrong with the arguments.
func New(client Client, nodeName string, opts Options) (*Source, error) {
	s, err := withClient(client, nodeName, opts)
	if err != nil {
		return nil, err
	}
	s.list = func(ctx context.Context, node *corev1.Node) (podsource.Answer, error) {
		var a podsource.Answer
		list := s.selector()
		list.Limit = s.opts.PageSize
		if beat := heartbeat(node); s.opts.WatchCache && !beat.IsZero() && node.ResourceVersion != "" {
			list.ResourceVersion, list.ResourceVersionMatch = node.ResourceVersion, metav1.ResourceVersionMatchNotOlderThan
			list.Limit = 0 // servers may heed or ignore one then
			a.AsOf = beat
		}
		var err error
		a.Pods, _, err = listPages(ctx, client.Pods(metav1.NamespaceAll), list, s.ifLocal)
		return a, err
	}
	return s, nil
}

// withClient returns a source that reads the Node with the client, unless the
// caller has another way, and does not list yet.
func withClient(client Client, nodeName string, opts Options) (*Source, error) {
	var missing error
	if client == nil {
		missing = errors.New("it needs a client of the API server")
	}
	own := opts.GetNode == nil && !opts.SkipNodeCheck
	if own {
		opts.GetNode = func(ctx context.Context, name string) (*corev1.Node, error) {
			return client.Nodes().Get(ctx, name, metav1.GetOptions{})
		}
	}
	s, err := newSource(nodeName, opts, missing)
	if err != nil {
		return nil, err
	}
	s.ownNode = own
	return s, nil
}

// selector chooses the pods that are bound to the node, in all namespaces.
func (s *Source) selector() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", s.nodeName).String()}
}

// errInconsistentPages is that a page is not of the moment of the first.
var errInconsistentPages = errors.New("pages of the list have different resource versions")

// listPages lists page by page, and returns what take makes of the pods that it
// takes, and the resource version of the list. Where the server has forgotten the
// moment of the first page before the last one was read (410, after some five
// minutes), what was read is dropped, and all is asked for once more and at once.
func listPages[T any](ctx context.Context, client typedcorev1.PodInterface, opts metav1.ListOptions,
	take func(*corev1.Pod) (T, bool, error)) (all []T, version string, err error) {
	all, version, err = pages(ctx, client, opts, take)
	if apierrors.IsResourceExpired(err) || errors.Is(err, errInconsistentPages) {
		opts.Limit = 0
		all, version, err = pages(ctx, client, opts, take)
	}
	return all, version, err
}

// pages returns the pods of all pages. That a server would go on without end is
// stopped by the context.
func pages[T any](ctx context.Context, client typedcorev1.PodInterface, opts metav1.ListOptions,
	take func(*corev1.Pod) (T, bool, error)) ([]T, string, error) {
	all := []T{}
	version := ""
	for {
		page, err := client.List(ctx, opts)
		if err != nil {
			return nil, "", explain(err, "listing its pods", `verb "list" on resource "pods"`)
		}
		if opts.Continue != "" && page.ResourceVersion != version {
			return nil, "", errInconsistentPages
		}
		for i := range page.Items {
			p, ok, err := take(&page.Items[i])
			if err != nil {
				return nil, "", err
			}
			if ok {
				all = append(all, p)
			}
		}
		version = page.ResourceVersion
		if page.Continue == "" {
			return all, version, nil
		}
		opts.Continue, opts.ResourceVersion, opts.ResourceVersionMatch = page.Continue, "", ""
	}
}
