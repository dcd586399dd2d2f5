// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// blockOf returns README's shell block that contains a line.
func blockOf(t *testing.T, line string) string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(readme), "```sh\n")[1:] {
		if block, _, _ := strings.Cut(part, "```"); strings.Contains(block, line) {
			return block
		}
	}
	t.Fatalf("README has no block with %q", line)
	return ""
}

// README's commands install the plugin in place, also a second time and after a package has updated
// host-local, and restore the last host-local.
func TestInstallInPlace(t *testing.T) {
	dir, built := t.TempDir(), filepath.Join(bin, "hostlocal-gc-ipam")
	hostLocal := filepath.Join(dir, "host-local")
	sh := func(block string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", strings.ReplaceAll(block, "/opt/cni/bin", dir))
		cmd.Dir = bin // the build directory
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", block, err, out)
		}
	}
	is := func(file, want, reason string) {
		t.Helper()
		got, err := os.ReadFile(file)
		if err != nil || string(got) != want {
			t.Errorf("%s is not what it was to be (%v): %s", filepath.Base(file), err, reason)
		}
	}
	ours, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	install, back := blockOf(t, "host-local.new"), blockOf(t, "mv host-local.real host-local")
	const first, second = "#!/bin/sh\n# the first\n", "#!/bin/sh\n# of an upgrade of the CNI plugins\n"
	mustWrite(t, hostLocal, first)
	sh(install)
	is(hostLocal, string(ours), "installed")
	is(hostLocal+".real", first, "the real one is kept")
	sh(install)
	is(hostLocal+".real", first, "installed a second time")
	mustWrite(t, hostLocal, second)
	sh(install)
	is(hostLocal, string(ours), "installed once more after an upgrade of the CNI plugins")
	is(hostLocal+".real", second, "which is now the real one")
	sh(back)
	is(hostLocal, second, "gone back")
	mustWrite(t, hostLocal+".real", first)
	sh(back)
	is(hostLocal, second, "there is nothing to go back from")
}

// In k3s host-local is a link to a program that contains all plugins, and runs the one of its name.
func TestCallsTheDelegateByItsName(t *testing.T) {
	n := newTestNode(t)
	n.bin = t.TempDir()
	copyFile(t, filepath.Join(bin, "multicall"), filepath.Join(n.bin, "cni"))
	copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), filepath.Join(n.bin, "host-local"))
	mustLink(t, filepath.Join(n.bin, "cni"), filepath.Join(n.bin, "host-local.real"))
	for _, command := range []string{"ADD", "DEL"} {
		got := n.call(call{command: command, id: "a", program: filepath.Join(n.bin, "host-local"), env: []string{"HOST_LOCAL=" + filepath.Join(bin, "host-local")}})
		reserved := len(n.reserved())
		if want := map[string]int{"ADD": 1}[command]; got.code != 0 || reserved != want {
			t.Errorf("%s: code %d, %d reserved, %s%s", command, got.code, reserved, got.out, got.stderr)
		}
	}
}

// Settings for generated configurations are in a file beside the plugin.
func TestSettingsBesideThePlugin(t *testing.T) {
	for _, row := range []struct {
		reason, file string
		heals        bool
		details      string
	}{
		{"none", "", false, "is itself a container"},
		{"it says that the node is nested", `{"nested": true}`, true, ""},
		{"a key that nobody knows", `{"nested": true, "cacheDir": "/x"}`, false, `unknown field \"cacheDir\"`},
		{"no object", `[]`, false, "it is of the type array"},
	} {
		n := newTestNode(t)
		n.bin, n.gc = t.TempDir(), "{}"
		for _, name := range []string{"host-local", "hostlocal-gc-ipam"} {
			copyFile(t, filepath.Join(bin, name), filepath.Join(n.bin, name))
		}
		if row.file != "" {
			mustWrite(t, filepath.Join(n.bin, settingsFile), row.file)
		}
		n.fill(old)
		if got := n.call(call{command: "ADD", id: "a"}); (got.code == 0) != row.heals || !strings.Contains(got.out, row.details) {
			t.Errorf("%s: code %d, %s", row.reason, got.code, got.out)
		}
	}
}

// The details of an error explain it to an operator.
func TestDetails(t *testing.T) {
	for _, row := range []struct {
		reason string
		setUp  func(n *testNode)
		want   string
	}{
		{"all in use", func(n *testNode) {
			n.Make("live")
			for i := range addresses {
				n.reserve(address(i), "live", old)
			}
			n.record("live", "/run/netns/live", old)
		}, "all 253 reservations in network podnet are in use: its range is too small"},
		{"when another try may succeed", func(n *testNode) { n.fill(0) }, "more may be free at "},
		{"a directory that the settings name is not there", func(n *testNode) {
			n.gc = `{"nested":true,"cacheDirs":["/nowhere/results"]}`
			n.fill(0)
		}, "the cache directory /nowhere/results does not exist"},
		{"another network's cache is no news here", func(n *testNode) {
			n.write(filepath.Join(n.dataDir(), "other", "10.8.0.2"), "x\r\neth0", old)
			n.fill(0)
		}, "in podnet it does not count"},
	} {
		n := newTestNode(t)
		row.setUp(n)
		got := n.call(call{command: "ADD", id: "a"})
		if got.code == 0 || !strings.Contains(got.out, row.want) || strings.Contains(got.out, "in other it does not count") {
			t.Errorf("%s: code %d, %s", row.reason, got.code, got.out)
		}
	}
	n := newTestNode(t)
	n.bin = t.TempDir()
	copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), filepath.Join(n.bin, "hostlocal-gc-ipam"))
	copyFile(t, filepath.Join(bin, "host-local"), filepath.Join(n.bin, "host-local"))
	if err := os.Chmod(filepath.Join(n.bin, "host-local"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := n.call(call{command: "ADD", id: "a", program: filepath.Join(n.bin, "hostlocal-gc-ipam")})
	if want := fmt.Sprintf("%s/host-local is not an executable file", n.bin); got.code == 0 || !strings.Contains(got.out, want) {
		t.Errorf("host-local can't be executed: %s", got.out)
	}
}
