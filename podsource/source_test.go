// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

// equal compares pods.
var equal = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0)}

// named returns a pod of which nothing but its name is known.
func named(name string) Pod {
	return Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
}

// failing is a source that gives pods beside its error, which nobody may use.
func failing(err error) Source {
	return Func(func(context.Context) ([]Pod, error) { return []Pod{named("half-a-list")}, err })
}

// unasked is a source that must not be asked.
func unasked(t *testing.T) Source {
	return Func(func(context.Context) ([]Pod, error) {
		t.Error("a source was asked that need not be")
		return nil, errors.New("unasked")
	})
}

func TestStatic(t *testing.T) {
	for _, row := range []struct {
		reason string
		source Static
	}{
		{"no pods", nil},
		{"none, and said so", Static{}},
		{"two pods", Static{named("a"), named("b")}},
	} {
		got, err := row.source.Pods(t.Context())
		if err != nil {
			t.Errorf("%v: %s", err, row.reason)
		}
		if diff := cmp.Diff([]Pod(row.source), got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

func TestFunc(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "mine")
	broken := errors.New("broken")
	want := []Pod{named("a")}
	got, err := Func(func(ctx context.Context) ([]Pod, error) {
		if ctx.Value(key{}) != "mine" {
			t.Error("another context")
		}
		return want, broken
	}).Pods(ctx)
	if !errors.Is(err, broken) || err.Error() != broken.Error() {
		t.Errorf("got %v, want %v as it is", err, broken)
	}
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestContext: what a caller gives reaches every source.
func TestContext(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	obedient := Func(func(ctx context.Context) ([]Pod, error) { return []Pod{named("a")}, ctx.Err() })
	for name, s := range map[string]Source{
		"union":    Union(Static{}, obedient),
		"fallback": Fallback(obedient, Static{}),
		"then":     Fallback(failing(errNoSocket), obedient),
		"require":  Require(obedient, types.NamespacedName{Namespace: "default", Name: "a"}),
	} {
		if pods, err := s.Pods(ended); pods != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, %v, want %v", name, pods, err, context.Canceled)
		}
	}
}
