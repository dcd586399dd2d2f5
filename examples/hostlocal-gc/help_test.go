// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// Help texts fit terminals of 80 columns.
func TestHelpFits(t *testing.T) {
	for _, command := range []string{"", "check", "list", "show", "plan", "release", "repair", "map", "fleet", "help sources"} {
		args := append(strings.Fields(command), "--help")
		if command == "help sources" {
			args = strings.Fields(command)
		}
		got := run(t, t.TempDir(), nil, args...)
		if got.status != statusDone || !strings.Contains(got.stdout, " ") {
			t.Errorf("%v: exit status %d, %q", args, got.status, got.stdout)
		}
		for line := range strings.Lines(got.stdout) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > 80 {
				t.Errorf("%v: %d columns: %s", args, len(line), line)
			}
		}
	}
}
