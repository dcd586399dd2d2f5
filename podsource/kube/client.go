// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"

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
	var missing error
	if client == nil {
		missing = errors.New("it needs a client of the API server")
	}
	ownNode := opts.GetNode == nil && !opts.SkipNodeCheck
	if ownNode {
		opts.GetNode = func(ctx context.Context, name string) (*corev1.Node, error) {
			return client.Nodes().Get(ctx, name, metav1.GetOptions{})
		}
	}
	s, err := newSource(nodeName, opts, missing)
	if err != nil {
		return nil, err
	}
	s.ownNode = ownNode
	s.list = func(ctx context.Context) (podsource.Answer, error) {
		pods, err := s.pages(ctx, client, s.opts.PageSize)
		if apierrors.IsResourceExpired(err) || errors.Is(err, errInconsistentPages) {
			pods, err = s.pages(ctx, client, 0)
		}
		return podsource.Answer{Pods: pods}, err
	}
	return s, nil
}

// errInconsistentPages is returned when a page has another resource version than the first.
var errInconsistentPages = errors.New("pages of the list have different resource versions")

// pages returns the pods of all pages, or of one list without pages if size is 0. Only the
// context limits their number. If the version of the first page expires before the last one
// was read (410 Gone, after some five minutes), the caller lists again without pages.
func (s *Source) pages(ctx context.Context, client Client, size int64) ([]podsource.Pod, error) {
	all, version := []podsource.Pod{}, ""
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", s.nodeName).String(), Limit: size}
	for {
		page, err := client.Pods(metav1.NamespaceAll).List(ctx, opts)
		switch {
		case err != nil:
			return nil, explain(err, "listing its pods", `verb "list" on resource "pods"`)
		case opts.Continue != "" && page.ResourceVersion != version:
			return nil, errInconsistentPages
		case page.Continue == "" && page.RemainingItemCount != nil && *page.RemainingItemCount > 0:
			return nil, fmt.Errorf("%w: listing its pods: %d are missing from the list, which has no token for them; "+
				"is there a proxy before the API server?", podsource.ErrIncomplete, *page.RemainingItemCount)
		}
		for i := range page.Items {
			all = s.appendIfLocal(all, &page.Items[i])
		}
		if page.Continue == "" {
			return all, nil
		}
		version, opts.Continue = page.ResourceVersion, page.Continue
	}
}
