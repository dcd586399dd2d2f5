// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const killEnv = "HOSTLOCAL_GC_TEST_KILL"

// TestKilledAtAnyMoment kills a pass, in a process of its own, at every moment
// at which it looks at its context: that is between any two of its steps. What
// it leaves are whole reservations or none, the lock is free, and the next pass
// finishes the work (R12).
func TestKilledAtAnyMoment(t *testing.T) {
	if os.Getenv(killEnv) != "" {
		killedPass(t)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for moment := 1; ; moment++ {
		n := newNode(t)
		want := make(map[string]string)
		for i := range 6 {
			leaked, live := fmt.Sprintf("10.0.0.%d", 2*i+2), fmt.Sprintf("10.0.0.%d", 2*i+3)
			n.reserve(leaked, "leaked", old)
			n.reserve(live, "other", old)
			want[leaked], want[live] = "leaked\r\neth0", "other\r\neth0"
		}
		cmd := exec.Command(exe, "-test.run=^TestKilledAtAnyMoment$")
		cmd.Env = append(os.Environ(), killEnv+"="+strconv.Itoa(moment), killEnv+"_DIR="+n.dataDir)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		died := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if err != nil && !died {
			t.Fatalf("moment %d: %v\n%s", moment, err, out)
		}
		left := 0
		for ip, content := range want {
			got, err := os.ReadFile(n.path(ip))
			if errors.Is(err, os.ErrNotExist) && content == "leaked\r\neth0" {
				continue
			}
			if err != nil || string(got) != content {
				t.Errorf("moment %d: %s holds %q (error %v), want it whole", moment, ip, got, err)
			}
			left++
		}
		if n.locked() {
			t.Errorf("moment %d: the dead process holds the lock", moment)
		}
		n.pass(podsource.Static{other}, Options{})
		for ip, content := range want {
			if n.exists(ip) != (content == "other\r\neth0") {
				t.Errorf("moment %d: after the next pass %s is there: %t", moment, ip, n.exists(ip))
			}
		}
		if !died {
			if moment < 15 {
				t.Errorf("the pass ended by itself at moment %d, so nearly nothing was tried", moment)
			}
			t.Logf("killed at each of %d moments", moment-1)
			return
		}
		if t.Failed() {
			return
		}
	}
}

// killedPass is the process that dies.
func killedPass(t *testing.T) {
	moments, err := strconv.Atoi(os.Getenv(killEnv))
	if err != nil {
		t.Fatal(err)
	}
	store, err := hostlocal.New(filepath.Clean(os.Getenv(killEnv+"_DIR")), network1)
	if err != nil {
		t.Fatal(err)
	}
	ctx := newTurnContext(t)
	ctx.on(func() {
		if moments--; moments == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it arrives
		}
	})
	if _, err := New(store, podsource.Static{other}, Options{}).Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
}
