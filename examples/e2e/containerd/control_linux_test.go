// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// tell tells the plugin gate what to do in a command for a pod: "fail", "hold" or "sleep 20s".
// An empty pod stands for all pods. The command "chained-ADD" is for the second plugin of a
// chain, "lease-ADD" for its IPAM plugin. START is for runclite, with a duration,
// which [node.untell] ends.
func (n *node) tell(command, pod, what string) {
	n.t.Helper()
	name := command
	if pod != "" {
		name += "." + pod
	}
	n.must(os.WriteFile(n.path("control/"+name), []byte(what), 0o600))
}

// untell undoes tell.
func (n *node) untell(command, pod string) {
	n.t.Helper()
	name := command
	if pod != "" {
		name += "." + pod
	}
	n.must(os.Remove(n.path("control/" + name)))
}

// A call is a call of RunPodSandbox in another goroutine.
type call struct {
	done   chan struct{} // closed when it has returned
	cancel func()        // ends the call, like its client's deadline
	pod    pod
	err    error
}

// runHeld starts to run a pod, and returns when its ADD has its addresses. The ADD does not
// return until resume is called.
func (n *node) runHeld(name string) *call {
	n.t.Helper()
	return n.runHeldIn("ADD", name)
}

// runHeldIn is runHeld for any command of [node.tell].
func (n *node) runHeldIn(command, name string) *call {
	n.t.Helper()
	for _, pipe := range []string{"arrived", "go"} {
		if err := syscall.Mkfifo(n.path("control/"+pipe), 0o600); err != nil && !errors.Is(err, os.ErrExist) {
			n.must(fmt.Errorf("making the pipe %s: %w", pipe, err))
		}
	}
	n.tell(command, name, "hold")
	c := n.begin(name)
	arrived := make(chan error, 1)
	go func() { arrived <- touch(n.path("control/arrived"), os.O_RDONLY) }()
	select {
	case err := <-arrived:
		n.must(err)
	case <-c.done:
		n.t.Fatalf("pod %s was not held in its ADD: %v", name, c.err)
	}
	return c
}

// begin starts to run a pod.
func (n *node) begin(name string) *call {
	ctx, cancel := context.WithCancel(n.t.Context())
	c := &call{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(c.done)
		defer cancel()
		c.pod, c.err = n.tryRun(ctx, name)
	}()
	return c
}

// resume lets the ADD that is held return.
func (n *node) resume() {
	n.t.Helper()
	n.must(touch(n.path("control/go"), os.O_WRONLY))
}

// touch opens a pipe, which waits for the other end, and closes the pipe.
func touch(pipe string, flag int) error {
	f, err := os.OpenFile(pipe, flag, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// wait waits until the pod runs.
func (n *node) wait(c *call) pod {
	n.t.Helper()
	<-c.done
	n.must(c.err)
	return c.pod
}
