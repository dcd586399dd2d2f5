// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write writes a file below a directory.
func write(t *testing.T, dir, name, text string) {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Each step may change and commit the work tree, and runs a command. z requires the root, a both, and t is not released.
func TestCommands(t *testing.T) {
	root, mod := t.TempDir(), "\n\ngo 1.24.2\n\nrequire example.com/m v0.1.0\n"
	write(t, root, "go.work", "go 1.24.2\n\nuse .\n\nreplace example.com/m v0.1.0 => .\n")
	write(t, root, "a/go.mod", "module example.com/m/a"+mod+"\nrequire example.com/m/z v0.1.0 // indirect\n")
	write(t, root, "t/go.mod", "// Not released: tests.\nmodule example.com/t"+mod)
	write(t, root, "z/go.mod", "module example.com/m/z"+mod)
	for _, step := range []struct{ reason, file, text, git, run, want string }{
		{"not committed", "go.mod", "module example.com/m\n", "init -q", "tags v0.1.0", "?? a/go.mod"},
		{"each after those that it requires", "", "", "commit", "tags v0.1.0", "v0.1.0\nz/v0.1.0\na/v0.1.0\n"},
		{"another version", "", "", "", "tags v0.2.0", "run set v0.2.0"},
		{"it is tagged", "", "", "tag z/v0.1.0", "tags v0.1.0", "use the next version\nz/v0.1.0"},
		{"a version that needs another path", "", "", "", "set v2.0.0", "no version such as"},
		{"the next version", "", "", "", "set v0.2.0", ""},
		{"set, and not committed", "", "", "", "tags v0.2.0", " M a/go.mod\n M go.work\n"},
		{"set everywhere", "", "", "commit", "tags v0.2.0", "v0.2.0\nz/v0.2.0\na/v0.2.0\n"},
		{"they can be zipped", "", "", "", "zip", ""},
		{"a name that Windows reserves", "z/aux.go", "package z\n", "commit", "zip", "aux.go"},
		{"a requirement without a tag", "z/go.mod", "module example.com/m/z\n\nrequire example.com/t v0.2.0\n", "commit",
			"tags v0.2.0", "never tagged"},
		{"a path that is not that of the directory", "z/go.mod", "module example.com/m/y\n", "", "zip", "rename or move"},
		{"a circle", "z/go.mod", "module example.com/m/z\n\nrequire example.com/m/a v0.1.0\n", "", "zip", "in a circle"},
	} {
		if step.file != "" {
			write(t, root, step.file, step.text)
		}
		commands := [][]string{strings.Fields(step.git)}
		if step.git == "commit" {
			commands = [][]string{{"add", "-A"}, {"-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "x"}}
		}
		for _, args := range commands {
			if _, err := command(root, nil, "git", args...); err != nil && step.git != "" {
				t.Fatal(err)
			}
		}
		var out strings.Builder
		err := run(root, strings.Fields(step.run), &out)
		if err != nil {
			out.WriteString(err.Error())
		}
		if got := out.String(); err == nil && got != step.want || !strings.Contains(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.reason, got, step.want)
		}
	}
}
