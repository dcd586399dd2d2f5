// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"
)

// An agent that sees only the processes of its own pod must not take the pod for a
// node: it would declare that it sees all addresses, and every address that it does
// not see would be released (hazard 79).
//
// Guard: [scan.checkNested] requires a process that shows that process 1 is a
// node's.
func TestHazard79OwnPodTakenForNode(t *testing.T) {
	if !onNode(t) {
		return
	}
	const refused = "The agent's pod needs hostPID"
	for _, row := range []struct{ reason, start, want string }{
		{"an agent's pod without hostPID", "container", refused},
		{"... where a shell or an init starts the agent, or directly on a node without containers", "container child", refused},
		{"... with a shared PID namespace: process 1 has mounts of its own", "beside", refused},
		{"... where process 1 adopted the agent, whose parent has ended", "container mounts", refused},
		{"... where another container started the agent", "container mounts child", refused},
		{"... in a PID namespace of its own", "container processes", "[]"},
		{"in a container with hostPID, alone on the node", "container child mounts", "[]"},
		{"... started by a shell", "container child mounts child", "[]"},
		{"on a node with a container", "child", "[]"},
		{"a plugin directly on a node without containers", "container, started", "[]"},
		{"in a container with the node's procfs and without hostPID", "child processes child", "[]"},
	} {
		cmd := reexec(t, starter)
		start, started, _ := strings.Cut(row.start, ", ")
		cmd.Env = slices.Concat(cmd.Env, []string{"NETNS_TEST_ROW=" + start, "NETNS_TEST_NESTED=" + cmp.Or(started, "1")})
		out, _ := cmd.CombinedOutput() // the text has the error, too
		if got := string(out); !strings.Contains(got, row.want) || strings.HasPrefix(got, "error: ") != (row.want == refused) {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
	own := map[string]string{"../self": "link:7", "ns/pid": "link:pid:[5]", "stat": "7 (agent) S 8" + strings.Repeat(" 0", 18)}
	ofShell := maps.Clone(own)
	ofShell["ns/mnt"], ofShell["../8/ns/pid"], ofShell["../8/stat"] = "link:mnt:[1]", "link:pid:[5]", own["stat"]
	besideOne := maps.Clone(ofShell)
	besideOne["stat"], besideOne["../9/x"] = strings.Replace(own["stat"], "S 8", "S 1", 1), ""
	for _, row := range []struct{ reason, proc, want string }{
		{"no process can be listed", t.TempDir() + "/none", "listing the node's processes"},
		{"a process that ends meanwhile shows nothing", procOf(t, map[string]string{"x": ""}), "the ancestors of this process"},
		{"a process that can't be read", procOf(t, map[string]string{"ns/pid": ""}), "reading process 7"},
		{"the mount namespace of this process can't be read", procOf(t, own), "the ancestors of this process"},
		{"... nor that of its parent", procOf(t, ofShell), "the ancestors of this process"},
		{"one that can't be read in time could show it", procOf(t, besideOne), "(process 9 can't be read in time)"},
	} {
		s := scanOf(t, row.proc)
		s.pidNS, s.hangs["process 9"] = 5, 1
		if s.checkNested(); s.err == nil || !strings.Contains(s.err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", row.reason, s.err, row.want)
		}
	}
}
