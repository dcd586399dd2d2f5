// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// names returns the names of pods, and "" for none.
func names(a podsource.Answer) string {
	var all []string
	for _, p := range a.Pods {
		all = append(all, p.Name)
	}
	return strings.Join(all, " ")
}

// silent reports whether an answer is what must come beside an error: who does
// not answer, and nothing else.
func silent(a podsource.Answer) bool {
	return a.Source == "kube" && a.Pods == nil && a.Forms == nil
}

const (
	getNode  = "GET /api/v1/nodes/here"
	selector = "fieldSelector=spec.nodeName%3Dhere"
	listAll  = "GET /api/v1/pods?" + selector
)

func TestRequests(t *testing.T) {
	pods := []corev1.Pod{
		pod("a", "here"), pod("b", "there"), pod("c", "here"), pod("d", ""), pod("e", "here"), pod("f", "here2"), pod("g", "here"), pod("h", "here"),
	}
	const here = "a c e g h"
	for _, row := range []struct {
		reason   string
		opts     Options
		set      func(a *apiServer)
		want     string
		requests []string
	}{
		{
			reason: "one GET and one LIST, as things are now", want: here,
			requests: []string{getNode, listAll + "&limit=500"},
		},
		{
			reason: "pages until there are no more", opts: Options{PageSize: 2}, want: here,
			requests: []string{
				getNode, listAll + "&limit=2",
				"GET /api/v1/pods?continue=10%3A4&" + selector + "&limit=2", "GET /api/v1/pods?continue=10%3A7&" + selector + "&limit=2",
			},
		},
		{
			reason: "the last page is just full", opts: Options{PageSize: 5}, want: here,
			requests: []string{getNode, listAll + "&limit=5"},
		},
		{
			reason: "the watch cache answers with what it has, in one piece", opts: Options{WatchCache: true, PageSize: 2},
			set:      func(a *apiServer) { a.set(false, pod("new", "here")) },
			want:     here,
			requests: []string{getNode, listAll + "&resourceVersion=0"},
		},
		{
			reason: "a server that drops the selector: other nodes' pods are not ours", opts: Options{PageSize: 3}, want: here,
			set: func(a *apiServer) { a.ignoreSelector = true },
			requests: []string{
				getNode, listAll + "&limit=3",
				"GET /api/v1/pods?continue=10%3A3&" + selector + "&limit=3", "GET /api/v1/pods?continue=10%3A6&" + selector + "&limit=3",
			},
		},
		{
			reason: "pods come and go between two pages: all pages are of the moment of the first", opts: Options{PageSize: 4}, want: here,
			set: func(a *apiServer) {
				a.before = func(n int, _ http.ResponseWriter) bool {
					if n == 3 {
						a.set(false, pod("new", "here"))
					}
					return false
				}
			},
			requests: []string{getNode, listAll + "&limit=4", "GET /api/v1/pods?continue=10%3A7&" + selector + "&limit=4"},
		},
		{
			reason: "the moment was forgotten between two pages: all over again, at once, nothing of before", opts: Options{PageSize: 4}, want: "new",
			set: func(a *apiServer) {
				a.before = func(n int, _ http.ResponseWriter) bool {
					if n == 3 {
						a.set(true, pod("new", "here"))
					}
					return false
				}
			},
			requests: []string{getNode, listAll + "&limit=4", "GET /api/v1/pods?continue=10%3A7&" + selector + "&limit=4", listAll},
		},
		{
			reason: "a server whose pages are of different moments might skip a pod: all over again", opts: Options{PageSize: 4}, want: "h new",
			set: func(a *apiServer) {
				a.freshPages = true
				a.before = func(n int, _ http.ResponseWriter) bool {
					if n == 3 {
						a.set(false, pod("h", "here"), pod("new", "here"))
					}
					return false
				}
			},
			requests: []string{getNode, listAll + "&limit=4", "GET /api/v1/pods?continue=10%3A7&" + selector + "&limit=4", listAll},
		},
		{
			reason: "no check of the node, no GET", opts: Options{SkipNodeCheck: true}, want: here,
			set:      func(a *apiServer) { a.node = nil },
			requests: []string{listAll + "&limit=500"},
		},
		{
			reason: "the node object comes from elsewhere", want: here,
			opts:     Options{GetNode: func(context.Context, string) (*corev1.Node, error) { return node("here", "boot-1"), nil }},
			set:      func(a *apiServer) { a.node = nil },
			requests: []string{listAll + "&limit=500"},
		},
		{
			reason: "no pod at all is the caller's to judge (R9)",
			set: func(a *apiServer) {
				a.set(true)
			},
			requests: []string{getNode, listAll + "&limit=500"},
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			a := newAPIServer(t, pods...)
			if row.set != nil {
				row.set(a)
			}
			row.opts.BootID = boot("boot-1")
			got, err := New(a.client(t), "here", row.opts).Pods(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if names(got) != row.want {
				t.Errorf("got %q, want %q", names(got), row.want)
			}
			got.Pods = nil
			if diff := cmp.Diff(podsource.Answer{Source: "kube", Forms: []podsource.Form{podsource.Hex64}}, got); diff != "" {
				t.Errorf("what the answer declares (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.requests, a.requests()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestErrors: whatever goes wrong, there is no list, and the error says what to
// do.
func TestErrors(t *testing.T) {
	pods, nodes := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "nodes"}
	// on answers request n with an error.
	on := func(n int, err *apierrors.StatusError) func(a *apiServer) {
		return func(a *apiServer) {
			a.before = func(got int, w http.ResponseWriter) bool {
				if got == n {
					refuse(w, err)
				}
				return got == n
			}
		}
	}
	for _, row := range []struct {
		reason     string
		nodeName   string // "" is the right one
		opts       Options
		set        func(a *apiServer)
		want       []string
		incomplete bool // waiting may help
	}{
		{
			reason: "no right to read the node", set: on(1, apierrors.NewForbidden(nodes, "here", errors.New("no"))),
			want: []string{"node here: reading its Node", `lacks the verb "get" on resource "nodes"`, "ClusterRole"},
		},
		{
			reason: "no right to list pods", set: on(2, apierrors.NewForbidden(pods, "", errors.New("no"))),
			want: []string{"node here: listing its pods", `lacks the verb "list" on resource "pods"`, "ClusterRole"},
		},
		{reason: "an unknown client", set: on(1, apierrors.NewUnauthorized("no")), want: []string{"does not know this client", "has expired"}},
		{reason: "the token expires between two requests", set: on(2, apierrors.NewUnauthorized("no")), want: []string{"listing its pods", "does not know this client"}},
		{reason: "a wrong node name", nodeName: "nowhere", want: []string{"node nowhere: there is no such Node", "under which kubelet registered", `nodes "nowhere" not found`}},
		{reason: "no node name would choose the pods that have no node", nodeName: "-", want: []string{"without a node name", "downward API"}},
		{reason: "another page is refused: no part of a list", opts: Options{PageSize: 1}, set: on(3, apierrors.NewForbidden(pods, "", errors.New("no"))), want: []string{"listing its pods"}},
		{reason: "the moment is forgotten again and again", opts: Options{PageSize: 1}, set: func(a *apiServer) {
			a.before = func(n int, w http.ResponseWriter) bool {
				if n > 2 {
					refuse(w, apierrors.NewResourceExpired("too old"))
				}
				return n > 2
			}
		}, want: []string{"listing its pods", "too old"}},
		{reason: "a server that is starting", set: on(1, apierrors.NewServiceUnavailable("not yet")), want: []string{"can't answer now"}, incomplete: true},
		{reason: "etcd is away", set: on(2, apierrors.NewInternalError(errors.New("etcd"))), want: []string{"listing its pods: the API server can't answer now"}, incomplete: true},
		{reason: "etcd is slow", set: on(2, apierrors.NewTimeoutError("etcd", 0)), want: []string{"can't answer now"}, incomplete: true},
		{reason: "a load balancer's page", set: func(a *apiServer) {
			a.before = func(_ int, w http.ResponseWriter) bool {
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, "<html>")
				return true
			}
		}, want: []string{"no answer from the API server", "address right"}, incomplete: true},
		{reason: "the server is away", set: func(a *apiServer) { a.http.Close() }, want: []string{"no answer from the API server, is it up", "refused"}, incomplete: true},
		{reason: "the server goes away in the middle of a list", set: func(a *apiServer) {
			a.before = func(n int, w http.ResponseWriter) bool {
				if n == 2 {
					w.Header().Set("Content-Type", "application/json")
					w.Header().Set("Content-Length", "1000")
					_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[`)
				}
				return n == 2
			}
		}, want: []string{"listing its pods"}, incomplete: true},
		{reason: "a pod with an address that is none", set: func(a *apiServer) {
			a.set(true, pod("a", "here", "10.0.0.1"), pod("bad", "here", "10.0.0.300"))
		}, want: []string{"shop/bad", "10.0.0.300"}},
		{reason: "another machine, or this one before its boot", opts: Options{BootID: boot("boot-2")},
			want: []string{"boot ID boot-1, and this kernel's is boot-2", "another machine's"}, incomplete: true},
		{reason: "kubelet has not reported", set: func(a *apiServer) { a.node = node("here", "") }, want: []string{"has no boot ID"}, incomplete: true},
		{reason: "the node was deleted and made anew", opts: Options{NodeUID: "old"}, want: []string{"has the UID uid-of-here, and expected was old"}},
		{reason: "this kernel has no boot ID", opts: Options{BootID: boot("\n")}, want: []string{"boot ID is empty", "Options.BootID"}},
		{reason: "this kernel's boot ID can't be read", opts: Options{BootID: func() (string, error) { return "", fs.ErrPermission }}, want: []string{"reading this kernel's boot ID", "permission", "Options.BootID"}},
		{reason: "a missing file is no missing API server", opts: Options{BootID: func() (string, error) { return "", fs.ErrNotExist }}, want: []string{"reading this kernel's boot ID"}},
		{reason: "a Node of another name", opts: Options{GetNode: func(context.Context, string) (*corev1.Node, error) { return node("there", "boot-1"), nil }}, want: []string{`got that of "there"`}},
		{reason: "no Node and no error", opts: Options{GetNode: func(context.Context, string) (*corev1.Node, error) { return nil, nil }}, want: []string{"got none"}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			a := newAPIServer(t, pod("a", "here"), pod("b", "here"))
			if row.set != nil {
				row.set(a)
			}
			if row.opts.BootID == nil {
				row.opts.BootID = boot("boot-1")
			}
			name := row.nodeName
			switch name {
			case "":
				name = "here"
			case "-":
				name = ""
			}
			got, err := New(a.client(t), name, row.opts).Pods(t.Context())
			if err == nil || !silent(got) {
				t.Fatalf("got %v, %v, want nothing but an error", got, err)
			}
			for _, want := range row.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if errors.Is(err, podsource.ErrIncomplete) != row.incomplete {
				t.Errorf("waiting may help: want %v of: %v", row.incomplete, err)
			}
			if errors.Is(err, podsource.ErrNotHere) {
				t.Errorf("Fallback would take this for a source that does not exist: %v", err)
			}
		})
	}
}

// TestContext: neither a caller's context nor the Timeout is outlived, whichever
// request hangs.
func TestContext(t *testing.T) {
	for n, what := range map[int]string{1: "reading its Node", 2: "listing its pods", 3: "listing its pods"} {
		for _, row := range []struct {
			reason string
			opts   Options
			cancel bool
			want   error
			says   string
		}{
			{"the caller gives up", Options{}, true, context.Canceled, what},
			{"the time is over", Options{Timeout: 50 * time.Millisecond}, false, context.DeadlineExceeded, "no answer within 50ms"},
		} {
			t.Run(fmt.Sprintf("request %d, %s", n, row.reason), func(t *testing.T) {
				a := newAPIServer(t, pod("a", "here"), pod("b", "here"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan struct{})
				a.before = func(got int, _ http.ResponseWriter) bool {
					if got == n {
						if row.cancel {
							cancel()
						}
						<-over
					}
					return got == n
				}
				row.opts.BootID, row.opts.PageSize = boot("boot-1"), 1
				pods, err := New(a.client(t), "here", row.opts).Pods(ctx)
				close(over)
				if !silent(pods) || !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.says) {
					t.Errorf("got %v, %v, want %v that says %q", pods, err, row.want, row.says)
				}
				if incomplete := errors.Is(err, podsource.ErrIncomplete); incomplete == row.cancel {
					t.Errorf("waiting may help: %v, of %v", incomplete, err)
				}
			})
		}
	}
}

func TestWithoutClient(t *testing.T) {
	for name, s := range map[string]*Source{
		"no client": New(nil, "here", Options{}), "no lister": FromLister(nil, func() bool { return true }, "here", Options{}), "nothing": new(Source),
	} {
		if pods, err := s.Pods(t.Context()); !silent(pods) || err == nil || !strings.Contains(err.Error(), "without a client or a lister") {
			t.Errorf("%s: got %v, %v", name, pods, err)
		}
	}
}

// TestThisKernel: without an option the boot ID is this machine's, as kubelet
// reads it.
func TestThisKernel(t *testing.T) {
	a := newAPIServer(t, pod("a", "here"))
	s := New(a.client(t), "here", Options{})
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "Options.BootID") {
			t.Errorf("this system has no boot ID, and the error says %v", err)
		}
		return
	}
	if _, err := s.Pods(t.Context()); !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("the node was booted as boot-1, which is not this kernel: %v", err)
	}
	a.node = node("here", strings.TrimSpace(string(id)))
	if pods, err := s.Pods(t.Context()); err != nil || names(pods) != "a" {
		t.Errorf("got %v, %v", pods, err)
	}
}

// TestAskedAnew: nothing of one answer is left for the next.
func TestAskedAnew(t *testing.T) {
	a := newAPIServer(t, pod("a", "here"))
	s := New(a.client(t), "here", Options{BootID: boot("boot-1")})
	for _, want := range [][]corev1.Pod{{pod("b", "here")}, {pod("c", "here"), pod("d", "here")}, {}} {
		a.set(true, want...)
		pods, err := s.Pods(t.Context())
		if err != nil || len(pods.Pods) != len(want) || slices.ContainsFunc(want, func(p corev1.Pod) bool { return !strings.Contains(names(pods), p.Name) }) {
			t.Errorf("got %q, %v, want %d pods", names(pods), err, len(want))
		}
	}
	a.node = node("here", "boot-2")
	if pods, err := s.Pods(t.Context()); !silent(pods) || err == nil {
		t.Errorf("the node's name went to another machine: got %v, %v", pods, err)
	}
}
