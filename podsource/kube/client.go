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
			list.Limit = 0 // with this match some servers ignore a limit, and some use it
			a.AsOf = beat
		}
		var err error
		a.Pods, _, err = listPages(ctx, client.Pods(metav1.NamespaceAll), list, s.ifLocal)
		return a, err
	}
	return s, nil
}

// withClient returns a source without a list function. It reads the Node with the
// client, unless Options.GetNode is set.
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

// selector selects the pods that are bound to the node.
func (s *Source) selector() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", s.nodeName).String()}
}

// errInconsistentPages is returned when a page has another resource version than the first.
var errInconsistentPages = errors.New("pages of the list have different resource versions")

// listPages lists the pods page by page. It returns those for which convert reports true,
// converted, and the resource version of the list. If that version expires before the last
// page was read (410 Gone, after some five minutes), or differs between pages, it drops what
// was read and lists again once, without pages.
func listPages[T any](ctx context.Context, client typedcorev1.PodInterface, opts metav1.ListOptions,
	convert func(*corev1.Pod) (T, bool, error)) (all []T, version string, err error) {
	all, version, err = pages(ctx, client, opts, convert)
	if apierrors.IsResourceExpired(err) || errors.Is(err, errInconsistentPages) {
		opts.Limit = 0
		all, version, err = pages(ctx, client, opts, convert)
	}
	return all, version, err
}

// pages returns the converted pods of all pages. Only the context limits their number.
func pages[T any](ctx context.Context, client typedcorev1.PodInterface, opts metav1.ListOptions,
	convert func(*corev1.Pod) (T, bool, error)) ([]T, string, error) {
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
			p, ok, err := convert(&page.Items[i])
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
