// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A runtime that is stopped, was killed, or is still recovering returns no list, and nothing is
// released. Its pods run on.
func TestNothingIsReleasedWithoutTheRuntime(t *testing.T) {
	for _, f := range []flavour{current(), debian()} {
		t.Run(f.name, func(t *testing.T) {
			n := newNode(t, f)
			live, victim := n.run("live"), n.run("victim")
			n.leak(victim)
			n.age(n.network)
			n.stop()
			n.refused("there is no socket")
			n.start()
			n.kill()
			n.refused("nothing listens on it")

			shim := n.freezeShim(live)
			n.launch()
			// Either the socket or the CRI is not ready. containerd 1.6 has its own message for that.
			recovering := []string{"list of pods is incomplete", "server is not initialized yet"}
			refusals := 0
			for ; refusals < 5; refusals++ {
				n.refused(recovering...)
			}
			if err := syscall.Kill(shim, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			p, err := n.collector(t.Context(), "release", n.network)
			for ; p.status != 0 && err == nil; p, err = n.collector(t.Context(), "release", n.network) {
				n.wantError(p, recovering...)
				refusals++
			}
			n.must(err)
			t.Logf("%d passes were refused before the runtime had recovered", refusals)
			same(t, "released", "the first answer has the live pod", holding(victim), p.released)
			same(t, "reservations", "after the pass", holding(live), n.reservations(n.network))
		})
	}
}

// refused checks that a pass fails with one of these texts, and releases nothing.
func (n *node) refused(why ...string) {
	n.t.Helper()
	before := n.reservations(n.network)
	p, err := n.collector(n.t.Context(), "release", n.network)
	n.must(err)
	n.wantError(p, why...)
	same(n.t, "reservations", "the pass was refused", before, n.reservations(n.network))
}

func (n *node) wantError(p pass, why ...string) {
	n.t.Helper()
	said := slices.ContainsFunc(why, func(text string) bool { return strings.Contains(p.stderr, text) })
	if p.status != 1 || !said || len(p.released) > 0 {
		n.t.Errorf("the pass did not fail with one of %q: %v", why, p)
	}
}

// freezeShim stops the shim of a pod (SIGSTOP). containerd waits for it while it recovers.
func (n *node) freezeShim(p pod) int {
	n.t.Helper()
	pids, err := others()
	n.must(err)
	for _, pid := range pids {
		args := arguments(pid)
		if len(args) > 0 && strings.Contains(args[0], "containerd-shim") && strings.Contains(strings.Join(args, " "), p.id) {
			n.must(syscall.Kill(pid, syscall.SIGSTOP))
			return pid
		}
	}
	n.t.Fatalf("pod %s has no shim", p.name)
	return 0
}

// arguments returns the arguments of a process, or none if it has ended.
func arguments(pid int) []string {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")
}
