// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"os"
	"strings"
	"testing"
)

// namedFile names the variants that no test notices, and says of each why none has to:
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
