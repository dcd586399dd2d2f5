// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestOpenedThroughALink: writers and readers follow links. No writer replaces a link,
// and all writers have the same lock.
func TestOpenedThroughALink(t *testing.T) {
	for _, row := range []struct {
		reason string
		link   func(dir string) (path string, err error) // to dir/real/attachments
	}{
		{"to the file", func(dir string) (string, error) {
			return filepath.Join(dir, "link"), os.Symlink(filepath.Join("real", "attachments"), filepath.Join(dir, "link"))
		}},
		{"to a link", func(dir string) (string, error) {
			return filepath.Join(dir, "link"), errors.Join(os.Symlink("second", filepath.Join(dir, "link")),
				os.Symlink(filepath.Join(dir, "real", "attachments"), filepath.Join(dir, "second")))
		}},
		{"to the directory", func(dir string) (string, error) {
			return filepath.Join(dir, "link", "attachments"), os.Symlink("real", filepath.Join(dir, "link"))
		}},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "real", "attachments")
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := begun(t, path, served, entry("a", "10.0.0.2")).Close(); err != nil {
			t.Fatal(err)
		}
		link, err := row.link(dir)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Open(link, served)
		if err != nil {
			t.Fatalf("%s: %v", row.reason, err)
		}
		for name, path := range map[string]string{"its path": path, "the link": link} {
			if _, err := Open(path, served); !errors.Is(err, ErrLocked) {
				t.Errorf("%s: opened again by %s: %v, want %v", row.reason, name, err, ErrLocked)
			}
		}
		if err := errors.Join(c.Add(entry("b", "10.0.0.3")), c.Close()); err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		for name, path := range map[string]string{"its path": path, "the link": link} {
			if got := ids(t, reader(t, path, served)); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("%s: by %s a reader sees %v", row.reason, name, got)
			}
			c := opened(t, path, served)
			if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.3"}, recorded(c)); diff != "" {
				t.Errorf("%s: by %s (-want +got):\n%s", row.reason, name, diff)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if left := leftovers(t, path); left != nil {
			t.Errorf("%s: left behind: %v", row.reason, left)
		}
	}
}

// TestOpenedThroughALinkToNothing: a link to a missing file is an error, and not a
// record that was never written.
func TestOpenedThroughALinkToNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attachments")
	if err := os.Symlink("missing", path); err != nil {
		t.Fatal(err)
	}
	if c, err := Open(path, served); err == nil || c != nil {
		t.Errorf("got %v, %v", c, err)
	}
	if got, err := reader(t, path, served).Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "a link to a missing file") || errors.Is(err, podsource.ErrNotHere) {
		t.Errorf("a reader: %+v, %v", got, err)
	}
}
