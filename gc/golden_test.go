// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update makes tests write the golden files and the matrix of sources, instead of comparing
// with them.
var update = flag.Bool("update", false, "write golden files, and the matrix of sources into the README")

// golden compares text with a file in testdata. With -update it writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; go test -update writes it (-want +got):\n%s", path, diff)
	}
}
