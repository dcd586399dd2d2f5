// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An Informer is a source that watches the pods of its node. It is for an agent with
// frequent passes or on many nodes: a pass costs the API server one GET of the Node. It is
// made by [NewInformer].
//
// It can't be filtered, and the age of its pods is known: the AsOf of an answer is when the
// API server last sent anything new. That is a pod, or a bookmark, which comes about once a
// minute if anything changes in the cluster. After five minutes without either the Informer
// lists again.
type Informer struct {
	source  *Source
	client  Client
	running atomic.Bool

	mu      sync.Mutex                           // guards the fields below
	pods    map[types.NamespacedName]*corev1.Pod // nil before the first list
	version string                               // the resource version of pods
	asOf    time.Time                            // when pods was last in sync
	broken  error                                // why the last list or watch failed
}

// watchFor is the longest duration of a watch. After as long without a new event the
// informer lists again.
const watchFor = 5 * time.Minute

// listFor is the longest duration of a list, with all of its pages.
const listFor = 30 * time.Second

// NewInformer returns an informer of the pods bound to the node. It sends no request before
// [Informer.Start]. In addition to the two permissions of [New], its account needs the verb
// watch on pods. The error names everything that is wrong with the arguments.
func NewInformer(client Client, nodeName string, opts Options) (*Informer, error) {
	if opts.WatchCache {
		return nil, errors.New("making a kube informer: Options.WatchCache is for New")
	}
	s, err := withClient(client, nodeName, opts)
	if err != nil {
		return nil, err
	}
	i := &Informer{source: s, client: client}
	s.list = i.answer
	return i, nil
}

// Start lists and watches until ctx ends, and then returns. Until the first list has been
// read, Pods returns [podsource.ErrIncomplete]. An Informer may be added to the manager of
// controller-runtime, which starts it on every node.
func (i *Informer) Start(ctx context.Context) error {
	if i.running.Swap(true) {
		return errors.New("the kube informer runs already")
	}
	defer i.running.Store(false)
	listed, failures := false, 0
	for ctx.Err() == nil {
		if !listed {
			err := i.relist(ctx)
			if listed = err == nil; listed {
				i.setBroken(nil)
				continue // watch at once
			}
			i.setBroken(err)
			failures++
		} else {
			resumable, err := i.watch(ctx)
			i.setBroken(err)
			if failures++; resumable && err == nil {
				failures = 0
			}
			listed = resumable && i.age() < watchFor
		}
		pause(ctx, failures)
	}
	return nil
}

// age returns the time since the pods were last in sync.
func (i *Informer) age() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Since(i.asOf)
}

func (i *Informer) setBroken(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.broken = err
}

// Pods returns the pods of the last list and the events since, or an error, as
// [Source.Pods] does. The Note of the answer says why a watch is broken.
func (i *Informer) Pods(ctx context.Context) (podsource.Answer, error) { return i.source.Pods(ctx) }

// NeedLeaderElection returns false, so the manager of controller-runtime starts the
// Informer on every node.
func (*Informer) NeedLeaderElection() bool { return false }

// pause waits a second, and longer after failures (lists that failed, and watches without
// an event), up to 30 seconds. It adds up to as much again to spread load.
func pause(ctx context.Context, failures int) {
	d := min(time.Second<<min(failures, 5), 30*time.Second)
	t := time.NewTimer(d + rand.N(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// relist replaces the pods with a new list. This is a consistent read, which a server
// that is cut off from etcd can't answer.
func (i *Informer) relist(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	begun := time.Now()
	opts := i.source.selector()
	opts.Limit = i.source.opts.PageSize
	all, version, err := listPages(ctx, i.client.Pods(metav1.NamespaceAll), opts, func(pod *corev1.Pod) (*corev1.Pod, bool, error) {
		return pod, pod.Spec.NodeName == i.source.nodeName, nil
	})
	if err != nil {
		return err
	}
	pods := make(map[types.NamespacedName]*corev1.Pod, len(all))
	for _, pod := range all {
		pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = pod
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pods, i.version, i.asOf = pods, version, begun
	return nil
}

// watch applies events until the watch ends. It reports whether the next watch may resume
// at the last version. Otherwise the pods must be listed again: the version has expired, an
// event could not be read, or no event with a new version shows that the watch worked.
func (i *Informer) watch(ctx context.Context) (resumable bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchFor+time.Minute) // for a connection that hangs
	defer cancel()
	seconds := int64((watchFor - rand.N(watchFor/5)).Seconds())
	opts := i.source.selector()
	i.mu.Lock()
	opts.ResourceVersion = i.version
	i.mu.Unlock()
	opts.AllowWatchBookmarks, opts.TimeoutSeconds = true, &seconds
	w, err := i.client.Pods(metav1.NamespaceAll).Watch(ctx, opts)
	if err != nil {
		return !expired(err), explain(err, "watching its pods", `verb "watch" on resource "pods"`)
	}
	defer w.Stop()
	i.setBroken(nil)
	for {
		select {
		case <-ctx.Done():
			return resumable, nil
		case event, open := <-w.ResultChan():
			if !open {
				return resumable, nil
			}
			changed, err := i.apply(event)
			if err != nil {
				return false, fmt.Errorf("watching its pods: %w", err)
			}
			resumable = resumable || changed
		}
	}
}

func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// apply applies an event, and reports whether the resource version changed.
func (i *Informer) apply(event watch.Event) (changed bool, err error) {
	if event.Type == watch.Error {
		return false, apierrors.FromObject(event.Object)
	}
	pod, ok := event.Object.(*corev1.Pod)
	if !ok || pod.ResourceVersion == "" {
		return false, fmt.Errorf("an event %s has an object of type %T, or without a resource version", event.Type, event.Object)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	switch event.Type {
	case watch.Added, watch.Modified:
		i.pods[name] = pod
	case watch.Deleted:
		delete(i.pods, name)
	case watch.Bookmark:
	default:
		return false, fmt.Errorf("an event has the unknown type %q", event.Type)
	}
	if pod.ResourceVersion == i.version {
		return false, nil // a server that is cut off from etcd repeats its last version
	}
	i.version, i.asOf = pod.ResourceVersion, time.Now()
	return true, nil
}

// answer returns the pods of the last list and the events since.
func (i *Informer) answer(context.Context, *corev1.Node) (podsource.Answer, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.pods == nil && i.broken != nil:
		return podsource.Answer{}, fmt.Errorf("%w: the informer has no list of pods yet: %w", podsource.ErrIncomplete, i.broken)
	case i.pods == nil && !i.running.Load():
		return podsource.Answer{}, fmt.Errorf("%w: the informer was not started; call its Start", podsource.ErrIncomplete)
	case i.pods == nil:
		return podsource.Answer{}, fmt.Errorf("%w: the informer has no list of pods yet", podsource.ErrIncomplete)
	}
	a := podsource.Answer{AsOf: i.asOf}
	if i.broken != nil {
		a.Note = "its watch is broken: " + i.broken.Error()
	}
	var err error
	a.Pods, err = i.source.localOf(slices.Collect(maps.Values(i.pods)))
	return a, err
}
