// SPDX-License-Identifier: Apache-2.0

// Package plugintest runs the real host-local in tests: the plugin's own binary,
// called through its environment and standard input as a container runtime calls
// it. It needs no root, no cluster and no network: host-local opens no network
// namespace, so the paths of namespaces need not exist.
//
//	func TestMain(m *testing.M) { os.Exit(plugintest.Main(m)) }
//
//	func TestLeak(t *testing.T) {
//		p := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
//		ips, err := p.Add(t.Context(), "abc", "eth0") // 10.1.0.2, and never a DEL
//		...
//		store := hostlocal.New(p.DataDir)
//		...
//	}
//
// The version of host-local is that of this module's go.mod: the library relies on
// its lock and file format. Only tests of the library import this package.
//
// The package is for tests of reservations and their files, not of interfaces.
// Unlike a runtime, it keeps the results of ADD only in memory.
package plugintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

const (
	self      = "github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	hostLocal = "github.com/containernetworking/plugins/plugins/ipam/host-local"
	// cniVersion is that of the configuration. It is the newest without GC and
	// STATUS, which host-local does not implement.
	cniVersion = "1.0.0"
)

// All tests of a process share one binary, so it can't be in the temporary directory of
// one test. Main makes its directory before the tests run, and removes it after them.
var (
	binDir string
	build  = sync.OnceValues(buildPlugin)
)

// Main runs the tests and removes the binary of Build. It returns the exit code of the
// tests. A package whose tests call Build needs a TestMain that calls Main.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "plugintest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // a file that is left in the temporary directory fails no test
	binDir = dir
	return m.Run()
}

// Build returns the path of the plugin's binary. The first call in a process
// builds it, which takes at most seconds if the packages are in Go's build
// cache. If the build fails, so does the test.
func Build(tb testing.TB) string {
	tb.Helper()
	if binDir == "" {
		tb.Fatal("plugintest.Build needs a TestMain that calls plugintest.Main")
	}
	path, err := build()
	if err != nil {
		tb.Fatalf("building host-local: %v", err)
	}
	return path
}

func buildPlugin() (string, error) {
	// The version must be that of this module, even if the test is in another
	// module or runs in a workspace.
	dir, err := goTool("", nil, "list", "-f", "{{.Dir}}", self)
	if err != nil {
		return "", err
	}
	path := filepath.Join(binDir, "host-local")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	// GOFLAGS may ask for the race detector, which needs cgo.
	_, err = goTool(dir, []string{"GOWORK=off", "CGO_ENABLED=0", "GOFLAGS="}, "build", "-o", path, hostLocal)
	return path, err
}

// goTool runs the go command in dir and returns its output.
func goTool(dir string, env []string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// A Range is one set of addresses, from which every ADD gets one. Its fields go to
// the plugin unchecked.
type Range struct {
	Subnet string `json:"subnet"`               // "10.1.0.0/24", no smaller than a /30 or a /126
	Start  string `json:"rangeStart,omitempty"` // first address; empty is the subnet's first
	End    string `json:"rangeEnd,omitempty"`   // last address; empty is the subnet's last
}

// A Plugin is host-local with the configuration of one network. Its methods may
// be called from several goroutines at once, for different attachments. A second
// network of the same data dir is a second Plugin.
type Plugin struct {
	Binary  string // from Build
	DataDir string
	Network string
	// Ranges has one entry for single stack, and one for each family for dual
	// stack.
	Ranges []Range
	// NetNS is passed as CNI_NETNS. Empty is a path in DataDir that does not
	// exist.
	NetNS string

	results sync.Map // attachment -> json.RawMessage: the results of ADD, for CHECK and DEL
}

type attachment struct{ containerID, ifName string }

// New returns the plugin for a network whose data dir is a temporary directory
// of the test. It writes nothing there before the first ADD.
func New(tb testing.TB, network string, ranges ...Range) *Plugin {
	tb.Helper()
	return &Plugin{Binary: Build(tb), DataDir: tb.TempDir(), Network: network, Ranges: ranges}
}

// Dir returns the network's directory.
func (p *Plugin) Dir() string { return filepath.Join(p.DataDir, p.Network) }

// File returns the path at which the plugin keeps the reservation of an address.
func (p *Plugin) File(ip netip.Addr) string { return disk.GetEscapedPath(p.Dir(), ip.String()) }

// Add runs ADD and returns the addresses of the container, one for each range and
// in their order.
//
// An error has the plugin's own message, or says why the plugin could not be run.
func (p *Plugin) Add(ctx context.Context, containerID, ifName string) ([]netip.Addr, error) {
	out, err := p.run(ctx, "ADD", containerID, ifName)
	if err != nil {
		return nil, err
	}
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("host-local ADD: reading its result %q: %w", out, err)
	}
	var ips []netip.Addr
	for _, ip := range result.IPs {
		ips = append(ips, ip.Address.Addr())
	}
	p.results.Store(attachment{containerID, ifName}, json.RawMessage(out))
	return ips, nil
}

// Del runs DEL. It is no error if there is nothing to delete.
func (p *Plugin) Del(ctx context.Context, containerID, ifName string) error {
	_, err := p.run(ctx, "DEL", containerID, ifName)
	if err == nil {
		p.results.Delete(attachment{containerID, ifName})
	}
	return err
}

// Check runs CHECK with the result of the attachment's ADD, if there was one.
func (p *Plugin) Check(ctx context.Context, containerID, ifName string) error {
	_, err := p.run(ctx, "CHECK", containerID, ifName)
	return err
}

// run calls the plugin as libcni does and returns its output.
func (p *Plugin) run(ctx context.Context, command, containerID, ifName string) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": cniVersion,
		"name":       p.Network,
		"type":       "bridge", // the plugin that delegates to host-local and passes its configuration on
		"ipam":       map[string]any{"type": "host-local", "dataDir": p.DataDir, "ranges": rangeSets(p.Ranges)},
	}
	if command != "ADD" {
		if result, ok := p.results.Load(attachment{containerID, ifName}); ok {
			conf["prevResult"] = result
		}
	}
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, fmt.Errorf("host-local %s: writing its configuration: %w", command, err)
	}
	netns := p.NetNS
	if netns == "" {
		netns = filepath.Join(p.DataDir, "netns", containerID)
	}
	cmd := exec.CommandContext(ctx, p.Binary)
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+command,
		"CNI_CONTAINERID="+containerID,
		"CNI_NETNS="+netns,
		"CNI_IFNAME="+ifName,
		"CNI_PATH="+filepath.Dir(p.Binary),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_INFRA_CONTAINER_ID="+containerID,
	)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("host-local %s of %s/%s: %w", command, containerID, ifName, pluginError(err, stdout.Bytes(), stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// rangeSets makes a set of each range, because the plugin gives an address of each set.
func rangeSets(ranges []Range) [][]Range {
	sets := make([][]Range, len(ranges))
	for i, r := range ranges {
		sets[i] = []Range{r}
	}
	return sets
}

// pluginError returns the error that a plugin printed on its standard output, or if it
// printed none, err with its output.
func pluginError(err error, stdout, stderr []byte) error {
	var printed struct {
		Code    uint   `json:"code"`
		Msg     string `json:"msg"`
		Details string `json:"details"`
	}
	if json.Unmarshal(stdout, &printed) != nil || printed.Msg == "" {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(append(stdout, stderr...)))
	}
	if printed.Details != "" {
		printed.Msg += "; " + printed.Details
	}
	return errors.New(printed.Msg)
}
