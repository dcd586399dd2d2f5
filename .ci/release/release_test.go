// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// three released modules: the root, z, which requires the root, and a, which requires both. t is
// not released.
var three = map[string]string{
	"go.mod":     "module example.com/m\n\ngo 1.24.2\n",
	"m.go":       "package m\n",
	"a/go.mod":   "module example.com/m/a\n\ngo 1.24.2\n\nrequire (\n\texample.com/m v0.1.0\n\texample.com/m/z v0.1.0 // indirect\n)\n",
	"z/go.mod":   "module example.com/m/z\n\ngo 1.24.2\n\nrequire example.com/m v0.1.0\n",
	"t/go.mod":   "// Not released: tests.\nmodule example.com/m/t\n\ngo 1.24.2\n\nrequire example.com/m/a v0.1.0\n",
	"go.work":    "go 1.24.2\n\nuse (\n\t.\n\t./a\n\t./z\n)\n\nreplace (\n\texample.com/m v0.1.0 => .\n\texample.com/m/z v0.1.0 => ./z\n)\n",
	".gitignore": "/.cache/\n",
	".cache/nul": "of no module",
}

// made returns a work tree of the modules in three, with these files added or replaced.
func made(t *testing.T, files map[string]string) (*repo, error) {
	t.Helper()
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "git", "-C", root, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, set := range []map[string]string{three, files} {
		for name, text := range set {
			name = filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return openRepo(root)
}

// commit commits all files of the work tree.
func commit(t *testing.T, r *repo) {
	t.Helper()
	for _, args := range [][]string{{"add", "-A"}, {"-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "x"}} {
		if _, err := r.git(args...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTags(t *testing.T) {
	r, err := made(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(reason, version, says string) {
		t.Helper()
		if got, err := r.tags(version); err == nil || got != nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, %v, want an error that contains %q", reason, got, err, says)
		}
	}
	refused("nothing is committed", "v0.1.0", "?? a/go.mod")
	commit(t, r)
	got, err := r.tags("v0.1.0")
	if want := []string{"v0.1.0", "z/v0.1.0", "a/v0.1.0"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	refused("a version that was not set", "v0.2.0", "run set v0.2.0")
	forgotten := filepath.Join(r.root, "forgotten.go")
	if err := os.WriteFile(forgotten, []byte("package m\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused("an untracked file", "v0.1.0", "?? forgotten.go")
	if err := os.Remove(forgotten); err != nil {
		t.Fatal(err)
	}
	if _, err := r.git("tag", "z/v0.1.0"); err != nil {
		t.Fatal(err)
	}
	refused("one is tagged already", "v0.1.0", "z/v0.1.0")
	if err := r.set("v0.2.0"); err != nil {
		t.Fatal(err)
	}
	if r, err = openRepo(r.root); err != nil {
		t.Fatal(err)
	}
	refused("set, and not committed", "v0.2.0", " M a/go.mod")
	commit(t, r)
	if got, err := r.tags("v0.2.0"); err != nil || len(got) != 3 {
		t.Errorf("got %v, %v", got, err)
	}
}

// Modules that could not be fetched after a release, or not be built in the workspace.
func TestBadModules(t *testing.T) {
	for _, row := range []struct{ reason, file, text, says string }{
		{"its path does not match its directory", "z/go.mod", "module example.com/m/y\n\ngo 1.24.2\n", "called example.com/m/y"},
		{"the comment is on a requirement", "a/go.mod", "module example.com/m/y\n\ngo 1.24.2\n\nrequire example.com/x v0.1.0 // Not released for long\n", "called example.com/m/y"},
		{"no root", "go.mod", "", "no module line"},
	} {
		if _, err := made(t, map[string]string{row.file: row.text}); err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got %v, want an error that contains %q", row.reason, err, row.says)
		}
	}
	r, err := made(t, map[string]string{"go.work": strings.Replace(three["go.work"], "\texample.com/m/z v0.1.0 => ./z\n", "", 1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.version(); err == nil || !strings.Contains(err.Error(), "go.work does not replace example.com/m/z") {
		t.Errorf("a replace is missing in go.work: got %v", err)
	}
}

// If one file can't be edited, none is changed.
func TestSetAllOrNothing(t *testing.T) {
	r, err := made(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.root, "go.work"), []byte("use ("), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.set("v0.2.0"); err == nil {
		t.Error("a broken go.work is no error")
	}
	if text, err := os.ReadFile(filepath.Join(r.root, "a/go.mod")); err != nil || string(text) != three["a/go.mod"] {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestFloors(t *testing.T) {
	r, err := made(t, map[string]string{
		"a/go.mod": "module example.com/m/a\n\ngo 1.26.0\n",
		"z/go.mod": "module example.com/m/z\n\ngo 1.24.2\n\nrequire (\n\tgoogle.golang.org/grpc v1.79.3\n\tk8s.io/api v0.28.0\n)\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{"example.com/m/a": "go 1.26.0 is more than", "example.com/m/z": "grpc v1.79.3, which is more than v1.69.0"} {
		if err := checkFloors(r.byPath(path)); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "k8s.io") {
			t.Errorf("%s: got %v, want an error that contains %q", path, err, says)
		}
	}
	if err := checkFloors(r.root1()); err != nil {
		t.Error(err)
	}
}

func TestSet(t *testing.T) {
	r, err := made(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.set("v0.2.0-rc.1"); err != nil {
		t.Fatal(err)
	}
	for name, text := range three {
		got, err := os.ReadFile(filepath.Join(r.root, name))
		if want := strings.ReplaceAll(text, "v0.1.0", "v0.2.0-rc.1"); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	if again, err := openRepo(r.root); err != nil {
		t.Error(err)
	} else if got, err := again.version(); got != "v0.2.0-rc.1" || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestBadVersions(t *testing.T) {
	for version, reason := range map[string]string{
		"":                                   "empty",
		"0.1.0":                              "without v",
		"v0.1":                               "not canonical",
		"v0.1.0+x":                           "with build metadata",
		"latest":                             "not a version",
		"v0.0.0":                             "a placeholder",
		"v2.0.0":                             "it needs another module path",
		"v0.1.0-0.1":                         "fine: a pre-release",
		"v0.0.0-20260101000000-0123456789ab": "a pseudo-version",
	} {
		if err := checkVersion(version); (err == nil) != strings.HasPrefix(reason, "fine") {
			t.Errorf("%q (%s): got %v", version, reason, err)
		}
	}
}

func TestRequirements(t *testing.T) {
	const mod = "module example.com/m/z\n\ngo 1.24.2\n\nrequire "
	for _, row := range []struct{ reason, file, text, says string }{
		{"v0.0.0 can't be fetched", "z/go.mod", mod + "example.com/m v0.0.0\n", "v0.0.0 is no version that is tagged"},
		{"two versions", "z/go.mod", mod + "example.com/m v0.1.1\n", "v0.1.1"},
		{"go.work has another", "go.work", strings.ReplaceAll(three["go.work"], "v0.1.0", "v0.3.0"), "go.work"},
		{"go.work replaces every version", "go.work", "go 1.24.2\n\nreplace example.com/m => .\n", "is no version"},
		{"a module that is not released", "z/go.mod", mod + "example.com/m/t v0.1.0\n", "circle"},
		{"the same without a circle", "t/go.mod", "// Not released: x\nmodule example.com/m/t\n", ""},
	} {
		r, err := made(t, map[string]string{row.file: row.text})
		if err == nil {
			_, err = r.version()
		}
		if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got %v, want an error that contains %q", row.reason, err, row.says)
		}
	}
	r, err := made(t, map[string]string{
		"t/go.mod": "// Not released: x\nmodule example.com/m/t\n",
		"z/go.mod": mod + "example.com/m/t v0.1.0\n",
	})
	if err == nil {
		_, err = r.version()
	}
	if err == nil || !strings.Contains(err.Error(), "never tagged") {
		t.Errorf("a module that is not released is required: got %v", err)
	}
}

func TestZip(t *testing.T) {
	for _, row := range []struct{ reason, name, says string }{
		{"reserved on Windows", "z/testdata/nul", "nul"},
		{"reserved, with an extension", "testdata/aux.txt", "aux.txt"},
		{"the same on systems that ignore case", "M.go", "case-insensitive"},
		{"a character that Windows does not have", "testdata/a:b", "a:b"},
		{"a valid name", "testdata/ok", ""},
	} {
		r, err := made(t, map[string]string{row.name: "package m\n"})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.zipAll(io.Discard); (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got %v, want an error that contains %q", row.reason, err, row.says)
		}
	}
}

func TestPublish(t *testing.T) {
	r, err := made(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := r.publish(dir, "v0.1.0-x"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "example.com", "m", "a", "@v", "v0.1.0-x.mod"))
	if want := strings.ReplaceAll(three["a/go.mod"], "v0.1.0", "v0.1.0-x"); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "example.com", "m", "t")); !os.IsNotExist(err) {
		t.Errorf("a module that is not released was published: %v", err)
	}
}

func TestFrames(t *testing.T) {
	text := "a\n\n```go\nrecord, err := checkpoint.Open(x)\n...\ny\n...\n...\n```\n\n```sh\ngo\n```\n"
	blocks := goBlocks(text)
	if len(blocks) != 1 {
		t.Fatalf("got %q", blocks)
	}
	name, content, err := frameOf(blocks[0], "example.com/m")
	if err != nil || name != "server.go" || strings.Contains(content, "ROOT") || strings.Contains(content, "...\n") ||
		!strings.Contains(content, "\ny\n") || !strings.Contains(content, `"example.com/m/gc"`) {
		t.Errorf("got %s, %v:\n%s", name, err, content)
	}
	for reason, block := range map[string]string{
		"without a frame":         "x := 1\n",
		"one ellipsis too many":   blocks[0] + "...\n",
		"one ellipsis is missing": strings.Replace(blocks[0], "...\n", "", 1),
	} {
		if _, _, err := frameOf(block, "example.com/m"); err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
}

func TestMoved(t *testing.T) {
	before := map[string]string{"example.com/a": "v1.0.0", "example.com/b": "v1.0.0", "example.com/c": "v1.0.0"}
	for _, row := range []struct {
		reason string
		after  map[string]string
		note   string
		fails  bool
	}{
		{"unchanged", before, "nothing moves", false},
		{"one is no longer used", map[string]string{"example.com/a": "v1.0.0"}, "nothing moves", false},
		{"one changes as with the plugins", map[string]string{"example.com/a": "v1.1.0"}, "the plugins and gRPC move a v1.0.0 -> v1.1.0", false},
		{"one changes by more than with the plugins", map[string]string{"example.com/a": "v1.2.0"}, "nothing moves", true},
		{"one changes that the plugins do not require", map[string]string{"example.com/b": "v1.1.0"}, "nothing moves", true},
	} {
		note, err := moved(before, row.after, map[string]string{"example.com/a": "v1.1.0"})
		if note != row.note || (err != nil) != row.fails {
			t.Errorf("%s: got %q, %v", row.reason, note, err)
		}
	}
}
