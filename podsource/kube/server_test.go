// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An apiServer answers GET of a node and LIST of pods over HTTP. Unlike a fake clientset it
// has field selectors, and pages with the resource version of the first, which may expire.
// Package examples/e2e/apiserver uses a real server.
type apiServer struct {
	http *httptest.Server

	mu             sync.Mutex
	node           *corev1.Node
	now            int                  // the current resource version
	versions       map[int][]corev1.Pod // pods by resource version
	missing        int64                // remainingItemCount of each page without a token
	ignoreSelector bool
	freshPages     bool                                           // pages after the first have the current version
	asked          []string                                       // method, path and query of each request
	before         func(n int, w http.ResponseWriter) (done bool) // before the answer to request n, counted from 1
}

func newAPIServer(t *testing.T, pods ...corev1.Pod) *apiServer {
	t.Helper()
	a := &apiServer{node: node("here", "boot-1"), now: 10, versions: map[int][]corev1.Pod{10: pods}}
	a.http = httptest.NewServer(a)
	t.Cleanup(a.http.Close)
	return a
}

// set stores pods as a new version. With forget, older versions expire.
func (a *apiServer) set(forget bool, pods ...corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if forget {
		clear(a.versions)
	}
	a.now++
	a.versions[a.now] = pods
}

func (a *apiServer) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

func (a *apiServer) client(t *testing.T) Client {
	t.Helper()
	c, err := typedcorev1.NewForConfig(&rest.Config{Host: a.http.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, strings.TrimSuffix(r.Method+" "+r.URL.Path+"?"+r.URL.RawQuery, "?"))
	n, before := len(a.asked), a.before
	a.mu.Unlock()
	if before != nil && before(n, w) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/"); ok && r.Method == http.MethodGet {
		if a.node == nil || a.node.Name != name {
			refuse(w, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name))
			return
		}
		answer(w, http.StatusOK, a.node)
		return
	}
	if r.Method != http.MethodGet || r.URL.Path != "/api/v1/pods" {
		refuse(w, apierrors.NewBadRequest("not served here: "+r.URL.Path))
		return
	}
	a.list(w, r)
}

// list serves one page. A token is "version:offset".
func (a *apiServer) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit")) // zero without one
	version, offset := a.now, 0
	if token := query.Get("continue"); token != "" {
		if _, err := fmt.Sscanf(token, "%d:%d", &version, &offset); err != nil || query.Get("resourceVersion") != "" {
			refuse(w, apierrors.NewBadRequest("bad token, or a version beside it"))
			return
		}
		if a.freshPages {
			version = a.now
		}
	}
	pods, ok := a.versions[version]
	if !ok {
		refuse(w, apierrors.NewResourceExpired("The provided continue parameter is too old"))
		return
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	list.ResourceVersion = strconv.Itoa(version)
	wanted, selected := strings.CutPrefix(query.Get("fieldSelector"), "spec.nodeName=")
	for i := offset; i < len(pods); i++ {
		if selected && !a.ignoreSelector && pods[i].Spec.NodeName != wanted {
			continue
		}
		if limit > 0 && len(list.Items) == limit {
			list.Continue = fmt.Sprintf("%d:%d", version, i)
			break
		}
		list.Items = append(list.Items, pods[i])
	}
	if list.Continue == "" {
		list.RemainingItemCount = &a.missing
	}
	answer(w, http.StatusOK, &list)
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may have closed the connection
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	answer(w, int(status.Code), &status)
}

func node(name, bootID string) *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
	n.Name, n.UID, n.Status.NodeInfo.BootID = name, "uid-of-here", bootID
	return ready(n, corev1.ConditionTrue)
}

// beat is the time of kubelet's last report: before the boot of any machine that runs this test.
var beat = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// ready sets the Node's condition Ready.
func ready(n *corev1.Node, status corev1.ConditionStatus) *corev1.Node {
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionUnknown},
		{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.NewTime(beat), Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."},
	}
	return n
}

// pod returns a running pod on a node.
func pod(name, nodeName string, ips ...string) corev1.Pod {
	var p corev1.Pod
	p.Namespace, p.Name, p.UID = "shop", name, types.UID("uid-of-"+name)
	p.Spec.NodeName = nodeName
	p.Status.Phase = corev1.PodRunning
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// boot returns a value of Options.BootID.
func boot(id string) func() (string, error) {
	return func() (string, error) { return id, nil }
}

// attachments are those of the pods of one node.
type attachments []podsource.Attachment

func (all *attachments) add(a podsource.Attachment) { *all = append(*all, a) }

func (all *attachments) remove(a podsource.Attachment) {
	*all = slices.DeleteFunc(*all, func(b podsource.Attachment) bool { return a.ContainerID == b.ContainerID && a.IfName == b.IfName })
}

// pods returns the pods with their addresses, as kubelet reports them.
func (all attachments) pods() (pods []corev1.Pod) {
	for _, a := range all {
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Namespace == a.Pod.Namespace && p.Name == a.Pod.Name })
		if i < 0 {
			i, pods = len(pods), append(pods, pod(a.Pod.Name, "here"))
			pods[i].Namespace = a.Pod.Namespace
		}
		pods[i].Status.PodIPs = append(pods[i].Status.PodIPs, corev1.PodIP{IP: a.IPs[0].String()})
	}
	return pods
}

// The hazards of gctest, with an API server.
func TestSourceOfNew(t *testing.T) {
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		server, bootID := newAPIServer(t), "boot-1"
		var all attachments
		client := server.client(t)
		refused := func(http.ResponseWriter) bool { return false }
		server.before = func(_ int, w http.ResponseWriter) bool { return refused(w) }
		return gctest.Fixture{
			Source:   must(New(client, "here", Options{PageSize: 2, BootID: func() (string, error) { return bootID, nil }})),
			Networks: []string{podsource.EveryNetwork},
			Attach:   func(a podsource.Attachment) { all.add(a); server.set(false, all.pods()...) },
			Detach:   func(a podsource.Attachment) { all.remove(a); server.set(false, all.pods()...) },
			Break: func() {
				refused = func(w http.ResponseWriter) bool {
					refuse(w, apierrors.NewInternalError(fmt.Errorf("etcd is down")))
					return true
				}
			},
			Repair: func() { refused = func(http.ResponseWriter) bool { return false } },
			Lose:   func() { server.node = nil },
			Reboot: func() {
				all, bootID = nil, "boot-2"
				server.node = node("here", bootID)
				server.set(true)
			},
		}
	})
}

// The hazards of gctest, with an informer. Its list is as old as the last event.
func TestSourceOfFromLister(t *testing.T) {
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		var all attachments
		informer, broken := newFakeInformer(), false
		source := must(FromLister(informer, "here", Options{SkipNodeCheck: true}))
		_, _ = source.Pods(t.Context()) // it is in sync with the first event
		event := func() {
			if !broken {
				informer.set(all.pods())
			}
		}
		return gctest.Fixture{
			Source:   source,
			Networks: []string{podsource.EveryNetwork},
			Attach:   func(a podsource.Attachment) { all.add(a); event() },
			Detach:   func(a podsource.Attachment) { all.remove(a); event() },
			Break:    func() { broken = true },
			Repair:   func() { broken = false },
			Reboot:   func() { all = nil; event() },
		}
	})
}

// A fakeInformer is an informer that has synced if it has a version.
type fakeInformer struct {
	cache.Store
	version atomic.Int64
}

func newFakeInformer(objects ...any) *fakeInformer {
	f := &fakeInformer{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	f.version.Store(10)
	if err := f.Replace(objects, ""); err != nil {
		panic(err)
	}
	return f
}

// set is an event, after which the informer has these pods.
func (f *fakeInformer) set(pods []corev1.Pod) {
	var objects []any
	for i := range pods {
		objects = append(objects, &pods[i])
	}
	if err := f.Replace(objects, ""); err != nil {
		panic(err)
	}
	f.version.Add(1)
}

func (f *fakeInformer) GetStore() cache.Store { return f.Store }
func (f *fakeInformer) HasSynced() bool       { return f.version.Load() > 0 }
func (f *fakeInformer) LastSyncResourceVersion() string {
	return strconv.FormatInt(f.version.Load(), 10)
}
