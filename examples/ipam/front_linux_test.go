// SPDX-License-Identifier: Apache-2.0

package main

import (
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

// Input and output are passed on unchanged, also more than a pipe takes, and from a stdin that does not
// block. For all commands but ADD host-local replaces the process, and has its ID. A successful ADD
// initializes nothing that only retries need.
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
	mustWrite(t, n.bin+"/host-local", "#!/bin/sh\nwc -c\n")
	cmd := n.command(call{command: "ADD", id: "a", program: "/bin/sh"})
	cmd.Args = []string{"sh", "-c", "exec " + n.bin + "/hostlocal-gc-ipam </"}
	if got := n.run(cmd); got.out != "0\n" || !strings.Contains(got.stderr, "Is a directory") {
		t.Errorf("a stdin that can't be read: %s, %s", got.out, got.stderr)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr strings.Builder
	cmd = n.command(call{command: "ADD", id: "a", env: []string{"GODEBUG=inittrace=1"}})
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, &out, &stderr
	if err := errors.Join(cmd.Start(), syscall.SetNonblock(int(r.Fd()), true), r.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(make([]byte, 1<<20)) // many times what a pipe has room for
	if err := errors.Join(err, w.Close(), cmd.Wait()); err != nil || out.String() != "1048576\n" {
		t.Errorf("%v, %q bytes", err, out.String())
	}
	for _, late := range []string{"encoding/json", "net", "regexp", "golang.org/x/sys/unix", "github.com/hostlocal-gc/hostlocal-gc/gc"} {
		if !strings.Contains(stderr.String(), "init syscall @") || strings.Contains(stderr.String(), "init "+late+" @") {
			t.Errorf("%s is initialized: %s", late, stderr.String())
		}
	}
}

// host-local is never this plugin, under any name and in any directory. It is called by its own name, which
// k3s' program of all plugins needs. Without host-local the error says what to do.
func TestFindsHostLocal(t *testing.T) {
	const script, itself = "#!/bin/sh\nprintf '%s' \"$0\"\n", "found no host-local that can be executed, except for itself"
	for _, row := range []struct {
		reason string
		files  string // names below the test's directory; "=" is the plugin, "+" another version of it, "@" a link
		path   string // CNI_PATH
		want   string // host-local below the test's directory, or a part of the error
	}{
		{"installed by type", "1/hostlocal-gc-ipam= 1/host-local", "", "1/host-local"},
		{"installed in place", "1/host-local= 1/host-local.real", "", "1/host-local.real"},
		{"both, the same file", "1/hostlocal-gc-ipam= 1/host-local@hostlocal-gc-ipam 1/host-local.real", "", "1/host-local.real"},
		{"both, a copy", "1/hostlocal-gc-ipam= 1/host-local= 1/host-local.real", "", "1/host-local.real"},
		{"in place, upgraded only by type", "1/hostlocal-gc-ipam= 1/host-local+ 1/host-local.real", "", "1/host-local.real"},
		{"copies in two directories", "1/hostlocal-gc-ipam= 1/host-local+ 2/host-local= 2/host-local.real", "", "2/host-local.real"},
		{"in place in one directory, and the real one in the next", "1/host-local= 2/host-local", "", "2/host-local"},
		{"a directory, and one that can't be executed", "1/hostlocal-gc-ipam= 1/host-local/x 3/host-local- 2/host-local", "", "2/host-local"},
		{"none", "1/hostlocal-gc-ipam=", "", itself},
		{"only one that can't be executed", "1/hostlocal-gc-ipam= 1/host-local-", "", itself},
		{"only itself, under both names", "1/host-local= 1/host-local.real=", "", itself},
		{"only another version of itself", "1/hostlocal-gc-ipam= 1/host-local+", "", itself},
		{"a link to it, and one that leads nowhere", "2/hostlocal-gc-ipam= 1/host-local@../2/hostlocal-gc-ipam 2/host-local@x 3/host-local", "", "3/host-local"},
		{"a script that executes it again", "1/hostlocal-gc-ipam= 1/host-local!", "", "executed as its own delegate"},
		{"a relative directory", "2/hostlocal-gc-ipam= 1/host-local", "1", "1/host-local"},
		{"an empty directory", "2/hostlocal-gc-ipam= host-local", ":/nowhere", "host-local"},
		{"beside it, as for VERSION", "1/hostlocal-gc-ipam= 1/host-local", "/nowhere", "1/host-local"},
		{"beside a link to it", "1/p= 2/hostlocal-gc-ipam@../1/p 2/host-local", "/nowhere", "2/host-local"},
		{"a link to a program of many plugins", "1/hostlocal-gc-ipam= 1/host-local.real@/bin/sh", "", "1/host-local"},
	} {
		dir, program := t.TempDir(), ""
		for file := range strings.FieldsSeq(row.files) {
			name := filepath.Join(dir, strings.TrimRight(file, "=+-!"))
			link, to, linked := strings.Cut(name, "@")
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if program == "" || strings.HasSuffix(link, "hostlocal-gc-ipam") {
				program = link
			}
			switch {
			case strings.HasSuffix(file, "="):
				copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), name)
			case strings.HasSuffix(file, "+"):
				copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), name, 0)
			case strings.HasSuffix(file, "!"):
				mustWrite(t, name, "#!/bin/sh\nexec "+program+"\n")
			case linked:
				if err := os.Symlink(to, link); err != nil {
					t.Fatal(err)
				}
			default:
				mustWrite(t, name, script)
				if err := os.Chmod(name, map[bool]os.FileMode{true: 0o644, false: 0o755}[strings.HasSuffix(file, "-")]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if row.path == "" {
			row.path = dir + "/1:" + dir + "/3:" + dir + "/2"
		}
		for _, command := range []string{"ADD", "DEL", "VERSION"} {
			cmd := (&testNode{t: t, bin: row.path}).command(call{command: command, id: "a", program: program, stdin: `printf %s "$0"`})
			cmd.Dir = dir
			got := (&testNode{t: t}).run(cmd)
			msg, found := errorMessage([]byte(got.out)), got.out
			if found != "" && msg == "" && !filepath.IsAbs(found) {
				found = filepath.Join(dir, found)
			}
			right := found == filepath.Join(dir, row.want)
			if strings.Contains(row.want, " ") { // an error
				right = strings.Contains(msg, row.want) && got.code != 0
			}
			if !right {
				t.Errorf("%s: %s: code %d, %s, want %q", row.reason, command, got.code, got.out, row.want)
			}
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

// copyFile copies a program.
func copyFile(t testing.TB, from, to string, more ...byte) {
	t.Helper()
	mustWrite(t, to, mustRead(t, from)+string(more))
}

func (n *testNode) mustRemove(path string) {
	n.t.Helper()
	if err := os.Remove(path); err != nil {
		n.t.Fatal(err)
	}
}

func mustWrite(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// If nobody can read the result, an ADD ends as that of host-local alone does.
func TestUnreadableResult(t *testing.T) {
	n := newTestNode(t)
	for _, stdout := range []string{">/dev/full", ">&-", "| :", "| cat"} {
		var results []string
		for _, program := range []string{"host-local", "hostlocal-gc-ipam"} {
			cmd := n.command(call{command: "ADD", id: "a", program: "/bin/bash"})
			cmd.Args = append(cmd.Args, "-c", fmt.Sprintf("trap '' EXIT; (sleep 0.2; exec %s/%s) %s; echo ${PIPESTATUS[@]}", bin, program, stdout))
			got := n.run(cmd)
			said := got.stderr[min(len(got.stderr), len("2006/01/02 15:04:05")):]
			results = append(results, fmt.Sprintf("%s, %d, %s, %v", got.out, got.code, said, n.reserved()))
			n.call(call{command: "DEL", id: "a"})
			n.mustRemove(n.file("last_reserved_ip.0"))
		}
		if results[0] != results[1] || !strings.Contains(results[0], ":a]") {
			t.Errorf("%s: host-local %q, with the plugin %q", stdout, results[0], results[1])
		}
	}
}

// A killed plugin takes its waiting host-local with it: a later reservation would be a leak that
// host-local alone does not make.
func TestKilledWithHostLocal(t *testing.T) {
	n := newTestNode(t)
	n.reserve(address(0), "other", 0)
	held, err := os.OpenFile(n.file("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	cmd := n.command(call{command: "ADD", id: "a"})
	if err := errors.Join(err, syscall.Flock(int(held.Fd()), syscall.LOCK_EX), cmd.Start()); err != nil {
		t.Fatal(err)
	}
	cnitest.Until(n.t, "host-local waits for its lock", func() bool { return awaited(t, held) == 1 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	cnitest.Until(n.t, "it waits no more", func() bool { return awaited(t, held) == 0 })
	if left := n.reserved(); held.Close() != nil || len(left) != 1 {
		t.Errorf("reserved: %v", left)
	}
}

// README's commands install the plugin in place, also a second time and after a package has updated
// host-local, and restore the last host-local.
func TestInstallInPlace(t *testing.T) {
	dir := t.TempDir()
	hostLocal := filepath.Join(dir, "host-local")
	const install, back, first, second = "host-local.new", "mv host-local.real host-local",
		"#!/bin/sh\n# the first\n", "#!/bin/sh\n# of an upgrade of the CNI plugins\n"
	for _, row := range []struct {
		reason, before, command string
		want                    []string // host-local, where the plugin is empty, and host-local.real
	}{
		{"installed", first, install, []string{"", first}},
		{"installed a second time", "", install, []string{"", first}},
		{"installed once more after an upgrade of the CNI plugins", second, install, []string{"", second}},
		{"gone back", "", back, []string{second}},
		{"there is nothing to go back from", "", back, []string{second}},
	} {
		if row.before != "" {
			mustWrite(t, hostLocal, row.before)
		}
		blocks := strings.Split(mustRead(t, "README.md"), "```sh\n")
		block, _, _ := strings.Cut(blocks[slices.IndexFunc(blocks, func(b string) bool { return strings.Contains(b, row.command) })], "```")
		cmd := exec.Command("sh", "-ec", strings.ReplaceAll(block, "/opt/cni/bin", dir))
		cmd.Dir = bin // the build directory
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", block, err, out)
		}
		for i, file := range []string{hostLocal, hostLocal + ".real"}[:len(row.want)] {
			got, err := os.ReadFile(file)
			if strings.HasPrefix(string(got), "\x7fELF") {
				got = nil
			}
			if err != nil || string(got) != row.want[i] {
				t.Errorf("%s is not what it was to be (%v): %s", filepath.Base(file), err, row.reason)
			}
		}
	}
}

func mustRead(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
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
			var took [2][]float64
			for b.Loop() {
				for p, name := range []string{"hostlocal-gc-ipam", "host-local"} {
					c := call{command: "ADD", id: "new", program: filepath.Join(bin, name)}
					begun := time.Now()
					if got := n.call(c); got.code != 0 {
						b.Fatal(got.out)
					}
					took[p] = append(took[p], time.Since(begun).Seconds())
					n.call(call{command: "DEL", id: "new", program: c.program})
				}
			}
			slices.Sort(took[0])
			slices.Sort(took[1])
			plugin, alone := took[0][len(took[0])/2], took[1][len(took[1])/2]
			b.ReportMetric(1000*plugin, "ms-plugin")
			b.ReportMetric(1000*alone, "ms-host-local")
			b.ReportMetric(plugin/alone, "times-in-the-median")
		})
	}
}
