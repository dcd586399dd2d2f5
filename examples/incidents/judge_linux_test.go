// SPDX-License-Identifier: Apache-2.0

package incidents

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// Scripts that go wrong in each way must get different outcomes.
func TestOutcomes(t *testing.T) {
	const (
		plain = "one pod lives, one address leaked"
		empty = "the list is empty"
		mixed = "a backup, a link, a lock and names that are no addresses"
		rmAll = `rm -f "$1"/podnet/10.244.0.*`
		leaks = `rm -f "$1"/podnet/10.244.0.250`
		// Until the test removes the directory, and not much longer if it does not come to that.
		stays = `setsid timeout 60 sh -c 'while [ -d "$0" ]; do sleep 0.1; done' "$1" & `
	)
	for _, c := range []struct{ name, script, in, want, reason string }{
		{"removes all", rmAll, plain, loses, "a live pod has one"},
		{"removes all, where it was to refuse", rmAll, empty, acts, "the list was none to act on"},
		{"removes the data directory", `rm -rf "$1"`, plain, loses, "what is not there any more is lost, too"},
		{"removes the leak", leaks, plain, holds, "this is what is wanted"},
		{"removes the leak, where it was to refuse", leaks + "; exit 1", empty, acts, "it says that it refuses, and has acted"},
		{"does nothing", "", plain, keeps, "the leak is there"},
		{"does nothing instead of refusing", "", empty, silent, "its caller takes it for a success"},
		{"refuses", "exit 1", plain, fails, "there was nothing to refuse"},
		{"refuses, where it was to", "exit 1", empty, holds, "this is what is wanted"},
		{"crashes half-way", leaks + "; kill -SEGV $$", plain, fails, "its caller can't know how far it came"},
		{"crashes, where it was to refuse", "kill -SEGV $$", empty, fails, "a crash is no refusal"},
		{"loses and crashes", rmAll + "; kill -SEGV $$", plain, loses, "the loss is worse"},
		{"hangs", "sleep 1000", plain, blocks, "it is killed, with what it started"},
		{"leaves a process behind that has its output", stays + leaks, plain, blocks, "something of it runs on"},
		{"leaves such a process behind after a loss", stays + rmAll, plain, loses, "the loss is worse"},
		{"makes a reservation", leaks + `; echo me > "$1"/podnet/10.244.0.77`, plain, writes, "nobody would ever release it"},
		{"keeps a note there", leaks + `; : > "$1"/podnet/state`, plain, writes, "host-local reads each file of the directory"},
		{"makes a directory", leaks + `; mkdir "$1"/podnet/state`, plain, writes, "the same"},
		{"makes a lock in a network without one", leaks + `; mkdir -p "$1"; : > "$1"/lock`, plain, holds, "host-local does so, too"},
		{"replaces the lock", leaks + `; cp "$1"/podnet/lock "$1"/l && mv "$1"/l "$1"/podnet/lock`, plain, destroys, "the plugin holds the old one"},
		{"removes the lock", leaks + `; rm "$1"/podnet/lock`, plain, destroys, "the same"},
		{"overwrites a reservation", leaks + `; echo me > "$1"/podnet/10.244.0.2`, plain, loses, "the pod's DEL would not find it"},
		{"forgets what was reserved last", leaks + `; : > "$1"/podnet/last_reserved_ip.0`, mixed, destroys, "addresses would be used again at once"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := hazards()
			i := slices.IndexFunc(all, func(h hazard) bool { return h.what == c.in })
			if i < 0 {
				t.Fatalf("there is no hazard %q", c.in)
			}
			within := limit
			if c.name == "hangs" {
				within = 2 * time.Second // it would not end later either
			}
			outcome, said := all[i].try(t, collector{name: c.name, command: []string{"/bin/sh", "-c", c.script, "sh", "{dir}", "{pods.json}"}}, within)
			if outcome != c.want {
				t.Errorf("outcome %q, want %q (%s)\n%s", outcome, c.want, c.reason, said)
			}
			if late := strings.Contains(said, exec.ErrWaitDelay.Error()); late != strings.HasPrefix(c.script, stays) {
				t.Errorf("a process that keeps the output open was noticed: %t\n%s", late, said)
			}
		})
	}
}
