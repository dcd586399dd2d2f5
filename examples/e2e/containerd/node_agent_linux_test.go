// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// The agent of the documentation, with the sources of a usual node. This node has no Kubernetes, and its processes are in a PID
// namespace that the agent was not told to trust: what is left is the runtime.
//
// Guard: [node.New] leaves out what does not exist, and says why.
func TestUsualNode(t *testing.T) {
	n := newNode(t, current())
	live, leaked := n.run("live"), n.run("leaked")
	n.leak(leaked)
	n.age()
	var log bytes.Buffer
	agent := n.program(bin("node"), n.network)
	agent.Env = append(agent.Env, endpointEnv+"="+n.endpoint())
	agent.Stderr = &log
	n.must(agent.Start())
	n.await("the leaked addresses to be released", func(context.Context) error {
		if left := n.heldBy(leaked.id); len(left) > 0 {
			return fmt.Errorf("%v are still reserved", left)
		}
		return nil
	})
	n.must(agent.Process.Signal(syscall.SIGTERM))
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	n.wantLeft("after the pass", live)
	for _, want := range []string{"source=netns reason=", "source=cnicache reason=", "source=kubelet reason=", "Found a container runtime"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if t.Failed() {
		t.Logf("the agent's log:\n%s", &log)
	}
}
