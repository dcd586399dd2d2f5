// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

// equal compares answers without Took.
var equal = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0), cmpopts.EquateErrors(), cmpopts.IgnoreFields(Answer{}, "Took"),
}

// named returns a pod with nothing but a name.
func named(name string) Pod {
	return Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
}

// plain returns the answer of a list of plain pods.
func plain(pods ...Pod) Answer { return Answer{Pods: pods, Networks: []string{EveryNetwork}} }

// failing returns a source that returns an error, and pods that must not be used.
func failing(err error) Source {
	return Func(func(context.Context) ([]Pod, error) { return []Pod{named("half-a-list")}, err })
}

// unasked returns a source that must not be called.
func unasked(t *testing.T) Source {
	return Func(func(context.Context) ([]Pod, error) {
		t.Error("a source was called that must not be")
		return nil, errors.New("unasked")
	})
}

// TestContext: each source gets the caller's context, and none is called with one that has
// ended.
func TestContext(t *testing.T) {
	agent := types.NamespacedName{Namespace: "default", Name: "a"}
	combined := func(s Source) map[string]Source {
		return map[string]Source{
			"union":       Union(s, Static{}),
			"fallback":    Fallback(s, Static{}),
			"then":        Fallback(failing(ErrNotHere), s),
			"require":     Require(s, agent),
			"allow empty": AllowEmpty(s),
			"sandboxes":   Union(Sandboxes(s.(Func))),
			"attachments": Union(Attachments([]string{"podnet"}, Always, func(ctx context.Context) ([]Attachment, error) {
				_, err := s.Pods(ctx)
				return nil, err
			})),
			"all": Union(AllowEmpty(Require(Fallback(failing(ErrNotHere), s), agent))),
		}
	}
	asked := 0
	for name, s := range combined(Func(func(ctx context.Context) ([]Pod, error) {
		asked++
		if ctx != t.Context() {
			t.Error("the context is not the caller's")
		}
		return []Pod{{NamespacedName: agent, ContainerIDs: []string{strings.Repeat("a1", 32)}}}, nil
	})) {
		asked = 0
		if _, err := s.Pods(t.Context()); err != nil || asked != 1 {
			t.Errorf("%s: asked %d times, %v", name, asked, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, s := range combined(unasked(t)) {
		for range 20 { // select chooses at random
			if _, err := s.Pods(ended); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "busy") {
				t.Errorf("%s: %v, want %v", name, err, context.Canceled)
			}
		}
	}
}
