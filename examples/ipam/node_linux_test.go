// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// bin contains hostlocal-gc-ipam, host-local, the main plugins, flannel, Multus, and two programs
// of testdata.
var bin = cnitest.Bin()

// The first thread represents the process in /proc, and process 1 shows the node's network
// namespace. The main goroutine must stay on that thread.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // in main it would be too late

func TestMain(m *testing.M) {
	os.Exit(cnitest.Main(m, map[string]string{
		"hostlocal-gc-ipam": ".",
		"bridge":            cnitest.Plugins + "main/bridge",
		"macvlan":           cnitest.Plugins + "main/macvlan",
		"host-local":        cnitest.Plugins + "ipam/host-local",
	}, []cnitest.Tool{
		cnitest.Multus,
		// Flannel's plugin was part of the CNI plugins until this version.
		{Package: cnitest.Plugins + "meta/flannel", Module: "github.com/containernetworking/plugins", Version: "v0.9.1"},
	}))
}

// network is the tests' network, with 253 addresses for containers: the bridge has .1.
const (
	network   = "podnet"
	addresses = 253
)

func address(i int) string { return fmt.Sprintf("10.9.0.%d", 2+i) }

// old is above every minimum age.
const old = gc.DefaultMinAge + time.Minute

// A testNode is a data directory, a directory of plugins, and libcni as the runtime.
type testNode struct {
	t   testing.TB
	dir string
	bin string // CNI_PATH
	cni *libcni.CNIConfig
	*cnitest.Containers
	log    *cnitest.Log // stderr of the plugins
	plugin string       // the main plugin
	subnet string
	gc     string // "gc" in the configuration
}

func newTestNode(t testing.TB) *testNode {
	t.Helper()
	cnitest.RemoveLinkAtEnd(t, "br-test")
	n := &testNode{t: t, dir: t.TempDir(), bin: bin, Containers: cnitest.NewContainers(t), log: new(cnitest.Log), plugin: "bridge", subnet: "10.9.0.0/24"}
	n.gc = fmt.Sprintf(`{"nested":true,"cacheDirs":[%q]}`, n.cacheDir())
	n.cni = cnitest.Runtime(n.bin, filepath.Dir(n.cacheDir()), n.log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what plugins said:\n%s", n.log.String())
		}
	})
	return n
}

func (n *testNode) cacheDir() string { return filepath.Join(n.dir, "cache", "results") }
func (n *testNode) dataDir() string  { return filepath.Join(n.dir, "networks") }
func (n *testNode) file(ip string) string {
	return filepath.Join(n.dataDir(), network, ip)
}

// config returns the main plugin's configuration as libcni completes it.
func (n *testNode) config() string { return n.configOf("hostlocal-gc-ipam") }

func (n *testNode) configOf(ipam string) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,%s}`, network, n.inner(ipam))
}

func (n *testNode) inner(ipam string) string {
	return fmt.Sprintf(`"type":%q,"bridge":"br-test","isGateway":true,"capabilities":{"ips":true,"portMappings":true},`+
		`"ipam":{"type":%q,"dataDir":%q,"ranges":[[{"subnet":%q}]],"gc":%s}`,
		n.plugin, ipam, n.dataDir(), n.subnet, n.gc)
}

// list returns a runtime's configuration with the given IPAM plugin.
func (n *testNode) list(ipam string) *libcni.NetworkConfigList {
	return n.parse(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":%q,"plugins":[{%s}]}`, network, n.inner(ipam)))
}

func (n *testNode) parse(text []byte) *libcni.NetworkConfigList {
	n.t.Helper()
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// of returns a runtime's parameters for a container.
func (n *testNode) of(id string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: id, NetNS: cnitest.NetNS(id), IfName: "eth0"}
}

// add executes an ADD as a runtime does.
func (n *testNode) add(id, ipam string) (netip.Addr, error) {
	result, err := n.cni.AddNetworkList(context.Background(), n.list(ipam), n.of(id))
	if err != nil {
		return netip.Addr{}, err
	}
	current, err := types100.NewResultFromResult(result)
	if err != nil || len(current.IPs) != 1 {
		return netip.Addr{}, fmt.Errorf("result %v: %w", result, err)
	}
	ip, _ := netip.AddrFromSlice(current.IPs[0].Address.IP)
	return ip.Unmap(), nil
}

func (n *testNode) mustAdd(id string) netip.Addr {
	n.t.Helper()
	n.Make(id)
	ip, err := n.add(id, "hostlocal-gc-ipam")
	if err != nil {
		n.t.Fatalf("ADD of %s: %v", id, err)
	}
	return ip
}

func (n *testNode) del(id, ipam string) error {
	return n.cni.DelNetworkList(context.Background(), n.list(ipam), n.of(id))
}

// sandbox makes a sandbox's ID of the name of a container that ended, since a leaked reservation of
// any other owner is foreign (R14). Other names stay, as those of containers that libcni attaches.
func sandbox(name string) string {
	if ended := regexp.MustCompile("^(gone.*|more)$"); !ended.MatchString(name) {
		return name
	}
	return fmt.Sprintf("%x%064d", name, 0)[:64]
}

// reserve makes a reservation of the given age as host-local does.
func (n *testNode) reserve(ip, id string, age time.Duration) {
	n.t.Helper()
	cnitest.Reserve(n.t, n.dataDir(), network, ip, sandbox(id), age)
}

// record makes an entry of the given age in libcni's cache.
func (n *testNode) record(id, netNS string, age time.Duration) {
	n.t.Helper()
	n.write(n.recordFile(id), fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":%q,"netns":%q}`, sandbox(id), network, netNS), age)
}

func (n *testNode) recordFile(id string) string {
	return filepath.Join(n.cacheDir(), network+"-"+sandbox(id)+"-eth0")
}

func (n *testNode) write(path, content string, age time.Duration) {
	n.t.Helper()
	cnitest.Write(n.t, path, content, age)
}

// fill reserves every free address for ended containers.
func (n *testNode) fill(age time.Duration) {
	n.t.Helper()
	for i := range addresses {
		if _, err := os.Lstat(n.file(address(i))); err != nil {
			n.reserve(address(i), fmt.Sprintf("gone%d", i), age)
		}
	}
}

// reserved returns the owner of each reserved address.
func (n *testNode) reserved() map[string]string {
	n.t.Helper()
	list, err := hostlocal.New(n.dataDir()).List(context.Background())
	if err != nil {
		n.t.Error(err)
	}
	all := make(map[string]string)
	for _, r := range list.Reservations {
		all[r.IP.String()] = r.ContainerID
	}
	return all
}

// keeps fails unless each container has its address, in its namespace and in the reservation.
func (n *testNode) keeps(held map[string]netip.Addr) {
	n.t.Helper()
	reserved := n.reserved()
	for id, ip := range held {
		if got := n.Addresses(id); len(got) != 1 || got[0] != ip || reserved[ip.String()] != id {
			n.t.Errorf("container %s was given %v; its namespace has %v, and the address is reserved for %q", id, ip, got, reserved[ip.String()])
		}
	}
}

func (n *testNode) resultFile() string { return filepath.Join(n.dataDir(), "."+network+".gc") }

// result returns the result of the last shared pass.
func (n *testNode) result() (last result) {
	n.t.Helper()
	text, _ := os.ReadFile(n.resultFile()) // there may be none
	_ = json.Unmarshal(text, &last)        // it may be half written
	return last
}

// A call is one execution of the plugin by a main plugin.
type call struct {
	command, id, args string
	env               []string // replaces other variables
	stdin             string   // empty: the node's configuration
	program           string   // empty: hostlocal-gc-ipam
}

// An outcome is the result of a call.
type outcome struct {
	out, stderr string
	code        int
	pid         int
}

// call runs a plugin as a main plugin does.
func (n *testNode) call(c call) outcome { n.t.Helper(); return n.run(n.command(c)) }

func (n *testNode) run(cmd *exec.Cmd) outcome {
	n.t.Helper()
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		n.t.Fatal(err)
	}
	return outcome{out.String(), stderr.String(), cmd.ProcessState.ExitCode(), cmd.Process.Pid}
}

func (n *testNode) command(c call) *exec.Cmd {
	cmd := exec.Command(cmp.Or(c.program, filepath.Join(n.bin, "hostlocal-gc-ipam")))
	cmd.Stdin = strings.NewReader(cmp.Or(c.stdin, n.config()))
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "CNI_PATH=" + n.bin, "CNI_COMMAND=" + c.command, "CNI_CONTAINERID=" + c.id,
		"CNI_NETNS=" + cnitest.NetNS(c.id), "CNI_IFNAME=eth0", "CNI_ARGS=" + c.args}, c.env...)
	return cmd
}
