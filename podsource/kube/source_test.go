// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// names returns the names of the pods, separated by spaces.
func names(a podsource.Answer) string {
	var all []string
	for _, p := range a.Pods {
		all = append(all, p.Name)
	}
	return strings.Join(all, " ")
}

// nameOnly reports whether an answer has nothing but the name of its source, as required
// beside an error.
func nameOnly(a podsource.Answer) bool {
	return a.Source == "kube" && a.Pods == nil && a.Networks == nil
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
			reason: "one GET and one LIST of the current state", want: here,
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
			reason: "a server that ignores the selector: pods of other nodes are left out", opts: Options{PageSize: 3}, want: here,
			set: func(a *apiServer) { a.ignoreSelector = true },
			requests: []string{
				getNode, listAll + "&limit=3",
				"GET /api/v1/pods?continue=10%3A3&" + selector + "&limit=3", "GET /api/v1/pods?continue=10%3A6&" + selector + "&limit=3",
			},
		},
		{
			reason: "the version expires between two pages: a new list without pages, with nothing of the old one", opts: Options{PageSize: 4}, want: "new",
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
			reason: "a server whose pages have different versions might skip a pod: a new list", opts: Options{PageSize: 4}, want: "h new",
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
			reason: "kubelet reports that the node is not ready", want: here,
			set:      func(a *apiServer) { ready(a.node, corev1.ConditionFalse) },
			requests: []string{getNode, listAll + "&limit=500"},
		},
		{
			reason: "no check of the node, no GET", opts: Options{SkipNodeCheck: true}, want: here,
			set:      func(a *apiServer) { a.node = nil },
			requests: []string{listAll + "&limit=500"},
		},
		{
			reason: "the Node object comes from GetNode", want: here,
			opts:     Options{GetNode: func(context.Context, string) (*corev1.Node, error) { return node("here", "boot-1"), nil }},
			set:      func(a *apiServer) { a.node = nil },
			requests: []string{listAll + "&limit=500"},
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			a := newAPIServer(t, pods...)
			if row.set != nil {
				row.set(a)
			}
			if !row.opts.SkipNodeCheck {
				row.opts.BootID = boot("boot-1")
			}
			got, err := must(New(a.client(t), "here", row.opts)).Pods(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if names(got) != row.want {
				t.Errorf("got %q, want %q", names(got), row.want)
			}
			got.Pods = nil
			if diff := gocmp.Diff(podsource.Answer{Source: "kube", Networks: []string{podsource.EveryNetwork}}, got); diff != "" {
				t.Errorf("declarations of the answer (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(row.requests, a.requests()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNote: what can't be read spoils its pod, not the list, and the note names it.
func TestNote(t *testing.T) {
	a := newAPIServer(t, pod("a", "here", "10.0.0.1"), pod("spoiled", "here", "10.0.0.300"))
	got, err := must(New(a.client(t), "here", Options{BootID: boot("boot-1")})).Pods(t.Context())
	if err != nil || len(got.Pods) != 2 || got.Pods[0].MoreIPs || !got.Pods[1].MoreIPs || !strings.Contains(got.Note, "shop/spoiled") {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestErrors: no error comes with a list, and each says what to do.
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
		permanent  bool // it does not
	}{
		{
			reason: "no permission to read the node", set: on(1, apierrors.NewForbidden(nodes, "here", errors.New("no"))),
			want: []string{"node here: reading its Node", `lacks the verb "get" on resource "nodes"`, "ClusterRole"},
		},
		{
			reason: "no permission to list pods", set: on(2, apierrors.NewForbidden(pods, "", errors.New("no"))),
			want: []string{"node here: listing its pods", `lacks the verb "list" on resource "pods"`, "ClusterRole"},
		},
		{reason: "an unknown client", set: on(1, apierrors.NewUnauthorized("no")), want: []string{"does not know this client", "has expired"}},
		{reason: "the token expires between two requests", set: on(2, apierrors.NewUnauthorized("no")), want: []string{"listing its pods", "does not know this client"}},
		{reason: "a wrong node name", nodeName: "nowhere", permanent: true, want: []string{"node nowhere: there is no such Node", "asking again will not help", "under which kubelet registered", `nodes "nowhere" not found`}},
		{reason: "an error of a later page: no part of the list", opts: Options{PageSize: 1}, set: on(3, apierrors.NewForbidden(pods, "", errors.New("no"))), want: []string{"listing its pods"}},
		{reason: "the version expires again and again", opts: Options{PageSize: 1}, set: func(a *apiServer) {
			a.before = func(n int, w http.ResponseWriter) bool {
				if n > 2 {
					refuse(w, apierrors.NewResourceExpired("too old"))
				}
				return n > 2
			}
		}, want: []string{"listing its pods", "too old"}},
		{reason: "a server that is starting", set: on(1, apierrors.NewServiceUnavailable("not yet")), want: []string{"can't answer now"}, incomplete: true},
		{reason: "etcd is down", set: on(2, apierrors.NewInternalError(errors.New("etcd"))), want: []string{"listing its pods: the API server can't answer now"}, incomplete: true},
		{reason: "etcd is slow", set: on(2, apierrors.NewTimeoutError("etcd", 0)), want: []string{"can't answer now"}, incomplete: true},
		{reason: "a load balancer's page", set: func(a *apiServer) {
			a.before = func(_ int, w http.ResponseWriter) bool {
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, "<html>")
				return true
			}
		}, want: []string{"no answer from the API server", "address right"}, incomplete: true},
		{reason: "the server is down", set: func(a *apiServer) { a.http.Close() }, want: []string{"no answer from the API server, is it up", "refused"}, incomplete: true},
		{reason: "the server stops in the middle of a list", set: func(a *apiServer) {
			a.before = func(n int, w http.ResponseWriter) bool {
				if n == 2 {
					w.Header().Set("Content-Type", "application/json")
					w.Header().Set("Content-Length", "1000")
					_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[`)
				}
				return n == 2
			}
		}, want: []string{"listing its pods"}, incomplete: true},
		{reason: "items are missing from the list, and no token leads to them", set: func(a *apiServer) { a.missing = 7 }, incomplete: true,
			want: []string{"listing its pods: 7 are missing from the list", "proxy"}},
		{reason: "... from the last page", opts: Options{PageSize: 1}, set: func(a *apiServer) { a.missing = 1 }, incomplete: true,
			want: []string{"1 are missing"}},
		{reason: "another machine, or this one before its boot", opts: Options{BootID: boot("boot-2")},
			want: []string{"boot ID boot-1, but this kernel's is boot-2", "another machine"}, incomplete: true},
		{reason: "kubelet has not reported", set: func(a *apiServer) { a.node = node("here", "") }, want: []string{"has no boot ID"}, incomplete: true},
		{reason: "another machine, which has reported since this one was booted", opts: Options{BootID: boot("boot-2")}, permanent: true,
			set: func(a *apiServer) {
				a.node.Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(time.Now().Add(-time.Second))
			},
			want: []string{"by a kernel with the boot ID boot-1, but this kernel's is boot-2", "is the node's name right?"}},
		{reason: "a heartbeat in the future is of another clock, and ignored", opts: Options{BootID: boot("boot-2")}, incomplete: true,
			set: func(a *apiServer) {
				a.node.Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(time.Now().Add(time.Hour))
			},
			want: []string{"was last reported by a kernel"}},
		{reason: "kubelet does not report", set: func(a *apiServer) { ready(a.node, corev1.ConditionUnknown) }, incomplete: true,
			want: []string{"Ready=Unknown", "NodeStatusUnknown: Kubelet stopped posting node status.", "certificate"}},
		{reason: "the Node has no condition Ready", set: func(a *apiServer) { a.node.Status.Conditions = nil }, incomplete: true, want: []string{"no condition Ready", "has not reported yet"}},
		{reason: "the node was deleted and created again", permanent: true, opts: Options{NodeUID: "old"}, want: []string{"has the UID uid-of-here, expected old"}},
		{reason: "this kernel has no boot ID", opts: Options{BootID: boot("\n")}, want: []string{"boot ID is empty", "Options.BootID"}},
		{reason: "this kernel's boot ID can't be read", opts: Options{BootID: func() (string, error) { return "", fs.ErrPermission }}, want: []string{"reading this kernel's boot ID", "permission", "Options.BootID"}},
		{reason: "a missing file does not mean that there is no API server", opts: Options{BootID: func() (string, error) { return "", fs.ErrNotExist }}, want: []string{"reading this kernel's boot ID"}},
		{reason: "a Node with another name", opts: Options{GetNode: func(context.Context, string) (*corev1.Node, error) { return node("there", "boot-1"), nil }}, want: []string{`got that of "there"`}},
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
			got, err := must(New(a.client(t), cmp.Or(row.nodeName, "here"), row.opts)).Pods(t.Context())
			if err == nil || !nameOnly(got) {
				t.Fatalf("got %v, %v, want nothing but an error", got, err)
			}
			for _, want := range row.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if errors.Is(err, podsource.ErrIncomplete) != row.incomplete {
				t.Errorf("ErrIncomplete: want %v of: %v", row.incomplete, err)
			}
			if errors.Is(err, podsource.ErrPermanent) != row.permanent {
				t.Errorf("ErrPermanent: want %v of: %v", row.permanent, err)
			}
			if errors.Is(err, podsource.ErrNotHere) {
				t.Errorf("Fallback would take this for a source that does not exist: %v", err)
			}
		})
	}
}

// TestContext: the context ends a call, whichever request hangs.
func TestContext(t *testing.T) {
	for n, what := range map[int]string{1: "reading its Node", 2: "listing its pods", 3: "listing its pods"} {
		a := newAPIServer(t, pod("a", "here"), pod("b", "here"))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		a.before = func(got int, _ http.ResponseWriter) bool {
			if got == n {
				cancel()
				<-over
			}
			return got == n
		}
		pods, err := must(New(a.client(t), "here", Options{BootID: boot("boot-1"), PageSize: 1})).Pods(ctx)
		close(over)
		canceled := errors.Is(err, context.Canceled) && !errors.Is(err, podsource.ErrIncomplete)
		if !nameOnly(pods) || !canceled || !strings.Contains(err.Error(), what) {
			t.Errorf("request %d: got %v, %v, want %v that says %q", n, pods, err, context.Canceled, what)
		}
	}
}

// TestArguments: the error of each constructor names all wrong arguments.
func TestArguments(t *testing.T) {
	client, informer := newAPIServer(t).client(t), &fakeInformer{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	checked := Options{GetNode: func(context.Context, string) (*corev1.Node, error) { return nil, nil }}
	for _, row := range []struct {
		reason   string
		client   Client
		informer Informer
		nodeName string
		opts     Options
		want     string    // of both; "" is no error
		own      [2]string // of New and FromLister alone
	}{
		{"valid arguments", client, informer, "here", checked, "", [2]string{}},
		{"a name of a cloud provider", client, informer, "ip-10-0-0-1.eu-west-1.compute.internal", checked, "", [2]string{}},
		{"no node name", client, informer, "", checked, "that is the field spec.nodeName of the downward API", [2]string{}},
		{"not in lower case", client, informer, "Here", checked, `no Node can have the name "Here", as kubelet`, [2]string{}},
		{"a node name with a line feed", client, informer, "here\n", checked, `no Node can have the name "here\n"`, [2]string{}},
		{"negative", client, informer, "here", Options{PageSize: -1, GetNode: checked.GetNode}, "Options.PageSize is -1", [2]string{}},
		{"a UID that is not read", client, informer, "here", Options{SkipNodeCheck: true, NodeUID: "1"}, "reads no Node", [2]string{}},
		{"... a boot ID", client, informer, "here", Options{SkipNodeCheck: true, BootID: boot("1")}, "reads no Node", [2]string{}},
		{"... a Node", client, informer, "here", Options{SkipNodeCheck: true, GetNode: checked.GetNode}, "reads no Node", [2]string{}},
		{"several errors", nil, nil, "", Options{}, "no node name", [2]string{"it needs a client", "it needs an informer"}},
		{"no client and no informer", nil, nil, "here", checked, "", [2]string{"it needs a client", "it needs an informer"}},
		{"no way to check the node", client, informer, "here", Options{}, "", [2]string{"", "set Options.GetNode, or SkipNodeCheck"}},
	} {
		source, newErr := New(row.client, row.nodeName, row.opts)
		cached, cachedErr := FromLister(row.informer, row.nodeName, row.opts)
		for i, err := range []error{newErr, cachedErr} {
			which, made := []string{"New", "FromLister"}[i], []*Source{source, cached}[i] != nil
			if wrong := row.want != "" || row.own[i] != ""; wrong != (err != nil) || made == wrong {
				t.Errorf("%s: %s returned a source: %v, and error %v", row.reason, which, made, err)
			} else if wrong && (!strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), row.own[i])) {
				t.Errorf("%s: %s does not say %q and %q: %v", row.reason, which, row.want, row.own[i], err)
			}
		}
	}
	if pods, err := new(Source).Pods(t.Context()); !nameOnly(pods) || err == nil || !strings.Contains(err.Error(), "not made with") {
		t.Errorf("a zero Source: got %v, %v", pods, err)
	}
}

// must returns s, and panics on an error.
func must[S any](s S, err error) S {
	if err != nil {
		panic(err)
	}
	return s
}

// TestThisKernel: without an option the boot ID is that of this machine.
func TestThisKernel(t *testing.T) {
	a := newAPIServer(t, pod("a", "here"))
	s := must(New(a.client(t), "here", Options{}))
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "Options.BootID") {
			t.Errorf("this system has no boot ID: got %v", err)
		}
		return
	}
	if _, err := s.Pods(t.Context()); !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("the boot ID boot-1 is not that of this kernel: %v", err)
	}
	a.node = node("here", strings.TrimSpace(string(id)))
	if pods, err := s.Pods(t.Context()); err != nil || names(pods) != "a" {
		t.Errorf("got %v, %v", pods, err)
	}
}
