// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFormMatches(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, row := range []struct {
		reason      string
		form        Form
		containerID string
		want        bool
	}{
		{"the form of Kubernetes runtimes", Hex64, hex, true},
		{"one digit too few", Hex64, hex[1:], false},
		{"one digit too many", Hex64, hex + "0", false},
		{"runtimes do not use upper case", Hex64, strings.ToUpper(hex), false},
		{"the character before the digits", Hex64, "/" + hex[1:], false},
		{"the character after the digits", Hex64, ":" + hex[1:], false},
		{"the character before the letters", Hex64, "`" + hex[1:], false},
		{"the character after the letters", Hex64, "g" + hex[1:], false},
		{"a wrong last character", Hex64, hex[:63] + "-", false},
		{"64 bytes that are 32 characters", Hex64, strings.Repeat("é", 32), false},
		{"an ID of nerdctl is not one of Kubernetes", Hex64, "default-" + hex, false},
		{"a prefix", "default-" + Hex64, "default-" + hex, true},
		{"another prefix", "default-" + Hex64, "k8s.io-" + hex, false},
		{"the prefix is missing", "default-" + Hex64, hex, false},
		{"the prefix, and too few digits", "default-" + Hex64, "default-" + hex[8:], false},
		{"the prefix alone", "default-" + Hex64, "default-", false},
		{"any ID", AnyForm, "cnitool-77383ca0a0715733ca6f", true},
		{"any ID, also one of 64 digits", AnyForm, hex, true},
		{"the zero form matches nothing", "", hex, false},
		{"an invalid form matches no ID, not even its own text", "default", "default", false},
		{"no owner matches AnyForm", AnyForm, "", true},
		{"no owner matches 64 digits", Hex64, "", true},
		{"no owner matches a prefix", "default-" + Hex64, "", true},
		{"no owner does not match the zero form", "", "", false},
		{"no owner does not match an invalid form", "default", "", false},
	} {
		if got := row.form.Matches(row.containerID); got != row.want {
			t.Errorf("%q matches %q: %t, want %t: %s", row.form, row.containerID, got, row.want, row.reason)
		}
	}
}

// A source that means a lag says one of zero or more.
func TestRuntimeLag(t *testing.T) {
	if RuntimeLag >= 0 {
		t.Errorf("RuntimeLag is %v, which a source may mean", RuntimeLag)
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
