// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An agent serves one ADD and one DEL in a process of its own: ADD reserves and
// records last, DEL releases and forgets last. A fault hits one system call of
// it. Reservations and the record lie in the same directory.
type agent struct {
	dir string
	*Checkpoint
	*disk.Store
}

const newIP = "10.0.0.3"

// startAgent is an agent's start on a node whose runtime lists these containers. The
// runtime lists them at once, so nothing is left that the record does not speak of.
func startAgent(dir string, listed ...string) (*agent, error) {
	c, err := Open(filepath.Join(dir, "attachments"), atOnce)
	if err != nil {
		return nil, err
	}
	s, err := disk.New(network1, dir)
	if err == nil {
		sandboxes := podsource.Static{{ContainerIDs: listed}}
		err = c.Backfill(context.Background(), sandboxes, func(podsource.Pod) ([]Entry, error) { return reservedBy(dir, listed) })
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &agent{dir, c, s}, nil
}

// reservedBy returns the attachments of containers that have reservations.
func reservedBy(dir string, containers []string) (of []Entry, err error) {
	rs, err := hostlocal.New(dir).List(context.Background())
	for _, r := range rs {
		if slices.Contains(containers, r.ContainerID) {
			of = append(of, entry(r.ContainerID, r.IP.String()))
		}
	}
	return of, err
}

// locked does as the plugin does, which ignores the lock's errors.
func (a *agent) locked(do func() error) error {
	_ = a.Lock()
	defer func() { _ = a.Unlock() }()
	return do()
}

func (a *agent) add() error {
	// A retry finds what the try before it reserved.
	path := filepath.Join(a.dir, network1, newIP)
	if _, err := os.Stat(path); err != nil {
		err := a.locked(func() error {
			_, err := a.Reserve("new", "eth0", net.ParseIP(newIP), "0")
			return err
		})
		if err != nil {
			return err
		}
	}
	return a.Add(entry("new", newIP))
}

func (a *agent) del() error {
	if _, ok := a.Get(key("new")); !ok {
		fmt.Println("no record")
	}
	if err := a.locked(func() error { return a.ReleaseByID("new", "eth0") }); err != nil {
		return err
	}
	return a.Remove(key("new"))
}

// attempt tries once more what failed once, as a runtime does.
func attempt(t *testing.T, what string, do func() error) {
	err := do()
	if err != nil {
		fmt.Println("failed once:", what, err)
		err = do()
	}
	if err != nil {
		t.Fatalf("%s failed twice: %v", what, err)
	}
	fmt.Println("done:", what)
}

func agentProcess(t *testing.T, dir string) {
	runtime.LockOSThread() // strace counts occurrences by thread
	a, err := startAgent(dir, "a")
	if err != nil { // then it could not even start
		fmt.Println("failed once: start", err)
		if a, err = startAgent(dir, "a"); err != nil {
			t.Fatal(err)
		}
	}
	defer a.Close()
	attempt(t, "ADD", a.add)
	attempt(t, "DEL", a.del)
}

// A rig runs agents under strace.
type rig struct{ strace, exe string }

func newRig(t *testing.T) *rig {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err == nil {
		err = exec.Command(strace, "-f", "-e", "inject=unlinkat:error=EIO:when=1", "true").Run()
	}
	if err != nil {
		skipLoudly(t, "strace", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// With the race detector in it a start takes too long to be done hundreds of
	// times.
	if info, ok := debug.ReadBuildInfo(); !ok || slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		exe = filepath.Join(t.TempDir(), "checkpoint.test")
		if out, err := exec.Command("go", "test", "-c", "-o", exe, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return &rig{strace, exe}
}

// run has the agent of the test meet a fault, in a directory in which one
// attachment is recorded, and returns what it said and the trace.
func (r *rig) run(t *testing.T, expression string) (n *node, out, trace string, err error) {
	t.Helper()
	dir := t.TempDir()
	n = newNode(t, dir)
	n.reserve("10.0.0.2", "a")
	path := filepath.Join(dir, "attachments")
	// A process that another test is just starting would hold the record's lock
	// until it has become strace.
	syscall.ForkLock.RLock()
	err = begun(t, path, atOnce, entry("a", "10.0.0.2")).Close()
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	traceFile := filepath.Join(t.TempDir(), "trace")
	args := []string{"-f", "-y", "-o", traceFile, "-e", expression, "-P", dir, "-P", path, "-P", path + ".tmp", "-P", path + ".lock",
		"-P", n.dir, "-P", filepath.Join(n.dir, newIP), "-P", filepath.Join(n.dir, "last_reserved_ip.0"), "-P", filepath.Join(n.dir, "lock")}
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command(r.strace, append(args, r.exe, "-test.run=^"+test+"$", "-test.v")...)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	said, err := cmd.CombinedOutput()
	content, traceErr := os.ReadFile(traceFile)
	if traceErr != nil {
		t.Fatal(traceErr)
	}
	return n, string(said), string(content), err
}

// calls are those that change something, or come between two changes.
var calls = []string{"openat", "flock", "write", "fsync", "/^rename", "/^unlink", "close"}

// TestHazard24KilledAtEveryCall kills the agent at every system call that it
// makes in its directory. The next start's hook leaves as many reservations as
// recorded attachments, and never fewer than the live ones.
//
// Guard: [replace] gives the file all of its new content or none.
func TestHazard24KilledAtEveryCall(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		agentProcess(t, dir)
		return
	}
	r := newRig(t)
	for _, call := range calls {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			when := 1
			for ; !t.Failed(); when++ {
				n, out, trace, err := r.run(t, fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, when))
				if strings.Contains(trace, "killed by SIGKILL") {
					afterDeath(t, n, out)
					continue
				}
				if err != nil || !strings.Contains(out, "done: DEL") {
					t.Fatalf("%v\n%s", err, out)
				}
				break
			}
			if when < 3 {
				t.Error("next to nothing was tried")
			}
			t.Logf("killed at %d calls", when-1)
		})
	}
}

// afterDeath starts the agent anew, with its hook, and has the runtime repeat
// what did not end.
func afterDeath(t *testing.T, n *node, out string) {
	t.Helper()
	added, deleted := strings.Contains(out, "done: ADD"), strings.Contains(out, "done: DEL")
	listed := []string{"a"}
	if added && !deleted {
		listed = append(listed, "new")
	}
	a, err := startAgent(filepath.Dir(n.dir), listed...)
	if err != nil {
		t.Fatalf("starting again: %v; it said\n%s", err, out)
	}
	defer a.Close()
	if left := leftovers(t, a.path); left != nil {
		t.Errorf("the crash left %v", left)
	}
	isRecorded := slices.Contains(recorded(a.Checkpoint), newIP)
	if added && !isRecorded && slices.Contains(n.left(), newIP) || deleted && isRecorded {
		t.Errorf("recorded: %t; it said\n%s", isRecorded, out)
	}
	if err := n.hook(a.Checkpoint); err != nil {
		t.Error(err)
	}
	check := func(when string) {
		t.Helper()
		if diff := cmp.Diff(recorded(a.Checkpoint), reservations(n)); diff != "" {
			t.Errorf("%s (-recorded +reserved):\n%s\nit said\n%s", when, diff, out)
		}
	}
	if !added {
		check("after the hook, killed in ADD")
	} else if !deleted {
		if slices.Contains(reservations(n), newIP) && !isRecorded {
			t.Errorf("killed in DEL: reserved, and forgotten already")
		}
		attempt(t, "DEL again", a.del)
	}
	check("after the hook and the runtime's DEL")
	attempt(t, "the next ADD", a.add)
	check("after the next ADD")
	if diff := cmp.Diff([]string{"10.0.0.2", newIP}, recorded(a.Checkpoint)); diff != "" {
		t.Errorf("in the end (-want +got):\n%s", diff)
	}
}

func reservations(n *node) []string {
	return slices.DeleteFunc(n.left(), func(name string) bool { return strings.HasPrefix(name, "last_reserved_ip") })
}

// TestHazard25EveryCallFailsOnce: whichever step fails, what the steps before it
// need is still there when the runtime tries again, without a restart.
//
// Guard: [Checkpoint.change] takes over a state when it is on the disk, and
// [Checkpoint.dirty] has a file written anew of which that is not known.
func TestHazard25EveryCallFailsOnce(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		agentProcess(t, dir)
		return
	}
	r := newRig(t)
	for _, call := range calls {
		for _, fault := range []string{"EIO", "ENOSPC", "EINTR"} {
			if fault == "EINTR" && call != "openat" && call != "flock" && call != "fsync" {
				continue
			}
			t.Run(call+"/"+fault, func(t *testing.T) {
				t.Parallel()
				when, failed := 1, 0
				for ; !t.Failed(); when++ {
					n, out, trace, err := r.run(t, fmt.Sprintf("inject=%s:error=%s:when=%d", call, fault, when))
					if err != nil || !strings.Contains(out, "done: DEL") {
						t.Fatalf("%s at %d: %v\n%s", fault, when, err, out)
					}
					if !strings.Contains(trace, "(INJECTED)") {
						break
					}
					failed += strings.Count(out, "failed once")
					if strings.Contains(out, "no record") && !strings.Contains(out, "failed once: DEL") {
						t.Errorf("%s at %d: DEL found no record\n%s", fault, when, out)
					}
					a, err := startAgent(filepath.Dir(n.dir), "a")
					if err != nil {
						t.Fatal(err)
					}
					// The plugin keeps quiet about an unlink that failed.
					if err := n.hook(a.Checkpoint); err != nil {
						t.Error(err)
					}
					want := []string{"10.0.0.2"}
					if diff := cmp.Diff(want, recorded(a.Checkpoint)) + cmp.Diff(want, reservations(n)); diff != "" {
						t.Errorf("%s at %d (-want +got):\n%s\n%s", fault, when, diff, out)
					}
					if err := a.Close(); err != nil {
						t.Error(err)
					}
				}
				if call == "flock" && fault == "EINTR" && failed > 0 {
					t.Errorf("%d steps failed where a lock is taken once more", failed)
				}
				t.Logf("%d calls failed, and %d steps for it", when-1, failed)
			})
		}
	}
}

// TestRemoveAfterFailedAdd: when a commit fails late, the file may hold what its
// caller was told is not recorded. Then the next change writes the file, also
// one that changes nothing.
func TestRemoveAfterFailedAdd(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		runtime.LockOSThread()
		c, err := Open(filepath.Join(dir, "attachments"), served)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Println("add:", c.Add(entry("new", newIP)))
		fmt.Println("in memory:", recorded(c))
		if r, _, err := load(c.path, c.bootID); err != nil || len(r.Entries) != 2 {
			t.Errorf("the fault came too early: %v, %v", r, err)
		}
		inTheWay(t, c.path)
		if err := c.Remove(key("new")); err == nil {
			t.Error("the file can't be written anew, and that is no error")
		}
		if err := os.RemoveAll(c.path + ".tmp"); err != nil {
			t.Fatal(err)
		}
		var files [2]os.FileInfo
		for i := range files { // the second one has nothing to do any more
			if err := c.Remove(key("new")); err != nil {
				t.Error(err)
			}
			if files[i], err = os.Stat(c.path); err != nil {
				t.Fatal(err)
			}
			if r, _, err := load(c.path, c.bootID); err != nil || len(r.Entries) != 1 {
				t.Errorf("the file has %v, %v still", r, err)
			}
		}
		if !os.SameFile(files[0], files[1]) {
			t.Error("the file was written once more")
		}
		return
	}
	n, out, trace, err := newRig(t).run(t, "inject=fsync:error=EIO:when=2") // the directory's
	if err != nil || !strings.Contains(out, "add: recording") || !strings.Contains(out, "in memory: [10.0.0.2]") {
		t.Fatalf("%v\n%s\n%s", err, out, trace)
	}
	c := opened(t, filepath.Join(filepath.Dir(n.dir), "attachments"), served)
	if diff := cmp.Diff([]string{"10.0.0.2"}, recorded(c)); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, out)
	}
}

// TestDurable: what a commit writes is on the disk before it gets its name, and
// its name is before the caller is told.
func TestDurable(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		c, err := Open(filepath.Join(dir, "attachments"), served)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := errors.Join(c.Add(entry("new", newIP)), os.Chmod(filepath.Join(dir, network1), 0o700)); err != nil {
			t.Fatal(err)
		}
		return
	}
	n, out, trace, err := newRig(t).run(t, "trace=write,fsync,/^rename,/chmod")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := filepath.Dir(n.dir)
	var got []string
	for line := range strings.Lines(trace) {
		for _, step := range []struct{ call, on, name string }{
			{"write(", "<" + dir + "/attachments.tmp>", "write"}, {"fsync(", "<" + dir + "/attachments.tmp>", "fsync file"},
			{"rename", dir + "/attachments.tmp", "rename"}, {"fsync(", "<" + dir + ">", "fsync directory"}, {"chmod", n.dir, "told"},
		} {
			if strings.Contains(line, step.call) && strings.Contains(line, step.on) {
				got = append(got, step.name)
			}
		}
	}
	// What follows is of Close.
	if diff := cmp.Diff([]string{"write", "fsync file", "rename", "fsync directory", "told"}, got[:min(5, len(got))]); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, trace)
	}
}
