// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update has tests write what they otherwise compare with: the golden files here,
// and the matrix of sources in the README.
var update = flag.Bool("update", false, "write golden files, and the matrix of sources into the README")

// golden compares with a file under testdata. With -update it writes it.
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
		t.Errorf("%s, which go test -update would write anew (-want +got):\n%s", path, diff)
	}
}
