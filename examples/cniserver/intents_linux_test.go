// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// request is a request to a server of this process, for a container in the network one.
func (n *node) request(command, id string) *request {
	return &request{
		Command: command, ContainerID: id, IfName: "eth0", NetNS: cnitest.NetNS(id), Path: n.bin,
		Config: []byte(strings.Replace(n.plugin("one"), "{", `{"cni.dev/valid-attachments":[],`, 1)),
	}
}

// delegation is that of the configuration in n.request.
func (n *node) delegation() *delegation {
	n.t.Helper()
	d, err := delegationOf(n.request("", "").Config, n.dataDir())
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

// unreadable makes reading a file an I/O error.
func unreadable(t *testing.T, file string) {
	t.Helper()
	if err := syscall.Mount("/proc/self/mem", file, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(file, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.ReadFile(file); !errors.Is(err, syscall.EIO) {
		t.Fatalf("reading %s: %v, want %v", file, err, syscall.EIO)
	}
}

// The attachment of a damaged intent is unknown: a pass releases no address, a start and a
// request for the attachment fail, and the errors name the file.
func TestDamagedIntent(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	whole := &intent{request: *n.request("ADD", "c"), Network: "one", NetNSID: "1:2"}
	file := s.intents.path(whole.key("one"))
	if err := s.intents.write(whole); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ reason, content string }{
		{"an empty file", ""},
		{"truncated", string(content[:len(content)/2])},
		{"no attachment", "{}"},
		{"null", "null"},
		{"another container's", strings.Replace(string(content), `"containerID":"c"`, `"containerID":"d"`, 1)},
		{"another network's", strings.Replace(string(content), `"network":"one"`, `"network":"two"`, 1)},
		{"another interface's", strings.Replace(string(content), `"ifName":"eth0"`, `"ifName":"eth1"`, 1)},
		{"it can't be read", "EIO"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			cnitest.Write(t, file, row.content, 0)
			if row.content == "EIO" {
				unreadable(t, file)
			}
			held := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.7", "c", 2*gc.DefaultMinAge)
			_, pass := s.loop.Reconcile(t.Context())
			_, add := s.add(t.Context(), n.request("ADD", "c"), n.delegation())
			for what, err := range map[string]error{"a pass": pass, "a start": s.start(t.Context(), nil), "an ADD": add} {
				another := strings.HasPrefix(row.reason, "another") || strings.HasPrefix(row.reason, "no") || row.reason == "null"
				if err == nil || !strings.Contains(err.Error(), file) || what == "a start" && strings.Contains(err.Error(), "another attachment") != another {
					t.Errorf("%s: %v; want an error that names %s", what, err, file)
				}
			}
			if !cnitest.Exists(held) || !cnitest.Exists(file) {
				t.Errorf("its address is reserved: %t, the intent exists: %t", cnitest.Exists(held), cnitest.Exists(file))
			}
		})
	}
	held := n.reserve("one", "10.9.1.7", "c")
	if err := s.gc(t.Context(), n.request("GC", "c"), n.delegation()); err == nil || !strings.Contains(err.Error(), file) || !cnitest.Exists(held) {
		t.Errorf("a GC: %v; the address is reserved: %t", err, cnitest.Exists(held))
	}
}

// The file of an interrupted write is no intent. Nor is a file that is removed after the
// directory was read: a dangling link looks the same.
func TestPartialIntent(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	i := &intent{request: *n.request("ADD", "c"), Network: "one"}
	cnitest.Write(t, s.intents.path(i.key("one"))+".tmp", `{"containerID":`, 0)
	if err := os.Symlink("nothing", filepath.Join(s.intents.dir, "ended.json")); err != nil {
		t.Fatal(err)
	}
	lost := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.7", sandbox("lost"), time.Second)
	if err := s.start(t.Context(), nil); err != nil || cnitest.Exists(lost) {
		t.Errorf("%v; the leaked reservation exists: %t", err, cnitest.Exists(lost))
	}
	if err := s.intents.write(i); err != nil {
		t.Fatal(err)
	}
	notJSON := *i
	notJSON.Config = []byte("{")
	if err := s.intents.write(&notJSON); err == nil {
		t.Error("an intent that can't be read is written")
	}
	if all, err := s.intents.all(); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if err := s.intents.write(&intent{request: *n.request("ADD", "d"), Network: "one"}); err != nil {
		t.Fatal(err)
	}
	if a, err := s.intents.Pods(t.Context()); err != nil || len(a.Pods) != 2 {
		t.Errorf("there are two intents, and the pods are %v, %v", a.Pods, err)
	}
	if err := s.finish(t.Context(), &intent{request: request{Config: []byte("{}")}}); err == nil {
		t.Error("an intent without a delegate is finished")
	}
	for _, dir := range []string{"/proc", filepath.Join(n.dir, "none")} { // both can't be synced
		if err := syncDir(dir); err == nil {
			t.Errorf("%s is synced", dir)
		}
	}
}

// Each step is durable before the next one: the intent before the delegate starts, the
// record before the intent is removed, and all of them before the answer.
func TestStepsAreDurable(t *testing.T) {
	n := newNode(t)
	n.restart()
	list := n.list("one", dual)
	n.Make("c")
	trace := n.traced(func() {
		n.mustAdd(list, "c")
		n.mustDel(list, "c")
	})
	var got []string
	intents, record := filepath.Join(n.state(), "intents"), n.recordFile()
	for line := range strings.Lines(trace) {
		for _, step := range []struct{ call, on, name string }{
			{"write(", "<" + intents + "/", "write intent"}, {"fsync(", "<" + intents + "/", "sync intent"},
			{"rename", `"` + intents + "/", "name intent"}, {"fsync(", "<" + intents + ">", "sync intents"},
			{"unlink", `"` + intents + "/", "remove intent"},
			{"fsync(", "<" + record + ".tmp>", "sync record"}, {"rename", `"` + record, "name record"},
			{"fsync(", "<" + n.state() + ">", "sync state"},
			{"execve(", `"` + n.bin + "/bridge", "delegate"}, {"write(", `"HTTP/1.1 200 OK`, "answer"},
		} {
			if strings.Contains(line, step.call) && strings.Contains(line, step.on) {
				got = append(got, step.name)
			}
		}
	}
	before := []string{"write intent", "sync intent", "name intent", "sync intents", "delegate"}
	after := []string{"sync record", "name record", "sync state", "remove intent", "sync intents", "answer"}
	var want []string
	for range 2 { // ADD, DEL
		want = append(append(want, before...), after...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, trace)
	}
}

// If the directory of the intents can't be synced, a power loss may undo the change: an ADD
// fails before its first step, or after its last one.
func TestHazard25TheDirectoryIsNotSynced(t *testing.T) {
	n := newNode(t)
	arrived, goOn := n.blockAt("ADD")
	n.restart()
	list := n.list("one", dual)
	n.Make("c")
	fault := []string{"-e", "inject=fsync:error=EIO", "-P", filepath.Join(n.state(), "intents")}
	n.traced(func() {
		if _, err := n.add(list, "c"); err == nil || !strings.Contains(err.Error(), "writing the intent") {
			t.Errorf("writing the intent: %v", err)
		}
	}, fault...)
	n.block()
	done := make(chan error)
	go func() { _, err := n.add(list, "c"); done <- err }()
	arrived()
	n.traced(func() {
		goOn()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("removing the intent: %v", err)
		}
	}, fault...)
	n.mustDel(list, "c")
	n.agree(2)
}

// traced returns the system calls of the server and its children during do.
func (n *node) traced(do func(), flags ...string) string {
	n.t.Helper()
	file := filepath.Join(n.dir, "trace")
	args := []string{"-f", "-y", "-s", "64", "-o", file, "-e", "trace=write,fsync,fdatasync,execve,/^rename,/^unlink", "-p", fmt.Sprint(n.server.Process.Pid)}
	cmd := exec.Command("strace", append(args, flags...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for line := ""; !strings.Contains(line, " attached"); line = lines.Text() {
		if !lines.Scan() {
			n.t.Fatalf("strace did not attach: %v", cmd.Wait())
		}
	}
	do()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		n.t.Fatal(err)
	}
	for lines.Scan() { // until it is detached
	}
	_ = cmd.Wait() // the signal is an error
	trace, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(trace)
}

// The server removes no interface from its own network namespace, whatever path of it a
// request has, and whatever namespace its first thread is in (TestMain).
func TestOwnNetworkNamespace(t *testing.T) {
	n := newNode(t)
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "own0"}}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	cnitest.RemoveLinkAtEnd(t, link.Name)
	s := n.newServer()
	mounted := filepath.Join(n.dir, "own")
	cnitest.Write(t, mounted, "", 0)
	if err := syscall.Mount("/proc/thread-self/ns/net", mounted, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mounted, 0); err != nil {
			t.Error(err)
		}
	})
	held := n.reserve("one", "10.9.1.7", "c")
	for _, path := range []string{"/proc/thread-self/ns/net", mounted} {
		r := n.request("DEL", "c")
		r.NetNS, r.IfName = path, link.Name
		if err := s.del(t.Context(), r, n.delegation()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := netlink.LinkByName(link.Name); err != nil || !cnitest.Exists(held) {
			t.Errorf("%s: the interface: %v; the address is reserved: %t", path, err, cnitest.Exists(held))
		}
	}
}

// After a boot /run is empty: the server makes the directory of its socket, for root alone.
// Without a path in its configuration, the plugin uses the default socket.
func TestFreshRun(t *testing.T) {
	n := newNode(t)
	dir := filepath.Dir(defaultSocket)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if !n.start("", "--socket", defaultSocket) {
		t.Fatal("the server does not start")
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	list, err := libcni.NetworkConfFromBytes(bytes.Replace(n.list("one", dual).Bytes, fmt.Appendf(nil, `"socket":%q,`, n.socket()), nil, 1))
	if err != nil {
		t.Fatal(err)
	}
	n.mustAdd(list, "a")
	n.agree(2, "a")
}

// If the server can accept no more connections, its exit status says so, and what starts it
// starts it again.
func TestServingEndsWithAnError(t *testing.T) {
	n := newNode(t)
	if !n.start("") {
		t.Fatal("the server does not start")
	}
	server := n.server
	n.traced(func() {
		if c, err := net.Dial("unix", n.socket()); err == nil {
			_ = c.Close()
		}
		n.died()
	}, "-e", "trace=accept4", "-e", "inject=accept4:error=ENOMEM")
	if server.ProcessState.Success() {
		t.Error("it ended without an error")
	}
}

// A write that was interrupted leaves a longer file under the temporary name. The next intent
// replaces all of it: a rest of it would damage the intent, and no server would start.
func TestIntentAfterAnInterruptedWrite(t *testing.T) {
	in := intents{dir: t.TempDir()}
	i := &intent{request: request{Command: "ADD", ContainerID: "c", IfName: "eth0"}, Network: "one"}
	key := i.key(i.Network)
	if err := os.WriteFile(in.path(key)+".tmp", []byte(strings.Repeat("x", 4<<10)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := in.write(i); err != nil {
		t.Fatal(err)
	}
	if got, err := in.get(key); err != nil || got == nil || got.ContainerID != "c" {
		t.Errorf("got %+v, %v", got, err)
	}
}
