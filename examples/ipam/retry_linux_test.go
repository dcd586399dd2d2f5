// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An ADD in a full network heals it, or its error is host-local's, with the reason in its details.
func TestFullNetwork(t *testing.T) {
	leaks := func(age time.Duration, records ...string) func(*testNode) { // with a record of each leak, or of others
		return func(n *testNode) {
			n.fill(age)
			for i := 0; len(records) == 0 && i < addresses; i++ {
				n.record(fmt.Sprint("gone", i), fmt.Sprint("/run/netns/gone", i), age)
			}
			for _, id := range slices.DeleteFunc(records, func(id string) bool { return id == "" }) {
				n.record(id, "/run/netns/"+id, old)
			}
		}
	}
	const wrong = `{"nested":true,"cacheDirs":["/run"]}`
	lock := func(make func(path string) error) func(*testNode) {
		return func(n *testNode) {
			n.fill(old)
			if err := make(n.resultFile()); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	conf := func(gc string) func(*testNode) { return func(n *testNode) { n.fill(old); n.gc = gc } }
	file := func(text string) func(*testNode) {
		return func(n *testNode) {
			conf("{}")(n)
			n.installIn(n.t.(*testing.T).TempDir(), "host-local", "hostlocal-gc-ipam")
			mustWrite(n.t, filepath.Join(n.bin, settingsFile), text)
		}
	}
	for _, row := range []struct {
		reason string
		setUp  func(*testNode)
		want   string // in the details; empty: it heals
	}{
		{"leaks without records", leaks(old, ""), ""},
		{"leaks with stale records", leaks(old), ""},
		{"leaks of less than half a minute", leaks(20 * time.Second), "a pass released 0 of 253 reservations in network podnet: 253 young"},
		{"when another try may succeed", leaks(0), "more may be free at "},
		{"the cache names the ended containers", leaks(50 * time.Second), ""},
		{"the cache is older than the leaks", func(n *testNode) {
			n.reserve(address(0), "other", 50*time.Second)
			leaks(50*time.Second, "other")(n)
		}, ""},
		{"no cache", leaks(50*time.Second, ""), "253 young (not-yet-listed)"},
		{"a cache of another node", leaks(50*time.Second, "other"), "it has no entry of any reservation's owner"},
		{"all in use", func(n *testNode) {
			n.Make("live")
			n.record("live", "/run/netns/live", old)
			for i := range addresses {
				n.reserve(address(i), "live", old)
			}
		}, "all 253 reservations in network podnet are in use: its range is too small"},
		{"an interface without an address, and the wrong cache", func(n *testNode) {
			ip := n.mustAdd("live")
			flush := exec.Command("nsenter", "--net="+cnitest.NetNS("live"), "ip", "address", "flush", "dev", "eth0")
			if out, err := flush.CombinedOutput(); err != nil {
				n.t.Fatalf("%v: %s", err, out)
			}
			cnitest.DateBack(n.t, n.file(ip.String()), old)
			n.gc = wrong
			n.fill(old)
		}, "its container may use one that is not seen"},
		{"a plugin that configures no address, and the wrong cache", func(n *testNode) {
			n.plugin, n.gc = "vfio", wrong
			n.fill(old)
		}, "no-source-for-network"},
		{"seven minutes after those from the future were first seen", func(n *testNode) {
			n.fill(-100 * old)
			file := filepath.Join(n.dataDir(), ".gc-memory")
			got := n.call(call{command: "ADD", id: "first"})
			text, err := os.ReadFile(file)
			files := regexp.MustCompile(`(?m)^-?\d+( \d+:\d+ file )`)
			if seen := len(files.FindAll(text, -1)); got.code == 0 || err != nil || seen != addresses {
				n.t.Fatalf("%d files were noted: %v: %s", seen, err, got.out)
			}
			mustWrite(n.t, file, string(files.ReplaceAll(text, fmt.Appendf(nil, "%d$1", sinceBoot()-old))))
		}, ""},
		{"a directory that the settings name is not there", func(n *testNode) {
			n.gc = `{"nested":true,"cacheDirs":["/nowhere/results"]}`
			n.fill(0)
		}, "the directory /nowhere/results does not exist"},
		{"a key that nobody knows", conf(`{"nested":true,"cacheDir":"/x"}`), `unknown field \"cacheDir\"`},
		{"not of that type", conf(`{"cacheDirs":"/x"}`), "cacheDirs"},
		{"no object", conf(`true`), `it must be an object`},
		{"a directory that is no path", conf(`{"nested":true,"cacheDirs":["x"]}`), "absolute"},
		{"no time", conf(`{"nested":true,"timeout":"4"}`), `the \"timeout\" \"4\" is not from 1s to 1h`},
		{"too short a time", conf(`{"nested":true,"timeout":"9ms"}`), "is not from 1s to 1h"},
		{"a process 1 that is not the machine's", conf(`{}`), `set \"nested\" in \"gc\"`},
		{"... which the settings beside the plugin say", file(`{"nested": true}`), ""},
		{"two objects in these", file(`{"nested": true} {"cacheDirs": ["/x"]}`), "after top-level value"},
		{"no room for the lock", func(n *testNode) {
			full := errors.Join(os.Mkdir(n.dataDir(), 0o700), // with two directories, and host-local's lock
				syscall.Mount("tmpfs", n.dataDir(), "tmpfs", 0, fmt.Sprint("nr_inodes=", addresses+3)))
			n.t.Cleanup(func() { _ = syscall.Unmount(n.dataDir(), 0) })
			n.fill(old)
			n.write(n.file("lock"), "", 0)
			if err := os.Mkdir(n.resultFile(), 0o700); full != nil || !errors.Is(err, syscall.ENOSPC) {
				n.t.Fatal(full, err)
			}
		}, ""},
		{"the lock is a link", lock(func(path string) error { return os.Symlink("/run/elsewhere", path) }), "symbolic links"},
		{"the lock is a pipe", lock(func(path string) error { return syscall.Mkfifo(path, 0o600) }), ""},
		{"the last result was torn by a kill", lock(func(path string) error { return os.WriteFile(path, []byte(`{"bootID":`), 0o600) }), ""},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			row.setUp(n)
			got := n.call(call{command: "ADD", id: "a"})
			if row.want == "" {
				if got.code != 0 || !strings.Contains(got.out, `"ips"`) {
					t.Errorf("code %d: %s", got.code, got.out)
				}
				return
			}
			want := n.call(call{command: "ADD", id: "a", program: filepath.Join(bin, "host-local")})
			if got.code != want.code || errorMessage([]byte(got.out)) != errorMessage([]byte(want.out)) || !strings.Contains(got.out, row.want) {
				t.Errorf("code %d and %s\nwant %d and %s", got.code, got.out, want.code, want.out)
			}
			if left := len(n.reserved()); left != addresses || cnitest.Exists("/run/elsewhere") {
				t.Errorf("%d reservations are left, want all", left)
			}
		})
	}
}

// On a node that is itself a container, on which nothing runs but what needs an address, the mount
// of CNI_NETNS shows that process 1 is the node's. Where the node can't be seen nothing is released.
func TestNestedNode(t *testing.T) {
	const mount = "touch /run/netns/a; unshare --net=/run/netns/a true; "
	inside := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	pod := func(propagation string) string {
		return "mount --make-shared /run; exec 9</proc/self/ns/mnt; unshare --mount --propagation " + propagation +
			` --pid --fork --kill-child --mount-proc sh -c 'nsenter --mount=/proc/self/fd/9 sh -c "` + mount + `"; "$0"; exit $?' "$0"`
	}
	for _, row := range []struct {
		reason, gc, script string
		unshare            []string
		want               string
	}{
		{"as in k3d", `{"nested":true}`, mount + `CNI_NETNS=/var/run/netns/a "$0"; exit $?`, inside, ""},
		{"the settings do not say so", `{}`, mount + `"$0"; exit $?`, inside, `set \"nested\" in \"gc\"`},
		{"its mounts are shared", `{"nested":true}`, "mount --make-rshared /; " + mount + `"$0"; exit $?`, inside, "its mount there is shared"},
		{"the runtime has mounted nothing", `{"nested":true}`, `"$0"; exit $?`, inside, "nothing shows that process 1"},
		{"as in k3d, where /var/run is no link", `{"nested":true}`, "mount -t tmpfs var /var; mkdir -p /var/run/netns; touch /var/run/netns/a; " +
			`unshare --net=/var/run/netns/a true; CNI_NETNS=/var/run/netns/a "$0"; exit $?`, inside, ""},
		{"in a pod that has its node's mounts", `{"nested":true}`, pod("slave"), []string{"--mount"}, "nothing shows that process 1"},
		{"in a pod that shares its mounts with its node", `{"nested":true}`, pod("unchanged"), []string{"--mount"}, "nothing shows that process 1"},
		{"the plugin is process 1", `{"nested":true}`, mount + `exec "$0"`, inside, "nothing shows that process 1"},
		{"in a user namespace", `{"nested":true}`, `"$0"`, []string{"--user", "--map-root-user"}, "rootless networks are not supported"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			n.gc = row.gc
			n.fill(old)
			if err := os.MkdirAll("/run/netns", 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := n.command(call{command: "ADD", id: "a", program: "/usr/bin/unshare"})
			cmd.Args = append(append(cmd.Args, row.unshare...), "sh", "-c", row.script, filepath.Join(bin, "hostlocal-gc-ipam"))
			got := n.run(cmd)
			if (got.code == 0) != (row.want == "") || !strings.Contains(got.out, row.want) || strings.Contains(got.out, "agent") {
				t.Errorf("code %d: %s%s", got.code, got.out, got.stderr)
			}
			if left := len(n.reserved()); left != map[bool]int{true: 1, false: addresses}[row.want == ""] {
				t.Errorf("%d reservations are left", left)
			}
		})
	}
}

// One process that can't be read lets nothing be released: it is named. A daemon that a plugin of this container
// started serves no ADD: it is older than any.
func TestOtherProcesses(t *testing.T) {
	err := fmt.Errorf("%w: not all ADDs are seen: process 1423 can't be read in time", podsource.ErrIncomplete)
	if got := (&request{conf: &config{}}).explain(asNoNode(err)); !strings.Contains(got, "1423") {
		t.Error(got)
	}
	newTestNode(t).process(0, "CNI_COMMAND=ADD", "CNI_CONTAINERID="+container)
	for longest, want := range map[time.Duration]bool{0: false, time.Hour: true} {
		if other, err := otherProcess(podsource.Attachment{ContainerID: container}, longest); (other != "") != want || err != nil {
			t.Errorf("ADDs last %v: %q, %v", longest, other, err)
		}
	}
}

// A pass logs at most fifty releases and the number of the others, also before its lines are read. It names
// host ports that were mapped, of ten thousand only twenty. An ADD succeeds, too, if nobody reads its lines.
func TestLog(t *testing.T) {
	for _, read := range []bool{true, false} {
		n := newTestNode(t)
		n.fill(old)
		n.write(n.recordFile("gone5"), fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":%q,"netns":"/run/netns/gone5",`+
			`"capabilityArgs":{"portMappings":[{"hostPort":8080,"protocol":"transports"}%s]}}`, sandbox("gone5"), network,
			strings.Repeat(`,{"hostPort":8081,"containerPort":80,"protocol":"tcp"}`, 10_000)), old)
		cmd := n.command(call{command: "ADD", id: "a"})
		r, w, err := os.Pipe()
		if err := errors.Join(err, syscall.Mkfifo(n.recordFile("gone6"), 0o600)); err != nil {
			t.Fatal(err)
		}
		hangs := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		if cmd.Stderr = w; !read {
			err = r.Close()
		}
		out, addErr := cmd.Output()
		if err := errors.Join(err, addErr, w.Close()); !hangs.Stop() || err != nil {
			t.Errorf("read %t: %v: %s", read, err, out)
		}
		said, _ := io.ReadAll(r) // it may be closed
		lines := strings.Split(string(said), "\n")
		ports := regexp.MustCompile(sandbox("gone5") + ".*host ports 8080/transport(, 8081/tcp){19}, 9981 more may still lead to that address")
		if read && (len(lines) != maxLines+3 || !ports.Match(said) || !strings.Contains(string(said), "released 203 more in network podnet")) {
			t.Errorf("%d lines: %s", len(lines), said)
		}
		_ = r.Close()
	}
}
