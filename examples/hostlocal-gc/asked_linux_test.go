// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// Ctrl-C ends a command that waits for its source. SIGTERM ends the
// agent in the middle of a pass, and SIGHUP does no harm, neither in the first pass nor at the end.
func TestInterrupt(t *testing.T) {
	n := mixedNode(t)
	for _, name := range []string{"plan", "release", "map", "check", "agent"} {
		args := []string{name, "--data-dir", "networks", "--network", "podnet", "--source", "file:pipe"}
		signal, status := os.Signal(os.Interrupt), statusError
		if name == "agent" {
			args, signal, status = append(args, "--listen="), syscall.SIGTERM, statusDone
		}
		pipe := filepath.Join(n.dir, "pipe")
		must(t, syscall.Mkfifo(pipe, 0o600))
		cmd := command(t, n.dir, args...)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		must(t, cmd.Start())
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for the reader
		must(t, err)
		if name == "agent" {
			go func() {
				for cmd.Process.Signal(syscall.SIGHUP) == nil {
					runtime.Gosched()
				}
			}()
		}
		must(t, cmd.Process.Signal(signal))
		got := finish(t, cmd, cmd.Wait)
		if got.status != status || strings.Contains(got.stderr, "Ended") != (name == "agent") || !n.there("podnet/10.244.1.3") {
			t.Errorf("%s: exit status %d, %q, %q", name, got.status, got.stdout, got.stderr)
		}
		_, _ = w.Close(), os.Remove(pipe) // the reader has ended
	}
}

// A user without permission gets a note about root.
func TestNotRoot(t *testing.T) {
	n := mixedNode(t)
	nobody := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		nobody.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, socket, criRuntime{ready: []string{sandbox("running")}})
	for _, path := range []string{filepath.Dir(built), filepath.Dir(n.dir), n.dir, socket} {
		must(t, os.Chmod(path, 0o777))
	}
	for _, row := range []struct{ reason, path, args string }{
		{"the files are root's, and their names may be read", filepath.Join("networks", "podnet", "10.244.1.2"),
			"plan --all --source file:pods.json"},
		{"the same of check", filepath.Join("networks", "podnet", "10.244.1.2"), "check --source file:pods.json --cni-dir /none"},
		{"the network's directory", filepath.Join("networks", "podnet"), "plan --all --source file:pods.json"},
		{"the kernel can't be asked, so check proposes nothing though the runtime answers", "pods.json", "check --cni-dir /none"},
		{"the data dir", "networks", "plan --all --source file:pods.json"},
	} {
		path := filepath.Join(n.dir, row.path)
		must(t, os.Chmod(filepath.Join(n.dir, "pods.json"), 0o644))
		must(t, os.Chmod(path, 0))
		cmd := command(t, "/", append(strings.Fields(strings.ReplaceAll(row.args, "file:", "file:"+n.dir+"/")), "--data-dir", filepath.Join(n.dir, "networks"))...)
		cmd.SysProcAttr = nobody
		cmd.Env = append(cmd.Env, "CONTAINER_RUNTIME_ENDPOINT=unix://"+socket)
		got := finish(t, cmd, cmd.Run)
		if strings.HasPrefix(got.stdout, "OK") || strings.Contains(got.stdout, "hostlocal-gc release") {
			t.Errorf("%s: all is well, or can be mended: %q", row.reason, got.stdout)
		}
		if got.status == statusDone || !strings.Contains(got.stdout+got.stderr, "permission denied") || !strings.Contains(got.stderr, "run it as root (sudo)") {
			t.Errorf("%s: exit status %d\n%s%s", row.reason, got.status, got.stdout, got.stderr)
		}
		must(t, os.Chmod(path, 0o755))
	}
}

// traces returns what a change of a file or directory below dir would modify. A change of a file's content
// modifies its change time.
func traces(t *testing.T, dir string) string {
	t.Helper()
	const format = "%p inode %i mode %M links %n size %s modified %T@ changed %C@\\n"
	out, err := exec.CommandContext(t.Context(), "find", dir, "-printf", format).Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("%s %v", out, err)
	}
	return string(out)
}

// Read-only commands change nothing on the disk, also when they fail. They take no lock: they work
// while the plugin holds it, and create no lock file.
func TestLookingChangesNothing(t *testing.T) {
	n := mixedNode(t)
	n.put("podnet.conf", `{"cniVersion":"1.0.0","name":"podnet","type":"bridge","ipam":{"type":"host-local","subnet":"10.244.1.0/24"}}`)
	// A network without a lock file, an empty one, and a file that is no network.
	n.put("networks/bare/10.9.0.2", sandbox("x")+"\r\neth0")
	must(t, os.Mkdir(filepath.Join(n.dir, "networks", "empty"), 0o755))
	n.put("networks/stray", "")
	data := filepath.Join(n.dir, "networks")
	hold(t, filepath.Join(data, "podnet", "lock"))
	before := traces(t, data)
	for _, args := range []string{
		"plan --all --source file:pods.json", "plan -o json --source file:cut.json",
		"plan --source file:pods.json", "plan --min-age 1s --allow-foreign * --source file:pods.json", "plan --source file:cut.json",
		"map --source file:pods.json --cni-dir .", "map --source file:cut.json",
		"plan --network none --source file:pods.json", "release --network podnet --source file:cut.json",
	} {
		run(t, n.dir, nil, append(strings.Fields(args), "--data-dir", "networks")...)
		if diff := cmp.Diff(before, traces(t, data)); diff != "" {
			t.Fatalf("after %s (-before +after):\n%s", args, diff)
		}
	}
}

func init() { //nolint:gochecknoinits // a scene that other systems do not have
	scenes["locked"] = func(t *testing.T) *node {
		n := fullNode(t)
		hold(t, filepath.Join(n.dir, "networks", "podnet", "lock"))
		return n
	}
}

func hold(t *testing.T, path string) {
	t.Helper()
	cnitest.Write(t, path, "", 0)
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() }) // only read
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
}

// Who holds a lock for long is found in the kernel's table on tmpfs, too, and no lock of another file is taken for it.
func TestLockHolder(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "") //nolint:usetesting // whose directories are on a disk
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		must(t, watchLocks(t.Context(), new(diagnose.Place))) // which waits for nobody
		hold(t, filepath.Join(dir, "long", "lock"))
		hold(t, filepath.Join(dir, "free", "other"))
		time.AfterFunc(time.Second, func() { hold(t, filepath.Join(dir, "late", "lock")) })
		p := diagnose.Place{Dirs: []string{"long", "free", "late"}, Report: gc.Report{DataDir: dir}}
		must(t, watchLocks(t.Context(), &p))
		holds, waited := strings.HasPrefix(p.Locks["long"], fmt.Sprintf("process %d (", os.Getpid())), time.Since(start)
		if !holds || len(p.Locks) != 1 || waited != lockedFor {
			t.Errorf("after %v %q, want that this process holds the lock in long", waited, p.Locks)
		}
		ended, cancel := context.WithCancel(t.Context())
		if cancel(); watchLocks(ended, &p) == nil {
			t.Error("a wait that was cut off is no error")
		}
	})
}
