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

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/refuse"
)

// An agent serves one ADD and one DEL in a process of its own. The last step of ADD is Checkpoint.Add, and that of DEL
// Checkpoint.Remove. A fault is injected into one of its system calls. Reservations and the record are in the same directory.
type agent struct {
	*Checkpoint
	*disk.Store
}

const newIP = "10.0.0.3"

// startAgent starts an agent on a node whose runtime lists these containers. It lists them at once, so the record has no gap.
func startAgent(dir string, listed ...string) (*agent, error) {
	c, err := Open(filepath.Join(dir, "attachments"), noLag)
	if err != nil {
		return nil, err
	}
	s, err := disk.New(network1, dir)
	if err == nil {
		ips := by(map[string]string{"a": "10.0.0.2", "new": newIP})
		err = c.Backfill(context.Background(), answers(runtimeOf(listed...)), ips)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &agent{c, s}, nil
}

// add reserves the address and records it. Like the plugin it ignores errors of the lock.
func (a *agent) add() error {
	_ = a.Lock()
	_, err := a.Reserve("new", "eth0", net.ParseIP(newIP), "0")
	_ = a.Unlock()
	if err != nil {
		return err
	}
	return a.Add(entry("new", newIP))
}

func (a *agent) del() error {
	_ = a.Lock()
	err := a.ReleaseByID("new", "eth0")
	_ = a.Unlock()
	if err != nil {
		return err
	}
	return a.Remove(key("new"))
}

// tryTwice retries a step that failed once, as a runtime does, after undoing it.
func tryTwice(t *testing.T, what string, do func() error, undo func()) {
	t.Helper()
	err := do()
	if err != nil {
		fmt.Println("failed once:", what, err)
		undo()
		err = do()
	}
	must(t, err)
	fmt.Println("done:", what)
}

func agentProcess(t *testing.T, dir string) {
	runtime.LockOSThread() // strace counts calls per thread
	var a *agent
	tryTwice(t, "start", func() (err error) { a, err = startAgent(dir, "a"); return err }, func() {})
	defer func() { fmt.Println("closed:", a.Close()) }()
	tryTwice(t, "ADD", a.add, func() {
		dirty := a.dirty
		same(t, "in memory after a failed ADD", []string{"10.0.0.2"}, recorded(a.Checkpoint))
		blockWrites(t, a.path)
		check(t, (a.del() != nil) == dirty, "DEL without a file: want an error if the file is unknown, %t", dirty)
		must(t, os.RemoveAll(a.path+".tmp"), a.del())
		same(t, "on the disk after its DEL", a.Entries(), onDisk(t, a.path).Entries)
		check(t, !a.dirty, "the next DEL would write again")
	})
	_, ok := a.Get(key("new"))
	check(t, ok, "there is no record for DEL")
	tryTwice(t, "DEL", a.del, func() {})
}

// program returns this program, for runs under strace.
func program(t *testing.T) (exe string) {
	t.Helper()
	if err := exec.Command("strace", "-f", "-e", "inject=unlinkat:error=EIO:when=1", "true").Run(); err != nil {
		skipLoudly(t, "strace", err)
	}
	exe, err := os.Executable()
	must(t, err)
	// With the race detector a start takes too long for hundreds of runs.
	if info, ok := debug.ReadBuildInfo(); !ok || slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		exe = filepath.Join(t.TempDir(), "checkpoint.test")
		must(t, exec.Command("go", "test", "-c", "-o", exe, ".").Run())
	}
	return exe
}

// strace runs the test's agent with a fault, in a directory with a record of one attachment. It returns the agent's output and the
// trace.
func strace(t *testing.T, exe, expression string) (n *node, out, trace string, err error) {
	t.Helper()
	n = newNode(t, "a")
	dir := n.Store.DataDir()
	path, network := filepath.Join(dir, "attachments"), filepath.Join(dir, network1)
	// Without ForkLock a process that another test forks would keep the record's lock
	// until it executes strace.
	syscall.ForkLock.RLock()
	err = begun(t, path, noLag, entry("a", "10.0.0.2")).Close()
	syscall.ForkLock.RUnlock()
	must(t, err)
	traceFile := filepath.Join(t.TempDir(), "trace")
	args := []string{"-f", "-y", "-o", traceFile, "-e", expression}
	reserved := []string{network, network + "/" + newIP, network + "/last_reserved_ip.0", network + "/lock"}
	for _, p := range append(reserved, dir, path, path+".tmp", path+".lock") {
		args = append(args, "-P", p)
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command("strace", append(args, exe, "-test.run=^"+test+"$", "-test.v")...)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	output, err := cmd.CombinedOutput()
	return n, string(output), string(read(t, traceFile)), err
}

// eachFault runs the agent of this test with a fault in each of its system calls, of those that change something or come between
// two changes, until there is none left.
func eachFault(t *testing.T, faults []string, after func(t *testing.T, n *node, out string, err error)) {
	if dir := os.Getenv(childEnv); dir != "" {
		agentProcess(t, dir)
		return
	}
	calls := []string{"openat", "flock", "write", "fsync", "/^rename", "/^unlink"}
	if testing.Short() {
		calls = calls[1:5:5] // .ci/run tries all
	}
	exe := program(t)
	for _, call := range calls {
		for _, fault := range faults {
			t.Run(call+"/"+fault, func(t *testing.T) {
				t.Parallel()
				when := 1
				for ; !t.Failed(); when++ {
					n, out, trace, err := strace(t, exe, fmt.Sprintf("inject=%s:%s:when=%d", call, fault, when))
					if !strings.Contains(trace, "(INJECTED)") && !strings.Contains(trace, "killed by SIGKILL") {
						break
					}
					after(t, n, out, err)
				}
				check(t, when >= 3, "fewer than two calls were tried")
			})
		}
	}
}

// TestHazard24KilledAtEveryCall kills the agent at every system call that it makes in its directory. After AtStartup of the next
// start, the reservations are those of the recorded attachments, and include those of all live containers. Then the request that
// did not end is repeated, as the runtime does.
//
// Guard: [replace] replaces the file atomically.
func TestHazard24KilledAtEveryCall(t *testing.T) {
	eachFault(t, []string{"signal=KILL"}, func(t *testing.T, n *node, out string, _ error) {
		added, deleted := strings.Contains(out, "done: ADD"), strings.Contains(out, "done: DEL")
		listed := []string{"a"}
		if added && !deleted {
			listed = append(listed, "new")
		}
		a, err := startAgent(n.Store.DataDir(), listed...)
		if err != nil {
			t.Fatalf("starting again: %v; its output was\n%s", err, out)
		}
		defer a.Close()
		isRecorded, isReserved := slices.Contains(recorded(a.Checkpoint), newIP), slices.Contains(n.left(), newIP)
		check(t, !added || isRecorded || !isReserved, "the ADD is not recorded; its output was\n%s", out)
		check(t, !deleted || !isRecorded, "the DEL is not recorded; its output was\n%s", out)
		leaked := func(ip string) bool { return !slices.Contains(recorded(a.Checkpoint), ip) }
		n.keeps("after AtStartup", a, slices.DeleteFunc(n.left(), leaked)...)
		if added && !deleted {
			tryTwice(t, "DEL again", a.del, func() {})
		}
		same(t, "recorded, and reserved, after AtStartup and the runtime's DEL", recorded(a.Checkpoint), n.left())
		tryTwice(t, "the next ADD", a.add, func() {})
		same(t, "recorded in the end", []string{"10.0.0.2", newIP}, recorded(a.Checkpoint))
		same(t, "reserved in the end", []string{"10.0.0.2", newIP}, n.left())
		if same(t, "left behind", []string(nil), leftovers(t, a.path)); t.Failed() {
			t.Log(out)
		}
	})
}

// TestHazard25EveryCallFailsOnce: after any step fails, the runtime's next try succeeds without a restart. If a commit fails after
// the rename, the file may have an entry whose Add returned an error. Then the next change writes the file, even if it changes
// nothing.
//
// Guard: [Checkpoint.change] stores a state after its commit, and with [Checkpoint.dirty] the next change writes the file again.
func TestHazard25EveryCallFailsOnce(t *testing.T) {
	eachFault(t, []string{"error=EIO", "error=ENOSPC"}, func(t *testing.T, n *node, out string, err error) {
		if err != nil || !strings.Contains(out, "done: DEL") {
			t.Fatalf("%v\n%s", err, out)
		}
		told := strings.Contains(out, "failed once") || !strings.Contains(out, "closed: <nil>")
		check(t, told || !strings.Contains(t.Name(), "/fsync/"), "an fsync failed, and no call\n%s", out)
		a, err := startAgent(n.Store.DataDir(), "a")
		must(t, err)
		defer a.Close()
		n.keeps("after AtStartup", a, "10.0.0.2") // the plugin ignores an unlink that fails
		if same(t, "recorded", []string{"10.0.0.2"}, recorded(a.Checkpoint)); t.Failed() {
			t.Log(out)
		}
	})
}

// The power fails during an Add, after any of its system calls. Of what was not synced, the disk has all, nothing, a part, or
// zeros, in any order. Each file that it may have then is replayed: the record has the state before the Add, or after it, and
// after it once the Add has returned.
//
// Guard: [replace] syncs the file before it renames it, and the directory before it returns.
func TestHazard24PowerLoss(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		c, err := Open(filepath.Join(dir, "attachments"), served)
		must(t, err, c.Add(entry("new", newIP)))
		return // killed, without Close
	}
	n, out, trace, err := strace(t, program(t), "trace=write,fsync,/^rename")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := n.Store.DataDir()
	path := filepath.Join(dir, "attachments")
	after := string(read(t, path))
	before := string(written(t, noLag, entry("a", "10.0.0.2")))
	data, files := []string{""}, []string{before} // what the disk may have in the new file, and at the path
	steps := 0
	for line := range strings.Lines(trace) {
		temp := strings.Contains(line, "<"+path+".tmp>") || strings.Contains(line, `"`+path+`.tmp"`)
		switch {
		case strings.Contains(line, "write(") && temp:
			half, zeros := after[:len(after)/2], strings.Repeat("\x00", len(after)/2)
			data = []string{"", half, half + zeros, zeros + zeros, after}
		case strings.Contains(line, "fsync(") && temp:
			data = []string{after}
		case strings.Contains(line, "rename") && temp:
			files = append([]string{before}, data...)
		case strings.Contains(line, "fsync(") && strings.Contains(line, "<"+dir+">"):
			files = files[1:]
		default:
			continue
		}
		steps++
		for i, content := range files {
			disk := newPath(t)
			write(t, disk, content)
			write(t, disk+".tmp", data[0]) // the old file may be there beside it
			c, err := Open(disk, served)
			must(t, err)
			got := recorded(c)
			whole := slices.Contains(got, "10.0.0.2") && (content == after) == (len(got) == 2)
			check(t, whole, "file %d of %d after %s: recorded are %v", i, len(files), line, got)
			must(t, c.Close())
		}
	}
	same(t, "what the disk may have after the Add", []string{after}, files)
	check(t, steps == 4, "there were %d steps in\n%s", steps, trace)
}

// The lock file is removed while the record is open. A second writer, of this process or of another one, opens the record; then no
// change of the first one succeeds, and none of the second one is lost. While nobody else has opened it, the first one is told,
// too.
//
// Guard: [lockDirectory] compares the lock file with the one at its path.
func TestHazard96LockFileIsRemoved(t *testing.T) {
	path := newPath(t)
	first, err := Open(path, served)
	must(t, err, first.Backfill(t.Context(), noPods, nil), first.Add(entry("a", "10.0.0.2")), os.Remove(path+".lock"))
	refused := func(err error) {
		t.Helper()
		check(t, errors.Is(err, ErrLocked) && strings.Contains(err.Error(), path+".lock was removed"), "%v, want %v", err, ErrLocked)
	}
	refused(first.Add(entry("lost", "10.0.0.9")))
	second := opened(t, path, served)
	must(t, second.Add(entry("b", "10.0.0.3")))
	refused(first.Add(entry("lost", "10.0.0.9")))
	refused(first.Remove(key("a")))
	refused(first.Close())
	_, err = Open(path, served)
	check(t, errors.Is(err, ErrLocked), "a third writer: %v, want %v", err, ErrLocked)
	must(t, second.Close())
	same(t, "recorded", []string{"10.0.0.2", "10.0.0.3"}, recorded(opened(t, path, served)))
}

// If the kernel refuses a lock, nothing is written.
func TestLockIsRefused(t *testing.T) {
	path := newPath(t)
	c := begun(t, path, served, entry("a", "10.0.0.2"))
	before := string(read(t, path))
	refuse.Call(t, syscall.SYS_FLOCK, func() {
		_, err := Open(path, served)
		check(t, errors.Is(err, syscall.EIO), "Open: %v", err)
		check(t, errors.Is(c.Add(entry("c", "10.0.0.4")), syscall.EIO), "Add: no error")
	})
	same(t, "the file", before, string(read(t, path)))
	same(t, "recorded", []string{"10.0.0.2"}, recorded(c))
}

// TestDiskFull: on a full disk Add and Remove return errors, and the state does not change, in memory and on the disk. After that
// both work again.
func TestDiskFull(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	path := filepath.Join(dir, "attachments")
	c := begun(t, path, served, entry("a", "10.0.0.2"), entry("c", "10.0.0.4"))
	filler, err := os.Create(filepath.Join(dir, "filler"))
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	check(t, errors.Is(err, syscall.ENOSPC), "the disk is not full: %v", err)
	before := string(read(t, path))
	for what, err := range map[string]error{
		"add": c.Add(entry("b", "10.0.0.3")), "add again": c.Add(entry("a", "10.0.0.3")), "remove": c.Remove(key("c")),
	} {
		check(t, errors.Is(err, syscall.ENOSPC), "%s: %v, want %v", what, err, syscall.ENOSPC)
	}
	must(t, c.Remove(key("b"))) // changes nothing
	same(t, "the file", before, string(read(t, path)))
	same(t, "in memory", []string{"10.0.0.2", "10.0.0.4"}, recorded(c))
	same(t, "left behind", []string(nil), leftovers(t, path))
	must(t, filler.Close(), os.Remove(filler.Name()), c.Remove(key("a")), c.Add(entry("b", "10.0.0.3")), c.Close())
	same(t, "on the disk", []string{"10.0.0.3", "10.0.0.4"}, recorded(opened(t, path, served)))
}
