// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package kube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A fakeClient returns lists and watches of the test. It needs no connection, so it works in
// a synctest bubble. Package examples/e2e/apiserver runs the informer against a real server.
type fakeClient struct {
	typedcorev1.NodesGetter
	typedcorev1.PodInterface

	mu      sync.Mutex // guards the fields below
	listed  []corev1.Pod
	version string
	err     error         // of the next lists and watches
	asked   []string      // "list" and "watch", each with its resource version
	slow    time.Duration // how long a list takes
	stream  *watch.FakeWatcher
}

func (f *fakeClient) Pods(namespace string) typedcorev1.PodInterface {
	f.set(func() { f.asked = append(f.asked, namespace) }) // must be ""
	return f
}

func (f *fakeClient) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// now returns the stream of the current watch.
func (f *fakeClient) now() (w *watch.FakeWatcher) {
	f.set(func() { w = f.stream })
	return w
}

func (f *fakeClient) List(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	var slow time.Duration
	f.set(func() { slow = f.slow })
	time.Sleep(slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("list", opts)
	list := corev1.PodList{Items: slices.Clone(f.listed)}
	list.ResourceVersion = f.version
	return &list, f.err
}

func (f *fakeClient) Watch(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("watch", opts)
	if !opts.AllowWatchBookmarks || opts.TimeoutSeconds == nil || *opts.TimeoutSeconds > 300 || *opts.TimeoutSeconds < 240 {
		return nil, errors.New("a watch without bookmarks or without a time limit")
	}
	if f.err != nil {
		return nil, f.err
	}
	f.stream = watch.NewFake()
	return f.stream, nil
}

// note appends the request to the namespace in asked, which must be "".
func (f *fakeClient) note(verb string, opts metav1.ListOptions) {
	last := len(f.asked) - 1
	f.asked[last] += strings.TrimSpace(verb+" "+opts.FieldSelector) + "@" + opts.ResourceVersion
}

// askedSince returns the requests since its last call.
func (f *fakeClient) askedSince() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := strings.ReplaceAll(strings.Join(f.asked, ", "), " spec.nodeName=here", "")
	f.asked = nil
	return all
}

// at returns a copy of p with a resource version.
func at(version string, p corev1.Pod) *corev1.Pod {
	p.ResourceVersion = version
	return &p
}

// A running is an informer that runs in a bubble.
type running struct {
	*Informer
	t      *testing.T
	client *fakeClient
}

func run(t *testing.T, test func(i *running)) {
	synctest.Test(t, func(t *testing.T) {
		client := &fakeClient{listed: []corev1.Pod{pod("a", "here"), pod("b", "there")}, version: "10"}
		i := &running{must(NewInformer(client, "here", Options{SkipNodeCheck: true})), t, client}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- i.Start(ctx) }()
		synctest.Wait()
		test(i)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

// has checks the pods, the time since they were last in sync, and the requests since the
// last call.
func (i *running) has(reason, pods string, ago time.Duration, asked string) podsource.Answer {
	i.t.Helper()
	synctest.Wait()
	a, err := i.Pods(i.t.Context())
	got := strings.Fields(names(a))
	slices.Sort(got)
	if err != nil || strings.Join(got, " ") != pods || time.Since(a.AsOf) != ago {
		i.t.Errorf("%s: got %v of %v ago, %v, want %q of %v ago", reason, got, time.Since(a.AsOf), err, pods, ago)
	}
	if got := i.client.askedSince(); got != asked {
		i.t.Errorf("%s: the requests were %q, want %q", reason, got, asked)
	}
	return a
}

func TestInformer(t *testing.T) {
	run(t, func(i *running) {
		i.has("listed, without the pods of other nodes", "a", 0, "list@, watch@10")
		time.Sleep(time.Minute)
		i.has("no event", "a", time.Minute, "")
		i.client.now().Add(at("11", pod("c", "here")))
		i.has("a pod was added", "a c", 0, "")
		time.Sleep(time.Second)
		i.client.now().Modify(at("12", pod("c", "here", "10.0.0.2")))
		if a := i.has("it has an address", "a c", 0, ""); len(a.Pods) != 2 || len(a.Pods[0].IPs)+len(a.Pods[1].IPs) != 1 {
			t.Errorf("got %v", a.Pods)
		}
		i.client.now().Delete(at("13", pod("a", "here")))
		i.has("a pod was deleted", "c", 0, "")
		i.client.now().Stop()
		time.Sleep(2 * time.Second)
		i.has("the watch ended, and was resumed", "c", 2*time.Second, "watch@13")
		if err := i.Start(i.t.Context()); err == nil {
			t.Error("it was started twice")
		}
		if i.NeedLeaderElection() {
			t.Error("it runs on the leader only")
		}
	})
}

// The age of the pods counts from the last event with a new version, whatever is wrong with
// the watch.
//
// Guard: [Informer.apply] keeps the time while the version is the same, and
// [Informer.relist] and [Informer.watch] while the API server is down.
func TestHazard62BrokenWatch(t *testing.T) {
	run(t, func(i *running) {
		i.has("listed", "a", 0, "list@, watch@10")
		bookmark := func(version string) *corev1.Pod {
			p := new(corev1.Pod)
			p.ResourceVersion = version
			return p
		}
		time.Sleep(time.Minute)
		i.client.now().Action(watch.Bookmark, bookmark("10"))
		i.has("a server without etcd repeats its last version", "a", time.Minute, "")
		i.client.now().Action(watch.Bookmark, bookmark("20"))
		i.has("a bookmark with a new version", "a", 0, "")

		i.client.set(func() { i.client.err = errors.New("connection refused") })
		i.client.now().Stop()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		i.client.askedSince()
		if a := i.has("the server is down", "a", 3*time.Minute, ""); !strings.Contains(a.Note, "watch is broken") || !strings.Contains(a.Note, "connection refused") {
			t.Errorf("the note is %q", a.Note)
		}
		i.client.set(func() { i.client.err = nil })
		time.Sleep(time.Minute)
		if a := i.has("it is back, without an event yet", "a", 4*time.Minute, "watch@20"); a.Note != "" {
			t.Errorf("the note is %q", a.Note)
		}
		i.client.now().Add(at("30", pod("c", "here")))
		i.has("a pod was added", "a c", 0, "")

		i.client.set(func() { i.client.err = errors.New("connection refused") })
		i.client.now().Stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		if asked := i.client.askedSince(); !strings.HasSuffix(asked, "list@, list@") {
			t.Errorf("down for an hour, the requests were %q", asked)
		}
		if a := i.has("down for an hour", "a c", time.Hour, ""); a.Note == "" {
			t.Error("the answer has no note that the watch is broken")
		}
		i.client.set(func() { i.client.err, i.client.version, i.client.slow = nil, "50", 20*time.Second })
		for {
			time.Sleep(time.Second)
			synctest.Wait()
			a, err := i.Pods(i.t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if a.Note != "" {
				continue
			}
			if age := time.Since(a.AsOf); age < 20*time.Second || age > 21*time.Second {
				t.Errorf("a list that took 20 seconds is %v old", age)
			}
			break
		}
		if asked := i.client.askedSince(); !strings.HasSuffix(asked, "list@, watch@50") {
			t.Errorf("back again, the requests were %q", asked)
		}
	})
}

// After a watch that is not reliable the pods are listed again.
func TestListedAgain(t *testing.T) {
	for _, row := range []struct {
		reason string
		do     func(f *fakeClient)
		then   func(f *fakeClient)
	}{
		{"the version has expired when the watch begins", func(f *fakeClient) {
			f.set(func() { f.err = apierrors.NewResourceExpired("too old") })
			f.now().Add(at("11", pod("c", "here"))) // so that the watch may be resumed
			f.now().Stop()
		}, func(f *fakeClient) { f.set(func() { f.err = nil }) }},
		{"the version has expired", func(f *fakeClient) {
			status := apierrors.NewResourceExpired("too old").Status()
			f.now().Error(&status)
		}, nil},
		{"another error of the server", func(f *fakeClient) { f.now().Error(&metav1.Status{Message: "?"}) }, nil},
		{"an event without a pod", func(f *fakeClient) { f.now().Add(&corev1.Node{}) }, nil},
		{"an event without a version", func(f *fakeClient) { f.now().Add(at("", pod("c", "here"))) }, nil},
		{"an event of an unknown type", func(f *fakeClient) { f.now().Action("MOVED", at("11", pod("c", "here"))) }, nil},
		{"a watch without an event", func(f *fakeClient) { f.now().Stop() }, nil},
		{"a watch that repeats its version", func(f *fakeClient) {
			f.now().Action(watch.Bookmark, at("10", corev1.Pod{}))
			f.now().Stop()
		}, nil},
		{"the connection hangs", func(*fakeClient) { time.Sleep(watchFor + time.Minute) }, nil},
	} {
		t.Run(row.reason, func(t *testing.T) {
			run(t, func(i *running) {
				i.has("listed", "a", 0, "list@, watch@10")
				i.client.set(func() { i.client.listed, i.client.version = []corev1.Pod{pod("new", "here")}, "40" })
				row.do(i.client)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if row.then != nil {
					row.then(i.client)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if asked := i.client.askedSince(); !strings.HasSuffix(asked, "list@, watch@40") {
					t.Errorf("the requests were %q", asked)
				}
				if a, err := i.Pods(i.t.Context()); err != nil || names(a) != "new" || a.Note != "" {
					t.Errorf("got %q (%s), %v", names(a), a.Note, err)
				}
			})
		})
	}
}

// Until the first list Pods returns an error, which says why.
func TestInformerWithoutList(t *testing.T) {
	client := &fakeClient{version: "10"}
	i := must(NewInformer(client, "here", Options{SkipNodeCheck: true}))
	if a, err := i.Pods(t.Context()); !nameOnly(a) || !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "call its Start") {
		t.Errorf("got %v, %v", a, err)
	}
	synctest.Test(t, func(t *testing.T) {
		client := &fakeClient{version: "10", err: apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))}
		i := must(NewInformer(client, "here", Options{SkipNodeCheck: true}))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = i.Start(ctx) }()
		synctest.Wait()
		if a, err := i.Pods(t.Context()); !nameOnly(a) || !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), `lacks the verb "list"`) {
			t.Errorf("got %v, %v", a, err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := strings.Count(client.askedSince(), "list"); n < 60 || n > 200 {
			t.Errorf("%d lists in an hour", n)
		}
		client.set(func() { client.err = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if a, err := i.Pods(t.Context()); err != nil || a.AsOf.IsZero() {
			t.Errorf("got %v, %v", a, err)
		}
	})
}

// A pod of a watch that can't be read is an error of the whole answer (R2).
//
// Guard: [Source.localOf] leaves out no pod of the node.
func TestHazard07EventThatCantBeRead(t *testing.T) {
	run(t, func(i *running) {
		i.has("listed", "a", 0, "list@, watch@10")
		i.client.now().Add(at("11", pod("bad", "here", "nonsense")))
		synctest.Wait()
		if a, err := i.Pods(i.t.Context()); !nameOnly(a) || err == nil || !strings.Contains(err.Error(), "shop/bad") {
			t.Errorf("got %v, %v", a, err)
		}
	})
}

// A synced is the state of an informer.
type synced struct{ version string }

func (s *synced) HasSynced() bool                 { return s.version != "" }
func (s *synced) LastSyncResourceVersion() string { return s.version }

// An informer was in sync at the last call before its version changed, and not known to be
// later.
//
// Guard: [InStep] does not take a broken watch for one without events.
func TestHazard62InformerWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var informer synced
		inStep := InStep(&informer)
		begun := time.Now()
		for _, step := range []struct {
			reason  string
			version string
			want    time.Duration // after begun; -1 is unknown
		}{
			{"it has not synced", "", -1},
			{"its first list may be from the API server's watch cache", "10", -1},
			{"no event since", "10", -1},
			{"an event after the last call", "20", 2 * time.Minute},
			{"no event since", "20", 2 * time.Minute},
			{"no event since", "20", 2 * time.Minute},
			{"an event", "30", 5 * time.Minute},
			{"an event", "31", 6 * time.Minute},
			{"it lists again", "", 6 * time.Minute},
			{"it has listed", "40", 6 * time.Minute},
			{"an event after the list", "41", 9 * time.Minute},
		} {
			informer.version = step.version
			want := time.Time{}
			if step.want >= 0 {
				want = begun.Add(step.want)
			}
			if got := inStep(); !got.Equal(want) {
				t.Errorf("%s: got %v after the beginning, want %v", step.reason, got.Sub(begun), step.want)
			}
			time.Sleep(time.Minute)
		}
	})
}

// expiring lists, and its watches never begin.
type expiring struct{ *fakeClient }

func (e expiring) Pods(namespace string) typedcorev1.PodInterface {
	e.fakeClient.Pods(namespace)
	return e
}

func (e expiring) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, apierrors.NewResourceExpired("too old")
}

// While the API server lets every watch expire, lists back off. An informer that has ended may
// be started again.
func TestListsBackOffWhileWatchesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := expiring{&fakeClient{listed: []corev1.Pod{pod("a", "here")}, version: "10"}}
		i := must(NewInformer(client, "here", Options{SkipNodeCheck: true}))
		for range 2 {
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			if err := i.Start(ctx); err != nil {
				t.Error(err)
			}
			stop()
			if n := strings.Count(client.askedSince(), "list"); n > 30 {
				t.Errorf("%d lists in ten minutes", n)
			}
		}
	})
}

// A pod that has finished stays in the list: it holds its address for a while.
func TestInformerKeepsFinishedPods(t *testing.T) {
	run(t, func(i *running) {
		i.has("listed", "a", 0, "list@, watch@10")
		finished := pod("a", "here", "10.0.0.2")
		finished.Status.Phase = corev1.PodFailed
		i.client.now().Modify(at("11", finished))
		if a := i.has("it failed", "a", 0, ""); len(a.Pods) != 1 || !a.Pods[0].HasFinished() {
			t.Errorf("got %+v", a.Pods)
		}
	})
}
