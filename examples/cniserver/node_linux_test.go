// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// A node is a data directory, a server that may be killed, and libcni as a runtime.
type node struct {
	*cnitest.Containers
	t      testing.TB
	dir    string
	bin    string // CNI_PATH
	cni    *libcni.CNIConfig
	server *exec.Cmd
	gone   chan struct{} // closed when the server has ended
	log    *cnitest.Log
}

// sandbox makes up a sandbox's ID. Any other owner is foreign once it has leaked (R14), so names
// stand only for containers that live.
func sandbox(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{Containers: cnitest.NewContainers(t), t: t, dir: t.TempDir(), bin: cnitest.Bin(), log: new(cnitest.Log)}
	n.runtime()
	cnitest.RemoveLinkAtEnd(t, "br-one")
	cnitest.RemoveLinkAtEnd(t, "br-two")
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			t.Logf("the server's log:\n%s", n.log)
		}
	})
	return n
}

// runtime makes libcni use the plugin directory of the node.
func (n *node) runtime() {
	n.cni = cnitest.Runtime(n.bin, filepath.Join(n.dir, "cache"), os.Stderr)
}

func (n *node) socket() string  { return filepath.Join(n.dir, "s") }
func (n *node) dataDir() string { return filepath.Join(n.dir, "networks") }
func (n *node) state() string   { return filepath.Join(n.dir, "state") }
func (n *node) recordFile() string {
	return filepath.Join(n.state(), "attachments.json")
}

// start starts the server, waits until it listens or ends, and reports whether it listens.
func (n *node) start(failpoint string, flags ...string) bool {
	n.t.Helper()
	return n.startAndWait(failpoint, func() {}, flags...)
}

// startAndWait is start, and calls waits when the server logs that it waits for others.
func (n *node) startAndWait(failpoint string, waits func(), flags ...string) bool {
	n.t.Helper()
	args := append([]string{
		"serve", "--network", "one", "--network", "two", "--socket", n.socket(), "--state-dir", n.state(),
		"--data-dir", n.dataDir(), "--gc-min-age", "0", "-v", "4",
	}, flags...)
	n.server = exec.Command("/proc/self/exe", args...)
	// Without the option, the race detector lets each server wait for a second at its end.
	n.server.Env = append(os.Environ(), "CNISERVER_FAILPOINT="+failpoint, "GORACE=atexit_sleep_ms=0")
	stderr, err := n.server.StderrPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.server.Start(); err != nil {
		n.t.Fatal(err)
	}
	serving := make(chan struct{})
	gone := make(chan struct{})
	n.gone = gone
	server := n.server
	go func() {
		defer close(gone)
		lines := bufio.NewScanner(io.TeeReader(stderr, n.log))
		once := sync.OnceFunc(func() { close(serving) })
		for lines.Scan() {
			switch {
			case strings.Contains(lines.Text(), `msg=Serving `):
				once()
			case strings.Contains(lines.Text(), `msg="Waiting for another server`):
				waits()
			}
		}
		_ = server.Wait() // usually killed
	}()
	select {
	case <-serving:
		return true
	case <-gone:
		return false
	case <-time.After(time.Minute):
		n.t.Fatalf("the server neither listens nor ends:\n%s", n.log)
		return false
	}
}

// kill does kill -9, and waits for the end of the server. Its children may go on.
func (n *node) kill() {
	if n.server == nil {
		return
	}
	_ = n.server.Process.Kill() // it may have ended at a failpoint
	<-n.gone
	n.server = nil
}

func (n *node) restart() {
	n.t.Helper()
	n.kill()
	if !n.start("") {
		n.t.Fatalf("the server does not start:\n%s", n.log)
	}
}

// died waits for the end of the server.
func (n *node) died() {
	n.t.Helper()
	select {
	case <-n.gone:
		n.server = nil
	case <-time.After(time.Minute):
		n.t.Fatal("the server goes on")
	}
}

// A kind is the version, the delegate and the address families of a network.
type kind struct {
	version, plugin string
	dual            bool
}

// list is the configuration of a network.
func (n *node) list(name string, k kind) *libcni.NetworkConfigList {
	n.t.Helper()
	third := map[string]int{"one": 1, "two": 2}[name]
	ranges := fmt.Sprintf(`[{"subnet":"10.9.%d.0/24"}]`, third)
	if k.dual {
		ranges += fmt.Sprintf(`,[{"subnet":"fd00:%d::/112"}]`, third)
	}
	delegate := fmt.Sprintf(`"type":%q,"ipam":{"type":"host-local","dataDir":%q,"ranges":[%s]}`, k.plugin, n.dataDir(), ranges)
	if k.plugin == "bridge" {
		delegate += fmt.Sprintf(`,"bridge":"br-%s","isGateway":true`, name)
	}
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil,
		`{"cniVersion":%q,"name":%q,"plugins":[{"type":"cniserver","socket":%q,"delegate":{%s}}]}`,
		k.version, name, n.socket(), delegate))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

func (n *node) runtimeConf(id string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: cnitest.NetNS(id), IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web-" + id}, {"K8S_POD_UID", "uid-" + id},
	}}
}

func (n *node) add(list *libcni.NetworkConfigList, id string) ([]netip.Addr, error) {
	result, err := n.cni.AddNetworkList(n.t.Context(), list, n.runtimeConf(id))
	if err != nil {
		return nil, err
	}
	return cnitest.IPs(result)
}

func (n *node) mustAdd(list *libcni.NetworkConfigList, id string) []netip.Addr {
	n.t.Helper()
	n.Make(id)
	ips, err := n.add(list, id)
	if err != nil {
		n.t.Fatalf("ADD of %s: %v", id, err)
	}
	return ips
}

func (n *node) del(list *libcni.NetworkConfigList, id string) error {
	return n.cni.DelNetworkList(n.t.Context(), list, n.runtimeConf(id))
}

func (n *node) mustDel(list *libcni.NetworkConfigList, id string) {
	n.t.Helper()
	if err := n.del(list, id); err != nil {
		n.t.Fatalf("DEL of %s: %v", id, err)
	}
}

// holding are the addresses of the containers, as lines "container address", according to
// host-local's files, the record and the kernel.
type holding struct{ Reserved, Recorded, Configured []string }

func (n *node) holding() holding {
	n.t.Helper()
	var h holding
	list, err := hostlocal.New(n.dataDir()).List(context.Background())
	if err != nil {
		n.t.Fatal(err)
	}
	for _, r := range list.Reservations {
		h.Reserved = append(h.Reserved, r.ContainerID+" "+r.IP.String())
	}
	for _, e := range n.recorded() {
		for _, ip := range e.IPs {
			h.Recorded = append(h.Recorded, e.ContainerID+" "+ip.String())
		}
	}
	for _, id := range n.IDs() {
		for _, ip := range n.Addresses(id) {
			h.Configured = append(h.Configured, id+" "+ip.String())
		}
	}
	slices.Sort(h.Reserved)
	slices.Sort(h.Recorded)
	slices.Sort(h.Configured)
	return h
}

// recorded reads the entries from the record's file.
func (n *node) recorded() []checkpoint.Entry {
	n.t.Helper()
	content, err := os.ReadFile(n.recordFile())
	if err != nil {
		n.t.Fatal(err)
	}
	var file struct {
		Record struct{ Attachments []checkpoint.Entry }
	}
	if err := json.Unmarshal(content, &file); err != nil {
		n.t.Fatal(err)
	}
	return file.Record.Attachments
}

// agree checks that disk, record and kernel have the same addresses, that each of these
// containers has the given number of them and no other container has any, and that there is no
// intent.
func (n *node) agree(each int, ids ...string) {
	n.t.Helper()
	h := n.holding()
	if diff := cmp.Diff(h.Reserved, h.Recorded); diff != "" {
		n.t.Errorf("reserved (-) and recorded (+) differ:\n%s", diff)
	}
	if diff := cmp.Diff(h.Reserved, h.Configured); diff != "" {
		n.t.Errorf("reserved (-) and configured (+) differ:\n%s", diff)
	}
	got := map[string]int{}
	for _, line := range h.Reserved {
		id, _, _ := strings.Cut(line, " ")
		got[id]++
	}
	want := map[string]int{}
	for _, id := range ids {
		want[id] = each
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("addresses of each container (-want +got):\n%s", diff)
	}
	if left, err := n.intentFiles(); err != nil || len(left) > 0 {
		n.t.Errorf("intents are left: %v (%v)", left, err)
	}
}

// intentFiles are the files of the intents.
func (n *node) intentFiles() ([]string, error) {
	return filepath.Glob(filepath.Join(n.state(), "intents", "*.json"))
}
