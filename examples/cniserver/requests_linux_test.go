// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// libcni calls the plugin as a runtime does, with each version and delegate.
func TestLibcni(t *testing.T) {
	for _, row := range []struct {
		reason, version, plugin string
		each                    int
	}{
		{"the newest version", "1.1.0", "bridge", 1},
		{"the other delegate, two addresses each", "1.1.0", "ptp", 2},
		{"results of version 1.0.0", "1.0.0", "bridge", 2},
		{"the oldest version that has CHECK", "0.4.0", "ptp", 1},
		{"the oldest version", "0.3.1", "bridge", 2},
	} {
		t.Run(row.version+" "+row.plugin, func(t *testing.T) {
			n := newNode(t)
			n.restart()
			list := n.list("one", row.version, row.plugin, row.each)
			n.mustAdd(list, "a")
			n.Make("b")
			runtime := n.cni() // with the result of b in its cache
			_, err := runtime.AddNetworkList(t.Context(), list, runtimeConf("b"))
			n.must(err)
			n.agree(row.each, "a", "b")
			if content, err := os.ReadFile(n.recordFile()); err != nil || !strings.Contains(string(content), "web-a") {
				t.Errorf("%s: the pod of CNI_ARGS is not recorded: %v", row.reason, err)
			}
			if row.version != "0.3.1" {
				if err := runtime.CheckNetworkList(t.Context(), list, runtimeConf("b")); err != nil {
					t.Errorf("%s: CHECK: %v", row.reason, err)
				}
			}
			if row.version == "1.1.0" {
				if err := n.cni().GetStatusNetworkList(t.Context(), list); err != nil {
					t.Errorf("%s: STATUS: %v", row.reason, err)
				}
			}
			if err := n.add(list, "a"); err == nil {
				t.Errorf("%s: a second ADD succeeds", row.reason)
			}
			n.agree(row.each, "a", "b")
			n.must(n.del(list, "a"))
			n.agree(row.each, "b")
			n.must(n.del(list, "a")) // again, as kubelet does
			n.must(n.del(list, "b"))
			n.agree(row.each)
		})
	}
}

// The server refuses a request before its first step, with a code, and says why.
func TestRefused(t *testing.T) {
	n := newNode(t)
	n.Make("a")
	var e *types.Error
	if err := n.add(n.one(), "a"); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		t.Errorf("without a server: %v", err)
	}
	n.restart()
	if info, err := os.Stat(n.path("run/" + socketName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the socket: %v, %v", info, err)
	}
	for _, row := range []struct{ reason, old, new, want string }{
		{"a network that is not served", `"name":"one"`, `"name":"three"`, "--network three"},
		{"an unsupported IPAM plugin", `"type":"host-local"`, `"type":"dhcp"`, "host-local"},
		{"another data directory", n.path("networks"), n.path("other"), "dataDir"},
		{"no data directory, so that it is the default of host-local", `"dataDir":"` + n.path("networks") + `",`, "", "dataDir"},
		{"rules that a DEL could not remove", `"isGateway":true`, `"ipMasq":true`, "ipMasq"},
		{"no delegate", `"delegate"`, `"delegates"`, "delegate"},
		{"null for it", `"delegate":`, `"delegate":null,"x":`, "host-local"},
		{"a delegate of the wrong type", `"type":"bridge"`, `"type":7`, `reading "delegate"`},
	} {
		list := n.parse(strings.ReplaceAll(string(n.one().Bytes), row.old, row.new))
		if err := n.add(list, "a"); !errors.As(err, &e) || e.Code != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
	args := n.args("a")
	args.Args = strings.Repeat("x", 1<<20)
	if _, err := send(n.path("run/"+socketName), "ADD", &args); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a request that is too large: %v", err)
	}
	n.agree(1)
}

// A GC detaches the recorded attachments that are not valid, and releases what is not recorded and
// not young, in its network and in no other. Without a list it does nothing.
//
// Guard: the networks in [server.gc], and its minimum ages.
func TestHazard74GCOfOneNetwork(t *testing.T) {
	n := newNode(t)
	n.restart(append(n.runtimeLists("other"), "--gc-min-age", "0")...) // so that the record speaks of what is old
	one, two := n.one(), n.list("two", "1.1.0", "bridge", 2)
	n.mustAdd(one, "a", "b")
	n.mustAdd(two, "c")
	reserve := func(network, ip, id string, age time.Duration) string {
		return cnitest.Reserve(t, n.path("networks"), network, ip, id, age)
	}
	const margin = 20 * time.Second
	leak := reserve("one", "10.9.1.200", sandbox("leak"), gc.DefaultMinAge+margin)
	kept := map[string]string{
		"a young one":              reserve("one", "10.9.1.201", sandbox("young"), gc.DefaultMinAge-margin),
		"a valid one":              reserve("one", "10.9.1.202", sandbox("valid"), time.Hour),
		"one in another network":   reserve("two", "10.9.2.200", sandbox("there"), time.Hour),
		"one that is not a server": reserve("three", "10.9.3.200", sandbox("unserved"), time.Hour),
	}
	if err := n.cni().GCNetworkList(t.Context(), one, nil); err == nil || !strings.Contains(err.Error(), "valid-attachments") {
		t.Errorf("a GC without a list (hazard 27): %v", err)
	}
	if !cnitest.Exists(leak) {
		t.Error("a GC without a list releases")
	}
	n.must(n.gc(one, "a", sandbox("valid")))
	for what, file := range kept {
		if !cnitest.Exists(file) {
			t.Errorf("a GC released %s", what)
		}
		n.must(os.Remove(file))
	}
	if cnitest.Exists(leak) {
		t.Error("a GC keeps a leak")
	}
	n.agree(2, "a", "c")
	n.restart() // with the default minimum age
	n.must(n.gc(one))
	n.agree(2, "a", "c")
}

// An ADD that finds no free address triggers a pass, which releases leaks.
func TestFullPoolTriggersAPass(t *testing.T) {
	n := newNode(t)
	n.restart(n.runtimeLists("other")...)
	small := n.parse(strings.ReplaceAll(string(n.list("one", "1.1.0", "ptp", 1).Bytes), "10.9.1.0/24", "10.9.1.0/30"))
	leak := cnitest.Reserve(t, n.path("networks"), "one", "10.9.1.2", sandbox("gone"), time.Hour)
	n.Make("a")
	if err := n.add(small, "a"); err == nil || !strings.Contains(err.Error(), "no IP addresses available") {
		t.Errorf("ADD in a full network: %v", err)
	}
	cnitest.Until(t, "the pass has released the leak", func() bool { return !cnitest.Exists(leak) })
	n.mustAdd(small, "a")
	n.agree(1, "a")
}

// waiting reports whether a goroutine waits for a lock in handle, according to its stack.
func waiting(lock string) bool {
	stacks := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if state, _, _ := strings.Cut(g, "\n"); strings.Contains(state, "["+lock) && strings.Contains(g, ".handle(") {
			return true
		}
	}
	return false
}

// A GC runs alone, other requests one at a time for each container, and STATUS at any time. The
// time limit begins after the wait. If the plugin ends during it, the request is dropped.
func TestConflictingRequestsWait(t *testing.T) {
	n := newNode(t)
	n.scripted()
	s := n.newServer()
	n.Make("a")
	for _, row := range []struct{ during, id, command, lock string }{
		{"ADD", "a", "GC", "sync.RWMutex.Lock"},
		{"GC", "", "ADD", "sync.RWMutex.RLock"},
		{"ADD", "a", "DEL", "sync.Mutex.Lock"},
		{"DEL", "a", "CHECK", "sync.Mutex.Lock"},
		{"GC", "", "STATUS", ""},
		{"ADD", "b", "DEL", ""},
	} {
		n.script(row.during + " block")
		n.Make("b")
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := s.handle(t.Context(), row.during, n.args(row.id)); first <- err }()
		n.arrived()
		go func() { _, err := s.handle(ctx, row.command, n.args("a")); second <- err }()
		if row.lock == "" {
			if err := <-second; err != nil || len(first) > 0 {
				t.Errorf("%s during %s: %v", row.command, row.during, err)
			}
			n.goOn()
		} else {
			cnitest.Until(t, row.command+" waits", func() bool { return waiting(row.lock) || len(second) > 0 })
			cancel() // the plugin ends
			n.goOn()
			var e *types.Error
			if err := <-second; !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
				t.Errorf("%s during %s, and the plugin ended: %v", row.command, row.during, err)
			}
		}
		cancel()
		n.must(<-first)
		_, err := s.handle(t.Context(), "DEL", n.args("a"))
		n.must(err)
		_, err = s.handle(t.Context(), "DEL", n.args("b"))
		n.must(err)
	}
	n.agree(2)
	s.timeout = 1 // a nanosecond
	if _, err := s.handle(t.Context(), "STATUS", n.args("a")); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("with a time limit of 1ns: %v", err)
	}
}

// If a plugin is killed during its ADD, or the server gets a signal, the server completes the ADD.
// An ADD whose time limit ends is undone.
func TestADDIsCompleted(t *testing.T) {
	n := newNode(t)
	n.scripted()
	for _, row := range []string{"the plugin is killed", "the server gets a signal"} {
		n.restart()
		n.Make("c")
		n.script("ADD block")
		ctx, kill := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { _, err := n.cni().AddNetworkList(ctx, n.one(), runtimeConf("c")); done <- err }()
		n.arrived()
		if row == "the plugin is killed" {
			kill()
			if err := <-done; err == nil {
				t.Error("the runtime gets a result of a plugin that is killed")
			}
			n.goOn()
			cnitest.Until(t, "the ADD has ended", func() bool {
				left, err := os.ReadFile(n.intentsFile())
				return err == nil && string(left) == "{}"
			})
		} else {
			n.must(n.server.Process.Signal(syscall.SIGTERM))
			cnitest.Until(t, "the server no longer listens", func() bool { return !cnitest.Exists(n.path("run/" + socketName)) })
			n.goOn()
			n.must(<-done)
			n.died()
			n.restart()
		}
		kill()
		n.agree(2, "c")
		n.must(n.del(n.one(), "c"))
	}
	n.kill()
	s := n.newServer()
	n.must(os.Remove(n.path("asked")))
	ctx, expire := context.WithCancel(t.Context())
	expire()
	r, err := s.newRequest(n.args("c"))
	n.must(err)
	_, err = s.add(ctx, r)
	asked, read := os.ReadFile(n.path("asked"))
	if err == nil || read != nil || !strings.Contains(string(asked), "DEL") {
		t.Errorf("an ADD after its time limit: %v; the delegate was asked for %q", err, asked)
	}
	n.agree(2)
}
