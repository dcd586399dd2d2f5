// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const killEnv = "HOSTLOCAL_GC_TEST_KILL"

// TestKilledAtAnyMoment kills a pass, in a process of its own, each time that it
// asks for the state of its context: between any two of its steps. It leaves
// whole reservations or none, the lock is free, and the next pass finishes the
// work (R12).
func TestKilledAtAnyMoment(t *testing.T) {
	if os.Getenv(killEnv) != "" {
		killedPass(t)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for step := 1; ; step++ {
		n := newNode(t)
		want := make(map[string]string)
		for i := range 6 {
			leaked, live := fmt.Sprintf("10.0.0.%d", 2*i+2), fmt.Sprintf("10.0.0.%d", 2*i+3)
			n.reserve(leaked, "leaked", old)
			n.reserve(live, "other", old)
			want[leaked], want[live] = "leaked\r\neth0", "other\r\neth0"
		}
		cmd := exec.Command(exe, "-test.run=^TestKilledAtAnyMoment$")
		cmd.Env = append(os.Environ(), killEnv+"="+strconv.Itoa(step), killEnv+"_DIR="+n.dataDir)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		died := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if err != nil && !died {
			t.Fatalf("step %d: %v\n%s", step, err, out)
		}
		left := 0
		for ip, content := range want {
			got, err := os.ReadFile(n.path(ip))
			if errors.Is(err, os.ErrNotExist) && content == "leaked\r\neth0" {
				continue
			}
			if err != nil || string(got) != content {
				t.Errorf("step %d: %s holds %q (error %v), want it whole", step, ip, got, err)
			}
			left++
		}
		if n.locked() {
			t.Errorf("step %d: the dead process holds the lock", step)
		}
		n.pass(podsource.Static{other}, Options{})
		for ip, content := range want {
			if n.exists(ip) != (content == "other\r\neth0") {
				t.Errorf("step %d: after the next pass %s is there: %t", step, ip, n.exists(ip))
			}
		}
		if !died {
			if step < 10 {
				t.Errorf("the pass ended by itself at step %d, so nearly nothing was tried", step)
			}
			t.Logf("killed at each of %d steps", step-1)
			return
		}
		if t.Failed() {
			return
		}
	}
}

// killedPass is the process that dies.
func killedPass(t *testing.T) {
	steps, err := strconv.Atoi(os.Getenv(killEnv))
	if err != nil {
		t.Fatal(err)
	}
	store := hostlocal.New(os.Getenv(killEnv + "_DIR"))
	ctx := newTurnContext(t)
	ctx.on(func() {
		if steps--; steps == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it arrives
		}
	})
	r, err := New(store, []string{network1}, podsource.Static{other}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
}
