// SPDX-License-Identifier: Apache-2.0

package hazardtable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	pkg = `// Package p is a source.
//
// # What it cannot see
//
// A pod that was deleted by force (hazards 35, 57 and 10).
// Nor [podsource.Pod] | another.
//
//   - Its age.
//   - Another node (hazard 35).
//
// # Else
//
// Something else (hazard 99).
package p

const limit = 1

type (
	Options struct{ Limit int }
	Source  struct{ opts Options }
	Many[T any] []T
)

func (s *Source) Pods() { var local int; _ = local }
func (Many[T]) Len() int { return 0 }
`
	tested = `package p

import "testing"

// A case.
//
// Guard: [Source.Pods] and
// [limit] and [Options.Limit] and [gc.Options.Limit].
func TestNumber57Later(t *testing.T) {}

// Guard: [limit] | more.
func TestNumber35Second(t *testing.T) {}

// Guard: [Source.opts] more.
func TestNumber35First(t *testing.T) {}

func TestOther(t *testing.T) {}
`
	want = head + "" +
		"| 10 |  |  | A pod that was deleted by force (hazards 35, 57 and 10). Nor `podsource.Pod` \\| another. |\n" +
		"| 35 | TestHazard35First | `Source.opts` more. | Another node (hazard 35). |\n" +
		"| 35 | TestHazard35Second | `limit` \\| more. | A pod that was deleted by force (hazards 35, 57 and 10). Nor `podsource.Pod` \\| another. |\n" +
		"| 57 | TestHazard57Later | `Source.Pods` and `limit` and `Options.Limit` and `gc.Options.Limit`. | A pod that was deleted by force (hazards 35, 57 and 10). Nor `podsource.Pod` \\| another. |\n" +
		"| - |  |  | Its age. |\n"
)

func TestTable(t *testing.T) {
	for _, row := range []struct{ reason, remove, add, says string }{
		{"the whole", "", "", ""},
		{"a guard that is gone", "[limit] and", "[limits] and", "Later names [limits]"},
		{"a method that is gone", "[Source.Pods]", "[Source.List]", "Later names [Source.List]"},
		{"no guard", "Guard: [Source.opts] more.", "A case.", "TestHazard35First has no last paragraph"},
		{"a guard that names nothing", "Guard: [limit] |", "Guard: something", "TestHazard35Second has no"},
		{"a test without a comment", "// Guard: [Source.opts] more.\n", "", "TestHazard35First has no"},
		{"no part about what it can't see", "# What it cannot see", "# What it sees", "0 blocks"},
		{"no test", "TestHazard", "TestCase", "0 tests"},
		{"no Go", "package p", "", "expected 'package'"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"p.go": pkg, "p_test.go": tested} {
			text = strings.ReplaceAll(text, "TestNumber", "TestHazard") // these are no tests of a hazard themselves
			if row.remove != "" {
				text = strings.ReplaceAll(text, row.remove, row.add)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Table(dir)
		if row.says == "" && (err != nil || got != want) {
			t.Errorf("%s: got\n%s\n%v, want\n%s", row.reason, got, err, want)
		}
		if row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)) {
			t.Errorf("%s: got %v, want %q", row.reason, err, row.says)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"p.go": pkg, "below/below_test.go": strings.ReplaceAll(tested, "TestNumber", "TestHazard")} {
		if err := os.MkdirAll(filepath.Join(dir, "below"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Table(dir, "below"); err != nil || got != strings.ReplaceAll(want, "| TestHazard", "| below/TestHazard") {
		t.Errorf("of a directory below: got\n%s\n%v", got, err)
	}
	if _, err := Table(t.TempDir()); err == nil {
		t.Error("a directory without Go has a table")
	}
}
