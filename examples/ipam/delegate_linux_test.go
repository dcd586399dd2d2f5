// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A delegate that prints its input, with odd bytes and an odd exit code.
const echo = `#!/bin/sh
printf '%s %s %s|' "$$" "$CNI_COMMAND" "$CNI_ARGS"
cat
printf '\000\377 no newline'
echo 'to stderr' >&2
exit 7
`

// Input and output of the delegate are passed on unchanged. For all commands but ADD the delegate
// replaces the process, and has its ID.
func TestPassesOn(t *testing.T) {
	n := newTestNode(t)
	n.bin = t.TempDir()
	ours := filepath.Join(n.bin, "hostlocal-gc-ipam")
	copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), ours)
	if err := os.WriteFile(filepath.Join(n.bin, "host-local"), []byte(echo), 0o755); err != nil {
		t.Fatal(err)
	}
	const stdin = "{\"odd\":   \"\\u00e9\"}\n\n"
	for _, command := range []string{"ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION", ""} {
		got := n.call(call{command: command, id: "a", args: "K=V;IP=10.9.0.7", stdin: stdin})
		pid, rest, _ := strings.Cut(got.out, " ")
		want := fmt.Sprintf("%s K=V;IP=10.9.0.7|%s\x00\xff no newline", command, stdin)
		if diff := cmp.Diff(want, rest); diff != "" || got.code != 7 || got.stderr != "to stderr\n" {
			t.Errorf("%s: code %d, stderr %q, (-want +got):\n%s", command, got.code, got.stderr, diff)
		}
		if became := pid == fmt.Sprint(got.pid); became == (command == "ADD") {
			t.Errorf("%s: the delegate's process is the plugin's: %t", command, became)
		}
	}
}

// The delegate is never this plugin, under any name and in any directory. Without a delegate the
// error says what to do.
func TestFindsTheDelegate(t *testing.T) {
	const script, other = "#!/bin/sh\nprintf '%s' \"$0\"\n", "#!/bin/sh\nprintf 'the wrong one'\n"
	ours := filepath.Join(bin, "hostlocal-gc-ipam")
	for _, row := range []struct {
		reason  string
		install func(first, second string) (program string)
		want    string // the delegate below the test's directory, or a part of the error
	}{
		{"installed by type", func(first, _ string) string {
			mustWrite(t, first+"/host-local", script)
			copyFile(t, ours, first+"/hostlocal-gc-ipam")
			return first + "/hostlocal-gc-ipam"
		}, "first/host-local"},
		{"installed in place", func(first, _ string) string {
			mustWrite(t, first+"/host-local.real", script)
			copyFile(t, ours, first+"/host-local")
			return first + "/host-local"
		}, "first/host-local.real"},
		{"by type and in place, the same file", func(first, _ string) string {
			mustWrite(t, first+"/host-local.real", script)
			copyFile(t, ours, first+"/host-local")
			mustLink(t, first+"/host-local", first+"/hostlocal-gc-ipam")
			return first + "/hostlocal-gc-ipam"
		}, "first/host-local.real"},
		{"by type and in place, a copy", func(first, _ string) string {
			mustWrite(t, first+"/host-local.real", script)
			copyFile(t, ours, first+"/host-local")
			copyFile(t, ours, first+"/hostlocal-gc-ipam")
			return first + "/hostlocal-gc-ipam"
		}, "first/host-local.real"},
		{"in place in one directory, and the real one in the next", func(first, second string) string {
			copyFile(t, ours, first+"/host-local")
			mustWrite(t, second+"/host-local", script)
			return first + "/host-local"
		}, "second/host-local"},
		{"a directory, a file that is no program and a host-local.real come before it", func(first, second string) string {
			copyFile(t, ours, first+"/hostlocal-gc-ipam")
			if err := os.Mkdir(first+"/host-local", 0o755); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, first+"/host-local.real", other)
			mustWrite(t, second+"/host-local", script)
			third := filepath.Join(filepath.Dir(first), "third")
			if err := errors.Join(os.Mkdir(third, 0o755), os.WriteFile(third+"/host-local", []byte(other), 0o644)); err != nil {
				t.Fatal(err)
			}
			return first + "/hostlocal-gc-ipam"
		}, "second/host-local"},
		{"none", func(first, _ string) string {
			copyFile(t, ours, first+"/hostlocal-gc-ipam")
			return first + "/hostlocal-gc-ipam"
		}, "found only itself, and no other host-local"},
		{"only itself, under both names", func(first, _ string) string {
			copyFile(t, ours, first+"/host-local")
			copyFile(t, ours, first+"/host-local.real")
			return first + "/host-local"
		}, "found only itself, and no other host-local"},
		{"in place, upgraded only by type", func(first, _ string) string {
			mustWrite(t, first+"/host-local.real", script)
			copyFile(t, ours, first+"/host-local", 0)
			copyFile(t, ours, first+"/hostlocal-gc-ipam")
			return first + "/hostlocal-gc-ipam"
		}, "first/host-local.real"},
		{"a link that leads to it, and one that leads nowhere", func(first, second string) string {
			mustWrite(t, first+"/real", script)
			copyFile(t, ours, second+"/hostlocal-gc-ipam")
			if err := errors.Join(os.Symlink("../second/hostlocal-gc-ipam", first+"/host-local"), os.Symlink("host-local", second+"/host-local"),
				os.Symlink("real", first+"/host-local.real")); err != nil {
				t.Fatal(err)
			}
			return second + "/hostlocal-gc-ipam"
		}, "first/host-local.real"},
		{"only another version of itself", func(first, _ string) string {
			copyFile(t, ours, first+"/host-local", 0)
			copyFile(t, ours, first+"/hostlocal-gc-ipam")
			return first + "/hostlocal-gc-ipam"
		}, "found only itself, and no other host-local"},
		{"a script that executes it again", func(first, _ string) string {
			copyFile(t, ours, first+"/hostlocal-gc-ipam")
			mustWrite(t, first+"/host-local", "#!/bin/sh\nexec "+first+"/hostlocal-gc-ipam\n")
			return first + "/hostlocal-gc-ipam"
		}, "executed as its own delegate"},
	} {
		dir := t.TempDir()
		first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
		for _, d := range []string{first, second} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		n := &testNode{t: t, bin: first + ":" + dir + "/third:" + second, gc: "{}"}
		program := row.install(first, second)
		for _, command := range []string{"ADD", "DEL", "VERSION"} {
			got := n.call(call{command: command, id: "a", program: program})
			var e struct {
				Code int
				Msg  string
			}
			switch {
			case json.Unmarshal([]byte(got.out), &e) == nil:
				if !strings.Contains(e.Msg, row.want) || e.Code == 0 || got.code == 0 {
					t.Errorf("%s: %s: code %d, error %d %q, want %q", row.reason, command, got.code, e.Code, e.Msg, row.want)
				}
			case got.out != filepath.Join(dir, row.want):
				t.Errorf("%s: %s: the delegate is %q, want %s", row.reason, command, got.out, row.want)
			}
		}
	}
}

func mustWrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func mustLink(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Link(from, to); err != nil {
		t.Fatal(err)
	}
}

// A read-only data directory gives host-local's error, also if only the lock's file can't be
// created.
func TestReadOnlyDataDir(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	if err := os.WriteFile(filepath.Join(n.dataDir(), network, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly(t, n.dataDir())
	before := modes(t, n.dir)
	c := call{command: "ADD", id: "a"}
	got := n.call(c)
	c.program = filepath.Join(bin, "host-local")
	want := n.call(c)
	if errorMessage([]byte(got.out)) != errorMessage([]byte(want.out)) || got.code != want.code || got.code == 0 {
		t.Errorf("code %d and %s\nwant %d and %s", got.code, got.out, want.code, want.out)
	}
	if diff := cmp.Diff(before, modes(t, n.dir)); diff != "" {
		t.Errorf("files changed:\n%s", diff)
	}
}

// readOnly mounts a directory read-only until the end of the test.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}
