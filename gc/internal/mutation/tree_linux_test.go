// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// copyTree copies the repository's files into a new directory. Without a guard of paths, a
// test may write outside of its temporary directory.
func copyTree(t *testing.T) (tmp, tree string) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "v") //nolint:usetesting // short: tests have sockets in it
	if err == nil {
		err = os.Chmod(tmp, 0o755) // for tests that give up root's rights
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(tmp); err != nil {
			t.Error(err)
		}
	})
	from, to := root(t), filepath.Join(tmp, "tree")
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "-co", "--exclude-standard")
	list.Dir = from
	names, err := list.Output()
	if err != nil {
		t.Fatalf("listing the files of the repository: %v", err)
	}
	for _, name := range strings.Split(strings.TrimRight(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) { // removed, not yet committed
			continue
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return tmp, to
}
