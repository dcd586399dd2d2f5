// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// A host-local that prints its input, with odd bytes and an odd exit code.
const echo = `#!/bin/sh
printf '%s %s %s|' "$$" "$CNI_COMMAND" "$CNI_ARGS"
cat
printf '\000\377 no newline'
echo 'to stderr' >&2
exit 7
`

// Input and output are passed on unchanged, also more than a pipe takes. For all commands but ADD
// host-local replaces the process, and has its ID.
func TestPassesOn(t *testing.T) {
	n := newTestNode(t)
	n.installIn(t.TempDir(), "hostlocal-gc-ipam")
	mustWrite(t, n.bin+"/host-local", echo)
	for _, stdin := range []string{"{\"odd\":   \"\\u00e9\"}\n\n", strings.Repeat(" ", 1<<20)} {
		for _, command := range []string{"ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION", ""} {
			got := n.call(call{command: command, id: "a", args: "K=V;IP=10.9.0.7", stdin: stdin})
			pid, rest, _ := strings.Cut(got.out, " ")
			want := fmt.Sprintf("%s K=V;IP=10.9.0.7|%s\x00\xff no newline", command, stdin)
			if rest != want || got.code != 7 || got.stderr != "to stderr\n" {
				t.Errorf("%s: code %d, stderr %q, %.99q", command, got.code, got.stderr, rest)
			}
			if became := pid == fmt.Sprint(got.pid); became == (command == "ADD") {
				t.Errorf("%s: host-local's process is the plugin's: %t", command, became)
			}
		}
	}
}

// A stdin that does not block is waited for.
func TestStdinDoesNotBlock(t *testing.T) {
	n := newTestNode(t)
	n.installIn(t.TempDir(), "hostlocal-gc-ipam")
	mustWrite(t, n.bin+"/host-local", "#!/bin/sh\nwc -c\n")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := n.command(call{command: "ADD", id: "a"})
	cmd.Stdin, cmd.Stdout = r, &out
	if err := errors.Join(cmd.Start(), syscall.SetNonblock(int(r.Fd()), true), r.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(make([]byte, 1<<20)) // many times what a pipe has room for
	if err := errors.Join(err, w.Close(), cmd.Wait()); err != nil || out.String() != "1048576\n" {
		t.Errorf("%v, %q bytes", err, out.String())
	}
}

// A successful ADD initializes nothing that only retries need.
func TestLoadsNothingElse(t *testing.T) {
	n := newTestNode(t)
	n.installIn(t.TempDir(), "hostlocal-gc-ipam")
	mustWrite(t, n.bin+"/host-local", "#!/bin/sh\n")
	got := n.call(call{command: "ADD", id: "a", env: []string{"GODEBUG=inittrace=1"}})
	for _, late := range []string{"encoding/json", "net", "regexp", "golang.org/x/sys/unix", "github.com/hostlocal-gc/hostlocal-gc/gc"} {
		if !strings.Contains(got.stderr, "init syscall @") || strings.Contains(got.stderr, "init "+late+" @") {
			t.Errorf("code %d, %s is initialized: %s", got.code, late, got.stderr)
		}
	}
}

// installIn copies programs into a directory, which becomes CNI_PATH.
func (n *testNode) installIn(dir string, programs ...string) {
	n.t.Helper()
	n.bin = dir
	for _, name := range programs {
		copyFile(n.t, filepath.Join(bin, name), filepath.Join(dir, name))
	}
}

// host-local is never this plugin, under any name and in any directory. Without host-local the error
// says what to do.
func TestFindsHostLocal(t *testing.T) {
	const script, itself = "#!/bin/sh\nprintf '%s' \"$0\"\n", "found only itself, and no other host-local"
	for _, row := range []struct {
		reason string
		files  string // names below the test's directory; "=" is the plugin, "+" another version of it, "@" a link
		want   string // host-local below the test's directory, or a part of the error
	}{
		{"installed by type", "1/hostlocal-gc-ipam= 1/host-local", "1/host-local"},
		{"installed in place", "1/host-local= 1/host-local.real", "1/host-local.real"},
		{"both, the same file", "1/hostlocal-gc-ipam= 1/host-local@hostlocal-gc-ipam 1/host-local.real", "1/host-local.real"},
		{"both, a copy", "1/hostlocal-gc-ipam= 1/host-local= 1/host-local.real", "1/host-local.real"},
		{"in place, upgraded only by type", "1/hostlocal-gc-ipam= 1/host-local+ 1/host-local.real", "1/host-local.real"},
		{"copies in two directories", "1/hostlocal-gc-ipam= 1/host-local+ 2/host-local= 2/host-local.real", "2/host-local.real"},
		{"in place in one directory, and the real one in the next", "1/host-local= 2/host-local", "2/host-local"},
		{"a directory, one that can't be executed, and a host-local.real before it", "1/hostlocal-gc-ipam= 1/host-local/x 1/host-local.real 3/host-local- 2/host-local", "2/host-local"},
		{"none", "1/hostlocal-gc-ipam=", itself},
		{"only one that can't be executed", "1/hostlocal-gc-ipam= 1/host-local-", "no executable file is "},
		{"only itself, under both names", "1/host-local= 1/host-local.real=", itself},
		{"only another version of itself", "1/hostlocal-gc-ipam= 1/host-local+", itself},
		{"a link to it, and one that leads nowhere", "2/hostlocal-gc-ipam= 1/host-local@../2/hostlocal-gc-ipam 2/host-local@x 1/host-local.real", "1/host-local.real"},
		{"a script that executes it again", "1/hostlocal-gc-ipam= 1/host-local!", "executed as its own delegate"},
	} {
		dir := t.TempDir()
		program := ""
		for _, d := range []string{"1", "2", "3"} {
			mustMkdir(t, filepath.Join(dir, d))
		}
		for file := range strings.FieldsSeq(row.files) {
			name := filepath.Join(dir, strings.TrimRight(file, "=+-!"))
			link, to, linked := strings.Cut(name, "@")
			switch {
			case strings.HasSuffix(file, "="):
				copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), name)
				if program == "" {
					program = name
				}
			case strings.HasSuffix(file, "+"):
				copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), name, 0)
			case strings.HasSuffix(file, "!"):
				mustWrite(t, name, "#!/bin/sh\nexec "+program+"\n")
			case linked:
				if err := os.Symlink(to, link); err != nil {
					t.Fatal(err)
				}
			default:
				_ = os.Mkdir(filepath.Dir(name), 0o755) // mostly it exists
				mustWrite(t, name, script)
				if strings.HasSuffix(file, "-") {
					if err := os.Chmod(name, 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		n := &testNode{t: t, bin: dir + "/1:" + dir + "/3:" + dir + "/2", gc: "{}"}
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
				t.Errorf("%s: %s: host-local is %q, want %s", row.reason, command, got.out, row.want)
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

func mustMkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// In k3s host-local is a link to a program that contains all plugins, and runs the one of its name.
// Here it is a shell, which prints its own. It is found beside a link to the plugin.
func TestCallsHostLocalByItsName(t *testing.T) {
	n := newTestNode(t)
	n.installIn(t.TempDir(), "hostlocal-gc-ipam")
	installed := n.bin
	n.bin = t.TempDir()
	if err := errors.Join(os.Symlink("/bin/sh", n.bin+"/host-local.real"), os.Symlink(installed+"/hostlocal-gc-ipam", n.bin+"/hostlocal-gc-ipam")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ADD", "DEL", "VERSION"} {
		c := call{command: command, id: "a", stdin: `printf %s "$0"`}
		if command == "VERSION" {
			c.env = []string{"CNI_PATH=/nowhere"}
		}
		if got := n.call(c); got.out != n.bin+"/host-local" {
			t.Errorf("%s: called as %q", command, got.out)
		}
	}
}

// host-local is found in a relative CNI_PATH.
func TestRelativePath(t *testing.T) {
	for _, path := range []string{".", ":/nowhere", "./", "../" + filepath.Base(bin)} {
		n := newTestNode(t)
		for _, command := range []string{"ADD", "DEL"} {
			cmd := n.command(call{command: command, id: "a", env: []string{"CNI_PATH=" + path}})
			cmd.Dir = bin
			if out, err := cmd.Output(); err != nil {
				t.Errorf("%q: %s: %v: %s", path, command, err, out)
			}
		}
	}
}

// If nobody can read the result, an ADD ends as that of host-local alone does.
func TestUnreadableResult(t *testing.T) {
	n := newTestNode(t)
	for _, stdout := range []string{">/dev/full", ">&-", "| :", "| cat"} {
		var results []string
		for _, program := range []string{"host-local", "hostlocal-gc-ipam"} {
			script := fmt.Sprintf("trap '' EXIT; (sleep 0.2; exec %s/%s) %s; echo ${PIPESTATUS[@]}", bin, program, stdout)
			cmd := n.command(call{command: "ADD", id: "a", program: "/bin/bash"})
			cmd.Args = append(cmd.Args, "-c", script)
			got := n.run(cmd)
			results = append(results, fmt.Sprintf("%s, %d, %s", got.out, got.code, got.stderr[min(len(got.stderr), len("2006/01/02 15:04:05")):]))
			if left := n.reserved(); len(left) != 1 {
				t.Errorf("%s: %s: reserved: %v", stdout, program, left)
			}
			n.call(call{command: "DEL", id: "a"})
			if err := os.Remove(filepath.Join(n.dataDir(), network, "last_reserved_ip.0")); err != nil {
				t.Fatal(err)
			}
		}
		if results[0] != results[1] {
			t.Errorf("%s: host-local %q, with the plugin %q", stdout, results[0], results[1])
		}
	}
}

// A killed plugin takes its waiting host-local with it: a later reservation would be a leak that
// host-local alone does not make.
func TestKilledWithHostLocal(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		n := newTestNode(t)
		n.reserve(address(0), "other", 0)
		held, err := os.OpenFile(filepath.Join(n.dataDir(), network, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err := errors.Join(err, syscall.Flock(int(held.Fd()), syscall.LOCK_EX)); err != nil {
			t.Fatal(err)
		}
		cmd := n.command(call{command: "ADD", id: "a"})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cnitest.Until(n.t, "host-local waits for its lock", func() bool { return awaited(t, held) == 1 })
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		cnitest.Until(n.t, "it waits no more", func() bool { return awaited(t, held) == 0 })
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		if left := n.reserved(); len(left) != 1 {
			t.Errorf("%v: reserved: %v", signal, left)
		}
	}
}

// README's commands install the plugin in place, also a second time and after a package has updated
// host-local, and restore the last host-local.
func TestInstallInPlace(t *testing.T) {
	dir, ours := t.TempDir(), "the plugin"
	copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), filepath.Join(dir, "built"))
	hostLocal, readme := filepath.Join(dir, "host-local"), readmeText(t)
	sh := func(line string) {
		t.Helper()
		blocks := strings.Split(readme, "```sh\n")
		at := slices.IndexFunc(blocks, func(b string) bool { return strings.Contains(b, line) })
		block, _, _ := strings.Cut(blocks[at], "```")
		cmd := exec.Command("sh", "-ec", strings.ReplaceAll(block, "/opt/cni/bin", dir))
		cmd.Dir = bin // the build directory
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", block, err, out)
		}
	}
	is := func(reason string, want ...string) {
		t.Helper()
		for i, file := range []string{hostLocal, hostLocal + ".real"}[:len(want)] {
			got, err := os.ReadFile(file)
			if strings.HasPrefix(string(got), "\x7fELF") {
				got = []byte(ours)
			}
			if err != nil || string(got) != want[i] {
				t.Errorf("%s is not what it was to be (%v): %s", filepath.Base(file), err, reason)
			}
		}
	}
	const install, back = "host-local.new", "mv host-local.real host-local"
	const first, second = "#!/bin/sh\n# the first\n", "#!/bin/sh\n# of an upgrade of the CNI plugins\n"
	mustWrite(t, hostLocal, first)
	sh(install)
	is("installed", ours, first)
	sh(install)
	is("installed a second time", ours, first)
	mustWrite(t, hostLocal, second)
	sh(install)
	is("installed once more after an upgrade of the CNI plugins", ours, second)
	sh(back)
	is("gone back", second)
	mustWrite(t, hostLocal+".real", first)
	sh(back)
	is("there is nothing to go back from", second)
}

func readmeText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// BenchmarkADD compares a successful ADD with one of host-local alone, in pairs of consecutive ones,
// on a node with some containers.
func BenchmarkADD(b *testing.B) {
	for _, containers := range []int{0, 60, 100} {
		b.Run(fmt.Sprint(containers, " containers"), func(b *testing.B) {
			n := newTestNode(b)
			for i := range containers {
				n.reserve(address(i), fmt.Sprint("x", i), 0)
			}
			var took [2][]time.Duration
			for b.Loop() {
				for p, name := range []string{"hostlocal-gc-ipam", "host-local"} {
					c := call{command: "ADD", id: "new", program: filepath.Join(bin, name)}
					begun := time.Now()
					if got := n.call(c); got.code != 0 {
						b.Fatal(got.out)
					}
					took[p] = append(took[p], time.Since(begun))
					c.command = "DEL"
					n.call(c)
				}
			}
			for p, name := range []string{"ms-plugin", "ms-host-local"} {
				slices.Sort(took[p])
				b.ReportMetric(float64(took[p][len(took[p])/2].Microseconds())/1000, name)
			}
			b.ReportMetric(float64(took[0][len(took[0])/2])/float64(took[1][len(took[1])/2]), "times-in-the-median")
		})
	}
}
