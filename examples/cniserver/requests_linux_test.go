// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// waiting reports whether a goroutine waits for a lock in serialize, according to its stack.
func waiting(lock string) bool {
	stacks := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		state, _, _ := strings.Cut(g, "\n")
		if strings.Contains(state, "["+lock) && strings.Contains(g, ".serialize(") {
			return true
		}
	}
	return false
}

// A conflict is a request that has to wait for another one.
type conflict struct {
	reason string
	r      request
	lock   string // that it waits for
	before func(s *server) (done func())
}

func conflicts() []conflict {
	during := func(command string) func(s *server) func() {
		return func(s *server) func() {
			begun, end := make(chan struct{}), make(chan struct{})
			go func() {
				_ = s.serialize(context.Background(), &request{Command: command, ContainerID: "a"}, func(context.Context) error {
					close(begun)
					<-end
					return nil
				})
			}()
			<-begun
			return func() { close(end) }
		}
	}
	return []conflict{
		{"a GC while an ADD is under way", request{Command: "GC"}, "sync.RWMutex.Lock", during("ADD")},
		{"an ADD while a GC is under way", request{Command: "ADD", ContainerID: "b"}, "sync.RWMutex.RLock", during("GC")},
		{"a GC during a GC", request{Command: "GC"}, "sync.Mutex.Lock", during("GC")},
		{"a DEL while an ADD of the container is under way", request{Command: "DEL", ContainerID: "a"}, "sync.Mutex.Lock", during("ADD")},
		{"a CHECK while a DEL of the container is under way", request{Command: "CHECK", ContainerID: "a"}, "sync.Mutex.Lock", during("DEL")},
		{"an ADD of another interface of the container", request{Command: "ADD", ContainerID: "a", IfName: "net1"}, "sync.Mutex.Lock", during("ADD")},
	}
}

// The time limit of a request begins after its wait for other requests. If its plugin ends
// during the wait, the request is dropped.
func TestConflictingRequestsWait(t *testing.T) {
	for _, row := range conflicts() {
		s := newNode(t).newServer()
		ended := row.before(s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		var began bool
		var deadline time.Time
		go func() {
			done <- s.serialize(t.Context(), &row.r, func(ctx context.Context) error {
				deadline, _ = ctx.Deadline()
				return nil
			})
		}()
		cnitest.Until(t, row.reason+" waits", func() bool { return waiting(row.lock) || len(done) > 0 })
		if len(done) > 0 {
			t.Errorf("%s does not wait", row.reason)
		}
		due := time.Now().Add(s.timeout)
		ended()
		if err := <-done; err != nil || deadline.Before(due) {
			t.Errorf("%s: %v; its time limit is %v too early", row.reason, err, due.Sub(deadline))
		}
		// The plugin ends while its request waits.
		ended = row.before(s)
		go func() {
			done <- s.serialize(ctx, &row.r, func(context.Context) error { began = true; return nil })
		}()
		cnitest.Until(t, row.reason+" waits", func() bool { return waiting(row.lock) || len(done) > 0 })
		cancel()
		ended()
		var e *types.Error
		if err := <-done; !errors.As(err, &e) || e.Code != types.ErrTryAgainLater || began {
			t.Errorf("%s: the plugin has ended: %v, begun: %t", row.reason, err, began)
		}
	}
}

// STATUS does not wait for other requests: runtimes send it all the time, and if there is no
// answer, the node is not ready.
func TestStatusDoesNotWait(t *testing.T) {
	s := newNode(t).newServer()
	s.gcLock.Lock()
	defer s.gcLock.Unlock()
	began := false
	if err := s.serialize(t.Context(), &request{Command: "STATUS"}, func(context.Context) error { began = true; return nil }); err != nil || !began {
		t.Errorf("%v, begun: %t", err, began)
	}
}

// blockAt replaces host-local by one that, after n.block and after its work for a command,
// waits for goOn. arrived waits until it is there.
func (n *node) blockAt(command string) (arrived, goOn func()) {
	n.t.Helper()
	n.ownBin("cniserver", "bridge", "ptp")
	pipe := filepath.Join(n.dir, "pipe")
	script := fmt.Sprintf("#!/bin/sh\n%s/host-local; code=$?\n"+
		"if [ -p %[2]s ] && [ $CNI_COMMAND = %[3]s ]; then echo there >%[2]s; cat %[2]s.go; fi >&2\nexit $code\n", cnitest.Bin(), pipe, command)
	if err := os.WriteFile(filepath.Join(n.bin, "host-local"), []byte(script), 0o700); err != nil {
		n.t.Fatal(err)
	}
	arrived = func() {
		n.t.Helper()
		if _, err := os.ReadFile(pipe); err != nil {
			n.t.Fatal(err)
		}
	}
	return arrived, func() { // may be called by the goroutine that reads the server's log
		if err := errors.Join(os.Remove(pipe), os.WriteFile(pipe+".go", nil, 0)); err != nil { // later calls don't wait
			n.t.Error(err)
		}
	}
}

// block makes the host-local of blockAt wait from now on.
func (n *node) block() {
	n.t.Helper()
	pipe := filepath.Join(n.dir, "pipe")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), syscall.Mkfifo(pipe+".go", 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

// If a plugin is killed during its ADD, the server completes the ADD.
func TestPluginIsKilledDuringItsADD(t *testing.T) {
	n := newNode(t)
	arrived, goOn := n.blockAt("ADD")
	n.restart()
	n.Make("c")
	n.block()
	cmd := exec.Command(filepath.Join(n.bin, "cniserver"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_NETNS="+cnitest.NetNS("c"), "CNI_PATH="+n.bin)
	cmd.Stdin = strings.NewReader(n.plugin("one"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	arrived()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	goOn()
	cnitest.Until(t, "the ADD has ended", func() bool {
		left, err := n.intentFiles()
		return err != nil || len(left) == 0
	})
	n.agree(2, "c")
}

// An ADD is undone at once also if its time limit is over.
func TestADDIsUndoneAfterItsTimeLimit(t *testing.T) {
	n := newNode(t)
	arrived, goOn := n.blockAt("ADD")
	s := n.newServer()
	n.Make("c")
	n.block()
	ctx, expire := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := s.add(ctx, n.request("ADD", "c"), n.delegation()); done <- err }()
	arrived()
	if h := n.holding(); len(h.Reserved) != 2 {
		t.Errorf("nothing to undo: reserved are %v", h.Reserved)
	}
	expire()
	goOn()
	if err := <-done; err == nil {
		t.Error("the ADD succeeds after its time limit")
	}
	if diff := cmp.Diff(holding{}, n.holding()); diff != "" {
		t.Errorf("left (+):\n%s", diff)
	}
	n.agree(2)
}

// After its time limit a request begins no further step; only an ADD is undone.
func TestTimeLimit(t *testing.T) {
	n := newNode(t)
	fails, asked := n.failing()
	s := n.newServer()
	for _, id := range []string{"a", "c"} {
		n.Make(id)
	}
	if _, err := s.handle(t.Context(), n.request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	lost := n.reserve("one", "10.9.1.200", sandbox("lost"))
	ctx, expire := context.WithCancel(t.Context())
	expire()
	for _, row := range []struct {
		command, id string
		do          func(context.Context, *request, *delegation) error
		asks        string
	}{
		{"ADD", "c", func(ctx context.Context, r *request, d *delegation) error { _, err := s.add(ctx, r, d); return err }, "DEL\n"},
		{"ADD", "a", func(ctx context.Context, r *request, d *delegation) error { _, err := s.add(ctx, r, d); return err }, ""}, // it has to detach a first
		{"CHECK", "a", s.check, ""},
		{"STATUS", "", s.status, ""},
		{"GC", "", s.gc, ""},
		{"DEL", "a", s.del, ""},
		{"ADD", "a", func(ctx context.Context, r *request, d *delegation) error { _, err := s.add(ctx, r, d); return err }, ""}, // it has to finish the DEL first
	} {
		cnitest.Write(t, asked, "", 0)
		if err := row.do(ctx, n.request(row.command, row.id), n.delegation()); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
			t.Errorf("%s: %v", row.command, err)
		}
		if got, err := os.ReadFile(asked); err != nil || string(got) != row.asks {
			t.Errorf("%s: the delegate is asked for %q, %v; want %q", row.command, got, err, row.asks)
		}
		if !cnitest.Exists(lost) || len(s.record.Entries()) != 1 {
			t.Errorf("%s: the leaked reservation exists: %t, recorded are %v", row.command, cnitest.Exists(lost), s.record.Entries())
		}
	}
	// Each command has the time limit, and undoing has one of its own.
	s.timeout = 1
	for _, command := range []string{"STATUS", "CHECK", "GC", "DEL", "ADD"} {
		if _, err := s.handle(t.Context(), n.request(command, "a")); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			t.Errorf("%s with a time limit of 1ns: %v", command, err)
		}
	}
	cnitest.Write(t, fails, "ADD", 0)
	if _, err := s.add(t.Context(), n.request("ADD", "c"), n.delegation()); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("an ADD that fails: %v", err)
	}
}
