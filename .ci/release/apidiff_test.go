// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAPIDiff(t *testing.T) {
	r, err := made(t, map[string]string{
		"m.go":   "package m\n\nfunc Kept() {}\n\nfunc Other() {}\n",
		"z/z.go": "package z\n\nimport \"example.com/m\"\n\nfunc Z() { m.Kept() }\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, r)
	// check sets the next version in the work tree and runs apidiff.
	check := func(reason, next, says string, fails bool) {
		t.Helper()
		if err := r.set(next); err != nil {
			t.Fatal(err)
		}
		if r, err = openRepo(r.root); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := r.apidiff(t.Context(), &out)
		if err != nil {
			out.WriteString(err.Error())
		}
		if !strings.Contains(out.String(), says) || (err != nil) != fails {
			t.Errorf("%s: got %v and\n%s\nwant %q", reason, err, out.String(), says)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check("before the first tag", "v0.1.0", "there is no API to compare with", false)
	for _, tag := range []string{"v0.1.0", "z/v0.9.0", "vendor"} { // the last two are not versions of the root module
		if _, err := r.git("tag", tag); err != nil {
			t.Fatal(err)
		}
	}
	check("the version is tagged already", "v0.1.0", "run set with the next version", true)
	check("nothing changed", "v0.1.1", "example.com/m/z\nno changes", false)
	write("m.go", "package m\n\nfunc Kept() {}\n\nfunc Other() {}\n\nfunc New() {}\n")
	check("a new name in a patch", "v0.1.1", "New: added", false)
	write("m.go", "package m\n\nfunc Kept() {}\n\nfunc New() {}\n")
	check("a name is removed in a patch", "v0.1.1", "v0.1.1 breaks users of v0.1.0", true)
	check("... in the next minor version", "v0.2.0", "Other: removed", false)
	check("... in v1.0.0", "v1.0.0", "Other: removed", false)
	write("z/go.mod", "// Not released: x\nmodule example.com/m/y\n\ngo 1.24.2\n")
	write("go.work", "go 1.24.2\n\nuse (\n\t.\n\t./a\n\t./z\n)\n\nreplace example.com/m v0.1.0 => .\n")
	write("a/go.mod", "module example.com/m/a\n\ngo 1.24.2\n\nrequire example.com/m v0.1.0\n")
	if r, err = openRepo(r.root); err != nil {
		t.Fatal(err)
	}
	check("a module is removed in a patch", "v0.1.1", "example.com/m/z\nIncompatible changes:\n- the module: removed", true)
	commit(t, r)
	if _, err := r.git("tag", "v1.0.0"); err != nil {
		t.Fatal(err)
	}
	write("m.go", "package m\n\nfunc Kept() {}\n")
	check("a name is removed in a minor version after v1.0.0", "v1.1.0", "v1.1.0 breaks users of v1.0.0", true)
}
