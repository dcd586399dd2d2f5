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

// A Client is what New needs of one: a clientset's CoreV1() is a Client.
type Client interface {
	typedcorev1.PodsGetter
	typedcorev1.NodesGetter
}

// New returns a source that asks the API server anew whenever it is asked:
// one GET of the Node and one LIST of the pods bound to it, or as many as there
// are pages. It touches nothing before that.
func New(client Client, nodeName string, opts Options) *Source {
	s := &Source{nodeName: nodeName, opts: opts}
	if client == nil {
		return s
	}
	if s.opts.GetNode == nil {
		s.opts.GetNode = func(ctx context.Context, name string) (*corev1.Node, error) {
			return client.Nodes().Get(ctx, name, metav1.GetOptions{})
		}
	}
	s.list = func(ctx context.Context) ([]podsource.Pod, error) {
		return s.listPages(ctx, client.Pods(metav1.NamespaceAll))
	}
	return s
}

// errInconsistentPages is that a page is not of the moment of the first.
var errInconsistentPages = errors.New("pages of the list are of different moments")

// listPages lists page by page. Where the server has forgotten the moment of the
// first page before the last one was read (410, after some five minutes), what
// was read is dropped, and all is asked for once more and at once.
func (s *Source) listPages(ctx context.Context, client typedcorev1.PodInterface) ([]podsource.Pod, error) {
	opts := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", s.nodeName).String(),
		Limit:         s.opts.pageSize(),
	}
	if s.opts.WatchCache {
		opts.ResourceVersion, opts.Limit = "0", 0 // servers may heed or ignore a limit then
	}
	pods, err := s.pages(ctx, client, opts)
	if apierrors.IsResourceExpired(err) || errors.Is(err, errInconsistentPages) {
		opts.Limit = 0
		pods, err = s.pages(ctx, client, opts)
	}
	return pods, err
}

// pages returns the pods of all pages. That a server would go on without end is
// stopped by the context.
func (s *Source) pages(ctx context.Context, client typedcorev1.PodInterface, opts metav1.ListOptions) ([]podsource.Pod, error) {
	pods := []podsource.Pod{}
	moment := ""
	for {
		page, err := client.List(ctx, opts)
		if err != nil {
			return nil, explain(err, "listing its pods", `verb "list" on resource "pods"`)
		}
		if opts.Continue != "" && page.ResourceVersion != moment {
			return nil, errInconsistentPages
		}
		for i := range page.Items {
			if pods, err = s.appendIfLocal(pods, &page.Items[i]); err != nil {
				return nil, err
			}
		}
		if page.Continue == "" {
			return pods, nil
		}
		moment, opts.Continue, opts.ResourceVersion = page.ResourceVersion, page.Continue, ""
	}
}
