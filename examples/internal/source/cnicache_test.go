// SPDX-License-Identifier: Apache-2.0

package source

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// Several directories are one cache, at any position.
func TestCNICache(t *testing.T) {
	for _, row := range []struct {
		reason              string
		specs, merged, dirs []string
	}{
		{"none", []string{"cri", "netns"}, []string{"cri", "netns"}, nil},
		{"the default", []string{"netns", "cnicache"}, []string{"netns", "cnicache"}, []string{cnicache.DefaultDir}},
		{"one of two is the default", []string{"cnicache:/var/lib/cni/multus/results", "netns", "cnicache"}, []string{"cnicache", "netns"},
			[]string{"/var/lib/cni/multus/results", cnicache.DefaultDir}},
	} {
		merged, dirs := mergeCaches(row.specs)
		if diff := cmp.Diff([][]string{row.merged, row.dirs}, [][]string{merged, dirs}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if _, err := Parse(row.specs, Env{}); err != nil && runtime.GOOS == "linux" {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
	for _, spec := range []string{"cri,cnicache:/x", "cnicache:/x,cri", "netns,cnicache"} {
		if _, err := Parse([]string{spec}, Env{}); err == nil || !strings.Contains(err.Error(), "a --source of its own") {
			t.Errorf("%s is accepted, and its directory or the others would count for nothing: %v", spec, err)
		}
	}
	if _, err := Parse([]string{"netns", "cnicache:results"}, Env{}); err == nil || runtime.GOOS == "linux" && !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative path: %v", err)
	}
}
