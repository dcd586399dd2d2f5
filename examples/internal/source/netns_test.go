// SPDX-License-Identifier: Apache-2.0

package source

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// The source itself is tested in its package. Here --source netns makes it.
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

// The longest ADD follows kubelet's setting, as StartingFor does.
func TestLongestADD(t *testing.T) {
	for _, row := range []struct {
		reason               string
		requestTimeout, want time.Duration
	}{
		{"the default", 0, gc.DefaultStartingFor},
		{"the default, said", gc.DefaultRuntimeRequestTimeout, gc.DefaultStartingFor},
		{"a slow node: twice that, and ten minutes", 15 * time.Minute, 40 * time.Minute},
		{"nonsense is left to the passes", -time.Hour, 10 * time.Minute},
	} {
		if got := LongestADD(row.requestTimeout); got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
	if _, err := Parse([]string{"netns"}, Env{LongestADD: -1}); err == nil && runtime.GOOS == "linux" {
		t.Error("netns does not get what is in Env")
	}
}
