// SPDX-License-Identifier: Apache-2.0

package netns

import (
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
}
