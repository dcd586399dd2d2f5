// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// A pass asks the API server for the Node and for its pods, in pages, and for nothing else.
func TestRequests(t *testing.T) {
	n := newNode(t)
	n.reserve("leaked", old)
	const pods = 12
	for i := range pods {
		n.pod(fmt.Sprint("pod-", i))
	}
	plan := func(m *meter, source kube.Options) string {
		t.Helper()
		caught := caughtUp(n, newSource(m, n.name, source), pods)
		m.take() // drop the requests so far
		_, err := n.pass(caught, gc.Options{DryRun: true})
		n.must(err)
		return m.take()
	}
	for _, row := range []struct {
		reason, contentType string
		opts                kube.Options
		want                string
	}{
		{"the Node, and three pages", "", kube.Options{PageSize: 5}, "GET LIST LIST LIST"},
		{"the same in JSON", "application/json", kube.Options{PageSize: 5}, "GET LIST LIST LIST"},
		{"the watch cache has no pages", "", kube.Options{PageSize: 5, WatchCache: true}, "GET LIST"},
		{"without the check of the node", "", kube.Options{PageSize: 5, SkipNodeCheck: true}, "LIST LIST LIST"},
	} {
		if got := plan(newMeter(t, row.contentType), row.opts); got != row.want {
			t.Errorf("%s: requests %q, want %q", row.reason, got, row.want)
		}
	}
	m := newMeter(t, "")
	source, _ := watching(n, m)
	var requests string
	for range 5 { // its watch may end meanwhile, and begin with a list
		m.take()
		_, err := n.pass(source, gc.Options{DryRun: true})
		n.must(err)
		if requests = m.take(); requests == "GET" {
			break
		}
	}
	if requests != "GET" {
		t.Errorf("NewInformer: requests %q, want one GET of the Node", requests)
	}
}
