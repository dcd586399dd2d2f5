// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// namedFile names the changes with which no test fails, each with the reason:
//
//	package: function: kind: code
//		reason
const namedFile = "testdata/named.txt"

// readNamed returns the reasons by package and key.
func readNamed(t *testing.T) map[string]map[string]string {
	t.Helper()
	content, err := os.ReadFile(namedFile)
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]map[string]string)
	var dir, key string
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\n")
		switch reason, indented := strings.CutPrefix(line, "\t"); {
		case line == "" || line[0] == '#':
		case indented && key != "":
			named[dir][key] = strings.TrimSpace(named[dir][key] + " " + reason)
		default:
			var ok bool
			if dir, key, ok = strings.Cut(line, ": "); !ok {
				t.Fatalf("%s: no package: %q", namedFile, line)
			}
			if named[dir] == nil {
				named[dir] = make(map[string]string)
			}
			if _, twice := named[dir][key]; twice {
				t.Errorf("%s names twice: %s", namedFile, line)
			}
			named[dir][key] = ""
		}
	}
	for dir, keys := range named {
		for key, reason := range keys {
			if reason == "" {
				t.Errorf("%s gives no reason for: %s: %s", namedFile, dir, key)
			}
		}
	}
	return named
}

// TestNamed fails if a name is not that of a variant. TestVariants shows that these survive.
func TestNamed(t *testing.T) {
	named := readNamed(t)
	for _, dir := range slices.Sorted(maps.Keys(named)) {
		if testing.Short() && ownModule(t, dir) {
			continue // its requirements would have to be built
		}
		there := make(map[string]bool)
		for _, v := range makeVariants(t, dir).all {
			there[v.key] = true
		}
		for key := range named[dir] {
			if !there[key] {
				t.Errorf("%s names a change that is no longer possible; remove it: %s: %s", namedFile, dir, key)
			}
		}
	}
}
