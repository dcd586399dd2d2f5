// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// Who sees but the processes of its own pod must not take them for a node's: it
// would declare to see what it does not, and all that it does not see would be
// released (hazard 79).
//
// Guard: [Source.checkNested] wants a process that shows that process 1 is a
// node's.
func TestHazard79OwnPodTakenForNode(t *testing.T) {
	if !onNode(t) {
		return
	}
	const refused = "The agent's pod needs hostPID"
	for _, row := range []struct{ reason, start, want string }{
		{"an agent's pod without hostPID", "container", refused},
		{"... where a shell or an init starts the agent", "container child", refused},
		{"... which shares its processes: process 1 has mounts of its own", "beside", refused},
		{"... and which inherited the agent, whose parent has ended", "container mounts", refused},
		{"... where the agent was started beside", "container mounts child", refused},
		{"directly on a node without containers, which looks just the same", "container child", refused},
		{"... in a PID namespace of its own", "container processes", "[]"},
		{"in a container with hostPID, alone on the node", "container child mounts", "[]"},
		{"... started by a shell", "container child mounts child", "[]"},
		{"on a node with a container", "child", "[]"},
		{"a container with the procfs of the node, and without hostPID", "child processes child", "[]"},
	} {
		cmd := again(t, starter)
		cmd.Env = slices.Concat(cmd.Env, []string{"NETNS_TEST_ROW=" + row.start, "NETNS_TEST_NESTED=1"})
		out, _ := cmd.CombinedOutput() // an error is in the text, too
		if got := string(out); !strings.Contains(got, row.want) || strings.HasPrefix(got, "error: ") != (row.want == refused) {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
	own := map[string]string{"../self": "link:7", "ns/pid": "link:pid:[5]", "stat": "7 (agent) S 8" + strings.Repeat(" 0", 18)}
	ofShell := maps.Clone(own)
	ofShell["ns/mnt"], ofShell["../8/ns/pid"] = "link:mnt:[1]", "link:pid:[5]"
	for _, row := range []struct{ reason, proc, want string }{
		{"no process can be listed", t.TempDir() + "/none", "listing the node's processes"},
		{"one that ends meanwhile is in no PID namespace below", procOf(t, map[string]string{"x": ""}), "looking for this process"},
		{"one may be in one, and can't be asked", procOf(t, map[string]string{"ns/pid": ""}), "looking at process 7"},
		{"the mounts of this process are not known", procOf(t, own), "looking at those that started this process"},
		{"... of the one that started it", procOf(t, ofShell), "looking at those that started this process"},
	} {
		s := Source{opts: Options{Proc: row.proc}}
		if err := s.checkNested(5); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", row.reason, err, row.want)
		}
	}
}
