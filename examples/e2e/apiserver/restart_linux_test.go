// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// restartAfter restarts the API server at the end of a test that kills it.
func restartAfter(t *testing.T) {
	t.Cleanup(func() { restart(t) })
}

// restart starts the API server if it was killed.
func restart(t *testing.T) {
	t.Helper()
	select {
	case <-cluster.api.ended:
		if err := cluster.start(); err != nil {
			t.Fatal(err)
		}
	default:
	}
}

// onList calls do before a client's n-th request for a list of pods.
func onList(m *meter, n int, do func()) {
	lists := 0
	m.before = func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods") {
			if lists++; lists == n {
				do()
			}
		}
	}
}

// While the server is down nothing is released, whenever it stopped. After its restart a pass
// gives the right verdicts.
func TestServerStopsAndRestarts(t *testing.T) {
	n := newNode(t)
	want := map[string]gc.Verdict{only(n.reserve("leaked", old)): gc.Released}
	for i := range 5 {
		held := n.reserve(fmt.Sprintf("held-%d", i), old)
		want[only(held)] = gc.InUse
		n.pod(fmt.Sprintf("web-%d", i), with(held...))
	}
	restartAfter(t)
	for list, when := range map[int]string{1: "between the Node and the list", 2: "between two pages"} {
		m := newMeter(t, "")
		onList(m, list, cluster.crash)
		source := newSource(m, n.name, kube.Options{PageSize: 2})
		if err := n.refused(source); !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "listing its pods: no answer from the API server") {
			t.Errorf("killed %s: %v", when, err)
		}
		if err := n.refused(source); !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "no answer from the API server, is it up") {
			t.Errorf("down: %v", err)
		}
		restart(t)
		if got, err := source.Pods(t.Context()); err != nil || len(got.Pods) != 5 {
			t.Errorf("after its restart: %d pods, %v", len(got.Pods), err)
		}
	}
	n.collect(want)
}

// The server restarts between two pages. The list is complete, or an error: a part of it is
// never returned.
func TestServerRestartsBetweenPages(t *testing.T) {
	n := newNode(t)
	for i := range 9 {
		n.pod(fmt.Sprintf("web-%d", i))
	}
	restartAfter(t)
	for _, row := range []struct {
		reason  string
		between func()
		relists bool // a new list without pages
	}{
		{"the new server accepts the token of the first page", func() {}, false},
		{"the version of the first page was compacted (410): a new list", func() { compact(n) }, true},
	} {
		t.Run(row.reason, func(t *testing.T) {
			m, relisted := newMeter(t, ""), false
			onList(m, 2, func() {
				row.between()
				cluster.crash()
				restart(t)
			})
			atPages := m.before
			m.before = func(r *http.Request) {
				relisted = relisted || strings.HasSuffix(r.URL.Path, "/pods") && !r.URL.Query().Has("limit")
				atPages(r)
			}
			got, err := newSource(m, n.name, kube.Options{PageSize: 2}).Pods(t.Context())
			if err != nil || len(got.Pods) != 9 || relisted != row.relists {
				t.Errorf("got %d pods of 9, %v; a new list: %v, want %v", len(got.Pods), err, relisted, row.relists)
			}
		})
	}
}

// compact removes all older versions from etcd.
func compact(n *node) {
	n.t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"unix:" + filepath.Join(cluster.dir, "client.sock:1")}, DialTimeout: patience,
	})
	n.must(err)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	n.pod("one-more", boundTo("another-node")) // for a later version than that of the page
	now, err := client.Get(ctx, "compact_rev_key")
	n.must(err)
	_, err = client.Compact(ctx, now.Header.Revision)
	n.must(err)
}
