// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKindHas(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, row := range []struct {
		reason      string
		kind        Kind
		containerID string
		want        bool
	}{
		{"a sandbox of Kubernetes", SandboxContainers, hex, true},
		{"one digit too few", SandboxContainers, hex[1:], false},
		{"one digit too many", SandboxContainers, hex + "0", false},
		{"runtimes do not use upper case", SandboxContainers, strings.ToUpper(hex), false},
		{"the character before the digits", SandboxContainers, "/" + hex[1:], false},
		{"the character after the digits", SandboxContainers, ":" + hex[1:], false},
		{"the character after the letters", SandboxContainers, "g" + hex[1:], false},
		{"64 bytes that are 32 characters", SandboxContainers, strings.Repeat("é", 32), false},
		{"an ID of nerdctl is not one of Kubernetes", SandboxContainers, "default-" + hex, false},
		{"any ID", AnyContainer, "cnitool-77383ca0a0715733ca6f", true},
		{"a list of pods has no containers", KubernetesPods, hex, false},
		{"no owner is of any kind of containers", AnyContainer, "", true},
		{"... of sandboxes, too", SandboxContainers, "", true},
		{"... and not of pods", KubernetesPods, "", false},
	} {
		if got := row.kind.Has(row.containerID); got != row.want {
			t.Errorf("%d has %q: %t, want %t: %s", row.kind, row.containerID, got, row.want, row.reason)
		}
	}
}

// No list of networks has none of them.
func TestCovers(t *testing.T) {
	for _, networks := range [][]string{nil, {}, {"other"}} {
		if Covers(networks, "podnet") {
			t.Errorf("%v covers podnet", networks)
		}
	}
	if !Covers([]string{"other", "podnet"}, "podnet") || !Covers([]string{"other", EveryNetwork}, "podnet") {
		t.Error("podnet is not covered by its name or by EveryNetwork")
	}
}

func TestMembers(t *testing.T) {
	a, b, c := Answer{Source: "a"}, Answer{Source: "b"}, Answer{Source: "c"}
	for _, row := range []struct {
		reason string
		answer Answer
		want   []Answer
	}{
		{"an answer is its own only member", a, []Answer{a}},
		{"the members of a union, in the order of its parts", Answer{Parts: []Answer{b, a}}, []Answer{b, a}},
		{"the members of a nested union", Answer{Parts: []Answer{a, {Parts: []Answer{b, c}}}}, []Answer{a, b, c}},
		{"a union of which no member was called", Answer{Parts: []Answer{}}, nil},
		{"pods beside the parts are not lost",
			Answer{Source: "union", Authoritative: true, Pods: []Pod{named("x")}, Parts: []Answer{a}},
			[]Answer{{Source: "union", Authoritative: true, Pods: []Pod{named("x")}}, a}},
	} {
		if diff := cmp.Diff(row.want, row.answer.Members(), equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}
