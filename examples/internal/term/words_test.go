// SPDX-License-Identifier: Apache-2.0

package term

import (
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	for _, row := range []struct {
		n          int
		noun, want string
	}{
		{0, "network", "0 networks"}, {1, "entry", "1 entry"}, {2, "entry", "2 entries"}, {3, "address", "3 addresses"}, {1, "address", "1 address"},
	} {
		if got := Count(row.n, row.noun); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}

func TestFew(t *testing.T) {
	for _, row := range []struct{ reason, words, want string }{
		{"none", "", ""},
		{"as many as may be", "a b", "a, b"},
		{"one more is printed, since counting it would be as long", "a b c", "a, b, c"},
		{"the rest is counted", "a b c d", "a, b, and 2 more"},
	} {
		words := strings.Fields(row.words)
		if got := Few(words, 2); got != row.want || strings.Join(words, " ") != row.words {
			t.Errorf("%s: got %q, want %q; the words are %q now", row.reason, got, row.want, words)
		}
	}
}
