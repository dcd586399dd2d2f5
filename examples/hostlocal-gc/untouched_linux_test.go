// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// traces returns what a change of a file or directory below dir would modify. A change of a file's content
// modifies its change time.
func traces(t *testing.T, dir string) string {
	t.Helper()
	const format = "%p inode %i mode %M links %n size %s modified %T@ changed %C@\\n"
	out, err := exec.CommandContext(t.Context(), "find", dir, "-printf", format).Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("%s %v", out, err)
	}
	return string(out)
}

// Read-only commands change nothing on the disk, also when they fail. They take no lock: they work
// while the plugin holds it, and create no lock file.
func TestLookingChangesNothing(t *testing.T) {
	n, nw := every(t)
	n.put("cut.json", "[{")
	conf := `{"cniVersion":"1.0.0","name":"podnet","type":"bridge","ipam":{"type":"host-local","subnet":"10.244.1.0/24"}}`
	n.put("podnet.conf", conf)
	// A network without a lock file, an empty one, and a directory that is no network.
	bare := filepath.Join(n.dir, "networks", "bare")
	if err := os.MkdirAll(bare, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bare, "10.9.0.2"), []byte(sandbox("x")+"\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(n.dir, "networks", "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "networks", "stray"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := nw.store.Lock(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nw.store.Unlock() }()

	data := filepath.Join(n.dir, "networks")
	before := traces(t, data)
	for _, args := range []string{
		"list --source file:pods.json", "list -o json --source file:cut.json",
		"plan --source file:pods.json", "plan --exit-code --min-age 1s --allow-foreign * --source file:pods.json", "plan --source file:cut.json",
		"release --dry-run --source file:pods.json", "release --dry-run --network podnet --min-age 1s --source file:pods.json",
		"map --source file:pods.json --cni-dir .", "map --source file:cut.json",
		"list --network none --source file:pods.json", "release --network podnet --source file:cut.json",
	} {
		run(t, n.dir, nil, append(strings.Fields(args), "--data-dir", "networks")...)
		if diff := cmp.Diff(before, traces(t, data)); diff != "" {
			t.Fatalf("after %s (-before +after):\n%s", args, diff)
		}
	}
}
