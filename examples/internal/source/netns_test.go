// SPDX-License-Identifier: Apache-2.0

package source

import (
	"runtime"
	"strings"
	"testing"
)

// What it sees is tested where it is made; here it is that it can be asked for.
func TestNetNS(t *testing.T) {
	for _, row := range []struct{ reason, spec, want string }{
		{"a node", "netns", ""},
		{"a node that is a container", "netns:nested", ""},
		{"a directory, which need not be named", "netns:/run/netns", `pod source "netns:/run/netns": there is no "/run/netns"`},
	} {
		_, err := Parse([]string{row.spec}, Env{})
		if runtime.GOOS != "linux" && row.want == "" {
			row.want = "on Linux only"
		}
		if (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("got %v, want an error that says %q: %s", err, row.want, row.reason)
		}
	}
}
