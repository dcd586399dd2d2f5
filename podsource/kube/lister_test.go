// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func TestFromLister(t *testing.T) {
	got := func(n *corev1.Node, err error) Options {
		return Options{BootID: boot("boot-1"), GetNode: func(context.Context, string) (*corev1.Node, error) { return n, err }}
	}
	a, b, none := pod("a", "here"), pod("b", "there"), pod("c", "")
	noNode := apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "here")
	for _, row := range []struct {
		reason     string
		opts       Options
		objects    []any
		err        string // "" is the pod a
		incomplete bool
	}{
		{"the pods of the node, and no others", Options{SkipNodeCheck: true}, []any{&a, &b, &none}, "", false},
		{"the right node", got(node("here", "boot-1"), nil), []any{&a}, "", false},
		{"the boot ID of another kernel", got(node("here", "boot-0"), nil), []any{&a}, "boot-0", true},
		{"no such node, or the lister of nodes does not have it yet", got(nil, noNode), []any{&a}, "no such Node", false},
		{"an informer of metadata", Options{SkipNodeCheck: true}, []any{&a, &metav1.PartialObjectMetadata{}}, "PartialObjectMetadata", false},
	} {
		informer := newFakeInformer(row.objects...)
		source := must(FromLister(informer, "here", row.opts))
		_, _ = source.Pods(t.Context()) // it is not in sync
		informer.version.Store(11)
		pods, err := source.Pods(t.Context())
		switch incomplete := errors.Is(err, podsource.ErrIncomplete); {
		case row.err == "":
			if err != nil || names(pods) != "a" || !strings.Contains(pods.AsOf.String(), " m=") { // its age is exact
				t.Errorf("%s: got %q as of %v, %v", row.reason, names(pods), pods.AsOf, err)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if pods, err := source.Pods(ended); !nameOnly(pods) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the context had ended: got %v, %v", row.reason, pods, err)
			}
		case !nameOnly(pods) || err == nil || !strings.Contains(err.Error(), row.err) || incomplete != row.incomplete:
			t.Errorf("%s: got %v, %v, want an error that says %q (waiting may help: %v)", row.reason, pods, err, row.err, row.incomplete)
		case errors.Is(err, podsource.ErrPermanent):
			t.Errorf("%s: the caller's cache may have another Node later: %v", row.reason, err)
		}
	}
}

// An informer was in sync at the last call before its version changed, and not known to be
// later.
//
// Guard: [inStep] does not take a broken watch for one without events.
func TestHazard62InformerWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informer := newFakeInformer()
		source := must(FromLister(informer, "here", Options{SkipNodeCheck: true}))
		begun := time.Now()
		for _, step := range []struct {
			reason  string
			version int64
			want    time.Duration // after begun; -1 is unknown
		}{
			{"it has not synced", 0, -1},
			{"its first list may be from the API server's watch cache", 10, -1},
			{"no event since", 10, -1},
			{"an event after the last call", 20, 2 * time.Minute},
			{"no event since", 20, 2 * time.Minute},
			{"no event since", 20, 2 * time.Minute},
			{"an event", 30, 5 * time.Minute},
			{"an event", 31, 6 * time.Minute},
			{"it was replaced by one that has not synced", 0, -1},
			{"which has listed", 40, -1},
			{"an event after the list", 41, 9 * time.Minute},
		} {
			informer.version.Store(step.version)
			a, err := source.Pods(t.Context())
			if step.want < 0 {
				if !nameOnly(a) || !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), "not known to be in sync") {
					t.Errorf("%s: got %v, %v, want %v", step.reason, a, err, podsource.ErrIncomplete)
				}
			} else if err != nil || a.AsOf.Sub(begun) != step.want {
				t.Errorf("%s: got %v after the beginning, %v, want %v", step.reason, a.AsOf.Sub(begun), err, step.want)
			}
			time.Sleep(time.Minute)
		}
	})
}
