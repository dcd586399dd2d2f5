// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"slices"
	"strings"
	"testing"
)

const mountinfo = `22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw
36 24 0:4 net:[4026532255] /run/netns/web rw shared:9 - nsfs nsfs rw
37 24 0:4 mnt:[4026532256] /run/snapd/ns/lxd.mnt rw - nsfs nsfs rw
38 24 0:4 net:[4026532257] /run/a\040b-123\134\011 rw shared:9 master:1 - nsfs nsfs rw
39 24 8:1 /net:[4026532258] /mnt rw - ext4 /dev/sda1 rw
`

func mountsOf(text string) ([]namespaceMount, error) { return namespaceMounts([]byte(text)) }

func TestNamespaceMounts(t *testing.T) {
	want := []namespaceMount{{4026532255, "/run/netns/web"}, {4026532257, "/run/a b-123\\\t"}}
	if got, err := mountsOf(mountinfo); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, row := range []struct{ reason, text string }{
		{"a line that ends early", "36 24 0:4 net:[1] /run/netns/web rw"},
		{"too few fields", "36 24 0:4 net:[1] - nsfs nsfs rw"},
		{"no number", "36 24 0:4 net:[x] /run/netns/web rw - nsfs nsfs rw"},
		{"a relative mount point", "36 24 0:4 net:[1] run/netns/web rw - nsfs nsfs rw"},
		{"an empty line", "\n"},
	} {
		if got, err := mountsOf(mountinfo + row.text); got != nil || err == nil {
			t.Errorf("got %v, %v, want an error: %s", got, err, row.reason)
		}
	}
	if got := unescape(`/a\999`); got != `/a\999` {
		t.Errorf("an escape that the kernel does not write: got %q", got)
	}
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := namespaceMounts(own); err != nil {
		t.Errorf("this kernel's mountinfo: %v", err)
	}
}

// The mounts of processes with one root are read once, and count once towards the limit.
func TestMountsOfOneRoot(t *testing.T) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	s := emptyScan("/proc")
	s.maxMountText = len(text) * 3 / 2
	for range 3 {
		if err := s.readMounts("/proc/self"); err != nil {
			t.Fatal(err)
		}
	}
	if s.truncated {
		t.Error("they were read again, and now the scan is incomplete")
	}
}

// FuzzNamespaceMounts: the result is all mounts or an error, without a panic.
func FuzzNamespaceMounts(f *testing.F) {
	f.Add(mountinfo)
	f.Add(`36 24 0:4 net:[1] /\0 rw - nsfs nsfs rw`)
	f.Add(`36 24 0:4 net:[1] /\04 rw - nsfs nsfs rw`)
	f.Add(`36 24 0:4 net:[ /\999\040 rw - nsfs `)
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := mountsOf(text)
		if err != nil {
			if mounts != nil {
				t.Errorf("an error, and %d mounts beside it", len(mounts))
			}
			return
		}
		for _, m := range mounts {
			if !strings.HasPrefix(m.point, "/") {
				t.Errorf("%q is no mount point", m.point)
			}
		}
		if n := strings.Count(text, "net:["); len(mounts) > n {
			t.Errorf("got %d mounts, want at most %d", len(mounts), n)
		}
	})
}
