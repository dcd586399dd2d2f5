// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const faultEnv = "HOSTLOCAL_GC_TEST_FAULT_DIR"

// TestHazard30Faults injects errors, and kills the process, at every occurrence of every
// system call that a small pass makes in its directory. In each case the report is true,
// live addresses stay, the lock is free afterwards, and the next pass releases the rest.
func TestHazard30Faults(t *testing.T) {
	if dir := os.Getenv(faultEnv); dir != "" {
		faultyPass(t, dir)
		return
	}
	strace, err := exec.LookPath("strace")
	if err == nil {
		err = exec.Command(strace, "-f", "-e", "inject=unlinkat:error=EIO:when=1", "true").Run()
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("strace does not run here, and CI needs it: %v", err)
		}
		t.Skipf("SKIPPED, NOT TESTED: errors and kills at every system call; strace does not run here: %v", err)
	}
	// This binary may have the race detector, with which hundreds of starts take too long.
	exe := filepath.Join(t.TempDir(), "gc.test")
	if out, err := exec.Command("go", "test", "-c", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	faults := []string{"error=EIO", "error=EACCES", "error=EROFS", "error=ENOSPC", "error=EMFILE", "signal=KILL"}
	calls := []string{"openat", "getdents64", "fstat", "newfstatat", "read", "flock", "unlinkat", "close"}
	if testing.Short() { // .ci/run tries all
		faults, calls = []string{"error=EIO", "signal=KILL"}, []string{"openat", "unlinkat"}
	}
	for _, call := range calls {
		for _, fault := range faults {
			t.Run(call+"/"+fault, func(t *testing.T) {
				t.Parallel()
				n := 1
				for ; inject(t, strace, exe, call, fault, n); n++ {
				}
				if n < 2 {
					t.Errorf("a pass makes no call of %s, so no fault was injected", call)
				}
				t.Logf("%d occurrences", n-1)
			})
		}
	}
}

// faultFiles are the reservations of the small pass and their owners. The pod "live" has
// 10.0.0.4.
var faultFiles = map[string]string{
	"10.0.0.2": "leaked", "10.0.0.3": "leaked2", "10.0.0.4": "live", "10.0.0.5": "", "fd00::4": "live",
}

// inject runs a pass with one fault, and reports whether the fault was injected.
func inject(t *testing.T, strace, exe, call, fault string, when int) bool {
	n := newNode(t)
	args := []string{"-f", "-o", filepath.Join(t.TempDir(), "trace"), "-P", n.path(""), "-P", n.path("lock")}
	for ip, owner := range faultFiles {
		if owner != "" {
			owner += "\r\neth0"
		}
		n.file(ip, owner, old)
		args = append(args, "-P", n.path(ip))
	}
	args = append(args, "-e", fmt.Sprintf("inject=%s:%s:when=%d", call, fault, when), exe, "-test.run=^TestHazard30Faults$", "-test.v")
	cmd := exec.Command(strace, args...)
	cmd.Env = append(os.Environ(), faultEnv+"="+n.dataDir)
	out, err := cmd.CombinedOutput()
	trace, traceErr := os.ReadFile(args[2])
	if traceErr != nil {
		t.Fatal(traceErr)
	}
	killed := strings.Contains(string(trace), "killed by SIGKILL")
	injected := killed || strings.Contains(string(trace), "(INJECTED)")
	where := fmt.Sprintf("%s %s at %d", call, fault, when)
	if !killed {
		if err != nil {
			t.Fatalf("%s: %v\n%s", where, err, out)
		}
		n.checkFaultReport(t, where, string(out), call == "unlinkat" && injected)
	}
	n.pass(podsource.Static{faultPod}, Options{}) // it needs the lock
	for ip, owner := range faultFiles {
		if n.exists(ip) != (owner == "live") {
			t.Errorf("%s: after the next pass %s, which is of %q, is there: %t", where, ip, owner, n.exists(ip))
		}
	}
	return injected && !t.Failed()
}

// checkFaultReport compares the report of a pass that was not killed with the disk.
func (n *node) checkFaultReport(t *testing.T, where, out string, oneFailed bool) {
	_, line, _ := strings.Cut(out, "REPORT ")
	line, _, _ = strings.Cut(line, "\n")
	var got struct {
		Err    string
		Errs   int
		Report struct {
			Reservations []struct{ IP, Verdict string }
		}
	}
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%s: %v\n%s", where, err, out)
	}
	counts := make(map[string]int)
	for _, r := range got.Report.Reservations {
		counts[r.Verdict]++
		if gone := !n.exists(r.IP); gone != (r.Verdict == "released") {
			t.Errorf("%s: %s is reported %s; gone: %t", where, r.IP, r.Verdict, gone)
		}
	}
	if got.Errs > 0 && got.Err == "" {
		t.Errorf("%s: %d reservations have errors, the pass has none", where, got.Errs)
	}
	if files, err := os.ReadDir(n.path("")); err != nil || len(got.Report.Reservations) != len(faultFiles) && len(files) < len(faultFiles) {
		t.Errorf("%s: something is gone, and the report has only %d entries (%v)", where, len(got.Report.Reservations), err)
	}
	if oneFailed && (counts["failed"] != 1 || counts["released"] != 2) {
		t.Errorf("%s: one release failed, and the verdicts are %v, want the others to be released", where, counts)
	}
	if got.Err == "" && counts["released"] != 3 {
		t.Errorf("%s: no error, and the verdicts are %v", where, counts)
	}
}

var faultPod = podsource.Pod{NamespacedName: named("live"), IPs: ips("10.0.0.4")}

// oneThread makes calls in one thread alone: strace counts occurrences for each thread.
func oneThread() func(call func()) {
	calls, done := make(chan func()), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
			done <- struct{}{}
		}
	}()
	return func(call func()) { calls <- call; <-done }
}

// faultyPass runs in the process that gets the fault.
func faultyPass(t *testing.T, dir string) {
	r, err := New(hostlocal.New(dir), []string{network1}, podsource.Static{faultPod}, Options{AllowForeign: []string{"*"}})
	must(t, err)
	in := oneThread()
	r.disk = wrappedDisk{r.disk, in, in}
	report, err := r.Reconcile(t.Context())
	errs := 0
	for _, e := range report.Reservations {
		if e.Reservation.Err != nil {
			errs++
		}
	}
	line, err := json.Marshal(struct {
		Err    string
		Errs   int
		Report Report
	}{fmt.Sprint(err), errs, report})
	must(t, err)
	fmt.Printf("REPORT %s\n", line)
	if isLocked(filepath.Join(dir, network1, "lock")) {
		t.Error("the process still holds the lock after its pass")
	}
}
