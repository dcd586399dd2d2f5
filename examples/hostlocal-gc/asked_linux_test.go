// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// At a terminal the command shows the file and asks. It removes nothing after any answer but yes,
// or if the file changed meanwhile.
func TestRemoveMalformedAsks(t *testing.T) {
	for _, row := range []struct {
		reason, said string
		meanwhile    func(nw *podNetwork)
		removed      bool
		status       int
		says         string
	}{
		{"yes", "yes\n", nil, true, statusDone, "Removed "},
		{"y is what one types without reading", "y\n", nil, false, statusError, "nothing was removed"},
		{"nothing", "\n", nil, false, statusError, "nothing was removed"},
		{"the end", "\x04", nil, false, statusError, "nothing was removed"},
		{"Ctrl-C", "\x03", nil, false, statusInterrupted, "nothing was removed"},
		{"it is an ADD's now", "yes\n", func(nw *podNetwork) { nw.write("10.1.0.3", sandbox("new")+"\r\neth0", 0) }, false, statusError, "10.1.0.3 is young and is not removed"},
		{"it is another malformed one", "yes\n", func(nw *podNetwork) { nw.write("10.1.0.3", garbage, time.Hour) }, false, statusError, "changed after it was shown"},
		{"a pod has the address now", "yes\n", func(nw *podNetwork) {
			nw.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}}, pod{Name: "db", IPs: []string{"10.1.0.3"}})
		}, false, statusError, "10.1.0.3 is in-use and is not removed"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n, nw := malformedNode(t)
			s := terminal(t, 80)
			cmd := command(t, n.dir, "remove-malformed", "10.1.0.3", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = s.end, s.end, s.end
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			s.until(`Only "yes" does:`)
			if row.meanwhile != nil {
				row.meanwhile(nw)
			}
			if _, err := s.master.WriteString(row.said); err != nil {
				t.Fatal(err)
			}
			got := finish(t, cmd.Wait(), &strings.Builder{}, &strings.Builder{})
			text := s.written(t)
			if got.status != row.status || !strings.Contains(text, row.says) || nw.there("10.1.0.3") == row.removed {
				t.Errorf("exit status %d, want %d; removed is not %v, or %q is not in:\n%s", got.status, row.status, row.removed, row.says, text)
			}
		})
	}
}

// Ctrl-C ends a command that waits for its source, with the status that shells expect.
func TestInterrupt(t *testing.T) {
	n, nw := spoiled(t)
	for _, name := range []string{"list", "plan", "release", "show", "map", "check"} {
		args := []string{name, "--data-dir", "networks", "--network", "podnet", "--source", "file:pipe"}
		if name == "show" {
			args = append(args, "10.244.1.2")
		}
		pipe := filepath.Join(n.dir, "pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := command(t, n.dir, args...)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for the reader
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if got := finish(t, cmd.Wait(), &stdout, &stderr); got.status != statusInterrupted || !nw.there("10.244.1.2") {
			t.Errorf("%s: exit status %d, %q, %q", name, got.status, got.stdout, got.stderr)
		}
		_, _ = w.Close(), os.Remove(pipe) // the reader has ended
	}
}

// A user without permission gets a note about root.
func TestNotRoot(t *testing.T) {
	n, _ := spoiled(t)
	nobody := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		nobody.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	socket := serve(t, criRuntime{ready: []string{sandbox("running")}})
	for _, path := range []string{filepath.Dir(built), filepath.Dir(n.dir), n.dir, socket} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct{ reason, path, args string }{
		{"the files are root's, and their names may be read", filepath.Join("networks", "podnet", "10.244.1.2"), "list"},
		{"the same of a pass", filepath.Join("networks", "podnet", "10.244.1.2"), "plan --source file:pods.json"},
		{"the same of check", filepath.Join("networks", "podnet", "10.244.1.2"), "check --source file:pods.json --cni-dir /none"},
		{"the network's directory", filepath.Join("networks", "podnet"), "list"},
		{"the same of check", filepath.Join("networks", "podnet"), "check --source file:pods.json --cni-dir /none"},
		{"the kernel can't be asked, so check proposes nothing though the runtime answers", "pods.json", "check --cni-dir /none"},
		{"the data dir", "networks", "list"},
		{"what is above it", ".", "list"},
	} {
		path := filepath.Join(n.dir, row.path)
		if err := os.Chmod(filepath.Join(n.dir, "pods.json"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		cmd := command(t, "/", append(strings.Fields(strings.ReplaceAll(row.args, "file:", "file:"+n.dir+"/")), "--data-dir", filepath.Join(n.dir, "networks"))...)
		cmd.SysProcAttr = nobody
		cmd.Env = append(cmd.Env, "CONTAINER_RUNTIME_ENDPOINT=unix://"+socket)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		got := finish(t, cmd.Run(), &stdout, &stderr)
		if strings.HasPrefix(got.stdout, "OK") || strings.Contains(got.stdout, "hostlocal-gc release") {
			t.Errorf("%s: all is well, or can be mended: %q", row.reason, got.stdout)
		}
		if got.status == statusDone || !strings.Contains(got.stdout+got.stderr, "permission denied") || !strings.Contains(got.stderr, "run it as root (sudo)") {
			t.Errorf("%s: exit status %d\n%s%s", row.reason, got.status, got.stdout, got.stderr)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// A source that never answers does not hang the command, and has then said nothing.
func TestSourceThatNeverAnswers(t *testing.T) {
	n, _ := spoiled(t)
	if err := syscall.Mkfifo(filepath.Join(n.dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	shown := run(t, n.dir, nil, "show", "10.244.1.2", "--data-dir", "networks", "--source", "file:pipe", "--timeout", "100ms")
	if shown.status != statusError || strings.Contains(shown.stdout, "neither") {
		t.Errorf("exit status %d: %s%s", shown.status, shown.stdout, shown.stderr)
	}
}
