// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// tell tells the plugin gate what to do at a command for a pod: "fail", "hold" or
// "sleep 20s". An empty pod is every one. A command "chained-ADD" is of the second
// plugin of a chain, "lease-ADD" of its IPAM plugin. START is of the runtime, and
// what it is told is a time.
func (n *node) tell(command, pod, what string) {
	n.t.Helper()
	name := command
	if pod != "" {
		name += "." + pod
	}
	n.must(os.WriteFile(n.path("control/"+name), []byte(what), 0o600))
}

// untell takes back what tell said.
func (n *node) untell(command, pod string) {
	n.t.Helper()
	name := command
	if pod != "" {
		name += "." + pod
	}
	n.must(os.Remove(n.path("control/" + name)))
}

// A call is a RunPodSandbox that may take its time.
type call struct {
	done   chan struct{} // closed when it has returned
	giveUp func()        // ends the call, as its client's deadline does
	pod    pod
	err    error
}

// runHeld begins to run a pod and returns when its ADD has got the addresses and
// has not returned. Until goOn is called it stays so.
func (n *node) runHeld(name string) *call {
	n.t.Helper()
	return n.runHeldIn("ADD", name)
}

// runHeldIn is the same for an ADD of one of the plugins.
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
		n.t.Fatalf("pod %s was to be held in its ADD, and was not: %v", name, c.err)
	}
	return c
}

// begin begins to run a pod.
func (n *node) begin(name string) *call {
	ctx, giveUp := context.WithCancel(n.t.Context())
	c := &call{done: make(chan struct{}), giveUp: giveUp}
	go func() {
		defer close(c.done)
		defer giveUp()
		c.pod, c.err = n.tryRun(ctx, name)
	}()
	return c
}

// goOn lets the ADD that is held go on.
func (n *node) goOn() {
	n.t.Helper()
	n.must(touch(n.path("control/go"), os.O_WRONLY))
}

// touch opens a pipe, which waits for the other end, and closes it.
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
