// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// TestMain runs the tests in namespaces of their own. The server is the program of the tests, so it has
// the race detector if they have it. The node has been up for a day, however young the machine is.
func TestMain(m *testing.M) {
	gctest.Uptime(nil, 24*time.Hour)
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		main()
		return
	}
	os.Exit(cnitest.Main(m, map[string]string{
		"cniserver": ".", "bridge": cnitest.Plugins + "main/bridge", "ptp": cnitest.Plugins + "main/ptp",
		"host-local": cnitest.Plugins + "ipam/host-local",
	}, nil))
}

// A node is a data directory, a server that may be killed, and libcni as a runtime.
type node struct {
	*cnitest.Containers
	t      testing.TB
	dir    string
	bin    string // CNI_PATH
	server *exec.Cmd
	gone   chan struct{} // closed when the server has ended
	waits  func()        // called when the server logs that it waits for others
	log    *cnitest.Log
}

// sandbox makes up a sandbox's ID. Any other owner is foreign once it has leaked (R14).
func sandbox(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

func newNode(t testing.TB) *node {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "node") //nolint:usetesting // a path that is short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Containers: cnitest.NewContainers(t), t: t, dir: dir, bin: cnitest.Bin(), log: new(cnitest.Log), waits: func() {}}
	cnitest.RemoveLinkAtEnd(t, "br-one")
	cnitest.RemoveLinkAtEnd(t, "br-two")
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			t.Logf("the server's log:\n%s", n.log)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// flags are those of the node's server.
func (n *node) flags() []string {
	return []string{
		"--network", "one", "--network", "two", "--nested",
		"--run-dir", n.path("run"), "--state-dir", n.path("state"), "--data-dir", n.path("networks"),
	}
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }
func (n *node) recordFile() string      { return n.path("state/attachments.json") }
func (n *node) intentsFile() string     { return n.path("run/intents.json") }

// start starts the server, waits until it listens or ends, and reports whether it listens.
func (n *node) start(flags ...string) bool {
	n.t.Helper()
	server := exec.Command("/proc/self/exe", slices.Concat([]string{"serve"}, n.flags(), flags)...)
	server.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // else the race detector waits for a second at the end
	stderr, err := server.StderrPipe()
	n.must(err)
	n.must(server.Start())
	serving, gone := make(chan struct{}), make(chan struct{})
	n.server, n.gone = server, gone
	go func() {
		defer close(gone)
		lines := bufio.NewScanner(io.TeeReader(stderr, n.log))
		once := sync.OnceFunc(func() { close(serving) })
		for lines.Scan() {
			switch {
			case strings.Contains(lines.Text(), `msg=Serving `):
				once()
			case strings.Contains(lines.Text(), `msg="Waiting for another server`):
				n.waits()
			}
		}
		_ = server.Wait() // usually killed
	}()
	select {
	case <-serving:
		return true
	case <-gone:
		n.server = nil
		return false
	}
}

// kill does kill -9, and waits for the end of the server. Its children may go on.
func (n *node) kill() {
	if n.server != nil {
		_ = n.server.Process.Kill() // it may have ended
		<-n.gone
		n.server = nil
	}
}

func (n *node) restart(flags ...string) {
	n.t.Helper()
	n.kill()
	if !n.start(flags...) {
		n.t.Fatalf("the server does not start:\n%s", n.log)
	}
}

// died waits for the end of the server.
func (n *node) died() {
	<-n.gone
	n.server = nil
}

// traced attaches strace to the server during do.
func (n *node) traced(do func(), flags ...string) {
	cmd := exec.Command("strace", append([]string{"-f", "-o", "/dev/null", "-p", fmt.Sprint(n.server.Process.Pid)}, flags...)...)
	stderr, err := cmd.StderrPipe()
	n.must(err)
	n.must(cmd.Start())
	lines := bufio.NewScanner(stderr)
	for line := ""; !strings.Contains(line, " attached"); line = lines.Text() {
		if !lines.Scan() {
			n.t.Fatalf("strace did not attach: %v", cmd.Wait())
		}
	}
	do()
	_ = cmd.Process.Signal(os.Interrupt) // it may have ended with the server
	for lines.Scan() {                   // until it is detached
	}
	_ = cmd.Wait() // the signal is an error
}

// newServer returns a server of this process, with an empty record. At the end it is closed.
func (n *node) newServer() *server {
	n.t.Helper()
	o := parse(n.flags())
	n.must(errors.Join(os.MkdirAll(o.runDir, 0o700), os.MkdirAll(o.stateDir, 0o700)))
	s, err := newServer(o, logr.Discard())
	n.must(err)
	n.t.Cleanup(func() { _ = s.record.Close() })
	n.must(s.record.Backfill(n.t.Context(), nil, nil))
	return s
}

// list is the configuration of a network, with one or two addresses each.
func (n *node) list(name, version, plugin string, each int) *libcni.NetworkConfigList {
	n.t.Helper()
	return n.parse(fmt.Sprintf(`{"cniVersion":%q,"name":%q,"plugins":[{"type":"cniserver","socket":%q,"delegate":{%s}}]}`,
		version, name, n.path("run/"+socketName), n.delegate(name, plugin, each)))
}

// direct is the configuration of a version without a record: the delegate alone.
func (n *node) direct(name string) *libcni.NetworkConfigList {
	return n.parse(fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[{%s}]}`, name, n.delegate(name, "bridge", 2)))
}

func (n *node) delegate(name, plugin string, each int) string {
	third := map[string]int{"one": 1, "two": 2}[name]
	ranges := fmt.Sprintf(`[{"subnet":"10.9.%d.0/24"}]`, third)
	if each == 2 {
		ranges += fmt.Sprintf(`,[{"subnet":"fd00:%d::/112"}]`, third)
	}
	return fmt.Sprintf(`"type":%q,"bridge":"br-%s","isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"ranges":[%s]}`,
		plugin, name, n.path("networks"), ranges)
}

func (n *node) parse(text string) *libcni.NetworkConfigList {
	n.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(text))
	n.must(err)
	return list
}

// one is the usual network.
func (n *node) one() *libcni.NetworkConfigList { return n.list("one", "1.1.0", "bridge", 2) }

// args are those of a request that this process gives to its own server.
func (n *node) args(id string) skel.CmdArgs {
	config := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"one","delegate":{%s},"cni.dev/valid-attachments":[]}`, n.delegate("one", "bridge", 2))
	return skel.CmdArgs{ContainerID: id, IfName: "eth0", Netns: cnitest.NetNS(id), Path: n.bin, StdinData: []byte(config)}
}

// cni is a runtime with an empty cache: with a full one, libcni's GC sends a DEL for each attachment.
func (n *node) cni() *libcni.CNIConfig {
	cache, err := os.MkdirTemp(n.dir, "cache")
	if err != nil {
		n.t.Error(err)
	}
	return cnitest.Runtime(n.bin, cache, os.Stderr)
}

func runtimeConf(id string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: cnitest.NetNS(id), IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web-" + id},
	}}
}

func (n *node) add(list *libcni.NetworkConfigList, id string) error {
	_, err := n.cni().AddNetworkList(n.t.Context(), list, runtimeConf(id))
	return err
}

func (n *node) del(list *libcni.NetworkConfigList, id string) error {
	return n.cni().DelNetworkList(n.t.Context(), list, runtimeConf(id))
}

// gc does a GC with a list of valid containers.
func (n *node) gc(list *libcni.NetworkConfigList, ids ...string) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range ids {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: "eth0"})
	}
	return n.cni().GCNetworkList(n.t.Context(), list, args)
}

// must fails the test if something that is not under test fails.
func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) mustAdd(list *libcni.NetworkConfigList, ids ...string) {
	n.t.Helper()
	for _, id := range ids {
		n.Make(id)
		n.must(n.add(list, id))
	}
}

// runtimeLists writes what a container runtime lists to a file, and returns the flags for it.
func (n *node) runtimeLists(ids ...string) []string {
	text, err := json.Marshal([]map[string]any{{"name": "web", "containerIDs": ids}})
	n.must(err)
	n.must(os.WriteFile(n.path("runtime.json"), text, 0o600))
	return []string{"--source", "file:" + n.path("runtime.json")}
}

// reserved are the reservations.
func (n *node) reserved() []hostlocal.Reservation {
	list, err := hostlocal.New(n.path("networks")).List(n.t.Context())
	n.must(err)
	return list.Reservations
}

// dateBack makes all reservations this old.
func (n *node) dateBack(age time.Duration) {
	for _, r := range n.reserved() {
		cnitest.DateBack(n.t, filepath.Join(n.path("networks"), r.Network, r.IP.String()), age)
	}
}

// agree checks that disk, record and kernel have the same addresses, that each of these
// containers has the given number of them and no other container has any, and that there is no
// intent, and no process that a delegate has left.
func (n *node) agree(each int, ids ...string) {
	n.t.Helper()
	source, err := checkpoint.New(n.recordFile(), checkpoint.Options{Networks: []string{"one", "two"}, Nested: true})
	n.must(err)
	recorded, err := source.Pods(n.t.Context())
	n.must(err)
	disk, record, kernel := map[string]bool{}, map[string]bool{}, map[string]bool{}
	got, want := map[string]int{}, map[string]int{}
	for _, r := range n.reserved() {
		disk[r.ContainerID+" "+r.IP.String()] = true
		got[r.ContainerID]++
	}
	for _, p := range recorded.Pods {
		for _, ip := range p.IPs {
			record[p.ContainerIDs[0]+" "+ip.String()] = true
		}
	}
	for _, id := range n.IDs() {
		for _, ip := range n.Addresses(id) {
			kernel[id+" "+ip.String()] = true
		}
	}
	for _, id := range ids {
		want[id] = each
	}
	if diff := cmp.Diff(disk, record) + cmp.Diff(disk, kernel); diff != "" {
		n.t.Errorf("reserved (-) and recorded or configured (+) differ:\n%s", diff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("addresses of each container (-want +got):\n%s", diff)
	}
	if left, err := os.ReadFile(n.intentsFile()); err == nil && string(left) != "{}" {
		n.t.Errorf("intents are left: %s", left)
	}
	if f, err := os.OpenFile(n.path("go"), os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
		n.t.Errorf("a process of a delegate is left: %v", f.Close())
	}
}

// scripted replaces the delegate bridge by a script that does what a file says: for each command
// one of before and after (it kills the server before or after its work), fail, block (a process that it
// starts waits before its work), and leave (it does not wait for that). It appends the commands to the file asked.
func (n *node) scripted() {
	n.t.Helper()
	n.bin = n.path("bin")
	n.must(os.Mkdir(n.bin, 0o700))
	for _, name := range []string{"cniserver", "ptp", "host-local"} {
		n.must(os.Symlink(filepath.Join(cnitest.Bin(), name), filepath.Join(n.bin, name)))
	}
	script := strings.NewReplacer("DIR", n.dir, "BIN", cnitest.Bin()).Replace(`#!/bin/sh
does() { grep -qsx "$CNI_COMMAND $1" DIR/script; }
echo $CNI_COMMAND >>DIR/asked
if does before; then kill -9 $PPID; exit 1; fi
if does fail; then echo '{"cniVersion":"1.1.0","code":120,"msg":"no '$CNI_COMMAND' today"}'; exit 1; fi
if does leave; then cat DIR/go >&2 & fi
if does block; then cat DIR/go >&2 & echo there >DIR/there; wait; fi
BIN/bridge; code=$?
if does after; then kill -9 $PPID; fi
exit $code
`)
	n.must(errors.Join(os.WriteFile(filepath.Join(n.bin, "bridge"), []byte(script), 0o700),
		syscall.Mkfifo(n.path("there"), 0o600), syscall.Mkfifo(n.path("go"), 0o600)))
}

// script says what the delegate does from now on, such as "ADD fail".
func (n *node) script(lines ...string) {
	n.must(os.WriteFile(n.path("script"), []byte(strings.Join(lines, "\n")), 0o600))
}

// arrived waits until the delegate blocks, and goOn lets it go on; later ones don't block.
func (n *node) arrived() {
	_, err := os.ReadFile(n.path("there"))
	n.must(err)
}

func (n *node) goOn() { // may be called by the goroutine that reads the server's log
	if err := errors.Join(os.Remove(n.path("script")), os.WriteFile(n.path("go"), nil, 0)); err != nil {
		n.t.Error(err)
	}
}
