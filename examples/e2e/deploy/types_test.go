// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// laterTypes are the minor versions of Kubernetes after the one that this module requires, up to
// the newest.
var laterTypes = []string{"v0.35.0", "v0.36.0", "v0.37.0"}

// The objects are valid for the types of each later version, too: all their fields still exist.
func TestLaterTypes(t *testing.T) {
	for _, version := range laterTypes {
		t.Run(version, func(t *testing.T) {
			strict := strictWith(t, version)
			for name, overlay := range map[string]string{"plain": plain, "no API": noAPI} {
				m := build(t, overlay)
				out, err := strict(m.text)
				if diff := cmp.Diff(len(m.kinds), strings.Count(out, "\n")); err != nil || diff != "" {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
				wrong := bytes.Replace(m.text, []byte("hostNetwork: true"), []byte("hostNetworks: true"), 1)
				if out, err := strict(wrong); err == nil || !strings.Contains(out, `unknown field "hostNetworks"`) {
					t.Errorf("%s: a field that there is not is accepted: %v\n%s", name, err, out)
				}
			}
		})
	}
}

// strictWith builds testdata/strict with a version of k8s.io/api, and returns a function that runs
// it.
func strictWith(t *testing.T, version string) func(objects []byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join("testdata", "strict", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	mod := fmt.Sprintf("module strict\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/api %s\n\tsigs.k8s.io/yaml v1.6.0\n)\n", version)
	for name, text := range map[string]string{"main.go": string(program), "go.mod": mod} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", "strict", "."}} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %q: %v\n%s", args, err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", filepath.Join(dir, "strict")).Output()
	if err != nil || !strings.Contains(string(out), "\tk8s.io/api\t"+version+"\t") {
		t.Fatalf("it is not built with k8s.io/api %s: %v\n%s", version, err, out)
	}
	return func(objects []byte) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "strict"))
		cmd.Stdin = bytes.NewReader(objects)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}
