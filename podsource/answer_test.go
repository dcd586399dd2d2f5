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
		{"as the runtimes of Kubernetes make them", Hex64, hex, true},
		{"a digit too few", Hex64, hex[1:], false},
		{"a digit too many", Hex64, hex + "0", false},
		{"upper case is none of theirs", Hex64, strings.ToUpper(hex), false},
		{"the character before the digits", Hex64, "/" + hex[1:], false},
		{"the character after the digits", Hex64, ":" + hex[1:], false},
		{"the character before the letters", Hex64, "`" + hex[1:], false},
		{"the character after the letters", Hex64, "g" + hex[1:], false},
		{"the last character counts as well", Hex64, hex[:63] + "-", false},
		{"64 bytes that are 32 characters", Hex64, strings.Repeat("é", 32), false},
		{"nerdctl's is none of Kubernetes", Hex64, "default-" + hex, false},
		{"a prefix", "default-" + Hex64, "default-" + hex, true},
		{"another prefix", "default-" + Hex64, "k8s.io-" + hex, false},
		{"the prefix is missing", "default-" + Hex64, hex, false},
		{"the prefix, and too few digits", "default-" + Hex64, "default-" + hex[8:], false},
		{"the prefix alone", "default-" + Hex64, "default-", false},
		{"any ID", AnyForm, "cnitool-77383ca0a0715733ca6f", true},
		{"any ID, also of 64 digits", AnyForm, hex, true},
		{"the zero form is none", "", hex, false},
		{"a form that is no form: it names no ID, not even its own text", "default", "default", false},
		{"no owner is none of any form", AnyForm, "", true},
		{"no owner is none of 64 digits", Hex64, "", true},
		{"no owner is none of nerdctl's", "default-" + Hex64, "", true},
		{"the zero form says nothing, also not of no owner", "", "", false},
		{"a form that is no form says nothing", "default", "", false},
	} {
		if got := row.form.Matches(row.containerID); got != row.want {
			t.Errorf("%q matches %q: %t, want %t: %s", row.form, row.containerID, got, row.want, row.reason)
		}
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
		{"the members of a union, in the order of asking", Answer{Parts: []Answer{b, a}}, []Answer{b, a}},
		{"those of a union in a union", Answer{Parts: []Answer{a, {Parts: []Answer{b, c}}}}, []Answer{a, b, c}},
		{"a union of which nobody was asked", Answer{Parts: []Answer{}}, nil},
		{"pods beside the parts are not lost",
			Answer{Source: "union", Authoritative: true, Pods: []Pod{named("x")}, Parts: []Answer{a}},
			[]Answer{{Source: "union", Authoritative: true, Pods: []Pod{named("x")}}, a}},
	} {
		if diff := cmp.Diff(row.want, row.answer.Members(), equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}
