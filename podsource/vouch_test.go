// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// TestVouched: a list of none gets the node itself, and any other stays. What it
// gets comes through the combinators, is merged with no pod, and is none that a
// caller may require.
func TestVouched(t *testing.T) {
	pods := []Pod{named("a"), {HostNetwork: true}}
	if diff := cmp.Diff(pods, Vouched(pods), equal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, none := range [][]Pod{nil, {}} {
		got := Vouched(none)
		if len(got) != 1 || !got[0].HostNetwork || got[0].UID != "" || got[0].ContainerIDs != nil || got[0].IPs != nil {
			t.Fatalf("of nobody: %v, want one entry in the node's network", got)
		}
	}
	vouching := Static(Vouched(nil))
	for _, row := range []struct {
		reason string
		source Source
		want   int
	}{
		{"alone", vouching, 1},
		{"one witness vouches", Union(Static{}, vouching, Static{}), 1},
		{"two do", Union(vouching, vouching), 2},
		{"beside pods", Union(Static{named("a")}, vouching), 2},
		{"the first choice", Fallback(vouching, unasked(t)), 1},
		{"the second", Fallback(failing(errNoSocket), vouching), 1},
	} {
		got, err := row.source.Pods(t.Context())
		if err != nil || len(got) != row.want {
			t.Errorf("%s: %v, %v, want %d entries", row.reason, got, err, row.want)
		}
	}
	for _, agent := range []types.NamespacedName{{}, {Namespace: "kube-system", Name: "agent"}} {
		if _, err := Require(vouching, agent).Pods(t.Context()); err == nil {
			t.Errorf("the node itself passed for %s", agent)
		}
	}
}
