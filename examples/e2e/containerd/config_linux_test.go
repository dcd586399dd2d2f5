// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
)

// configVersion3 is the configuration of containerd 2. It leaves the machine's /opt, AppArmor, systemd and
// out-of-memory scores alone. The long timeout for a shim makes recovery independent of the load of the machine. In
// gVisor the shim is runc's, as with Docker: gVisor's own lowers its out-of-memory score, for which it needs
// CAP_SYS_RESOURCE on the machine.
func configVersion3(n *node) string {
	config := common(n, 3) + fmt.Sprintf(`
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%q]
    conf_dir = %q
    use_internal_loopback = %t
`, pauseImage, n.path("cni/bin"), n.path("cni/conf"), n.ownLoopback) + handler("io.containerd.cri.v1.runtime", "runc", n.path("runclite"))
	if n.gvisor {
		config += handler("io.containerd.cri.v1.runtime", "runsc", n.path("runsclite"))
	}
	return config
}

// configVersion2 is the configuration of containerd 1.
func configVersion2(n *node) string {
	return common(n, 2) + fmt.Sprintf(`
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.grpc.v1.cri'.containerd]
    snapshotter = 'overlayfs'
  [plugins.'io.containerd.grpc.v1.cri'.cni]
    bin_dir = %q
    conf_dir = %q
`, pauseImage, n.path("cni/bin"), n.path("cni/conf")) + handler("io.containerd.grpc.v1.cri", "runc", n.path("runclite"))
}

func common(n *node, version int) string {
	return fmt.Sprintf(`
version = %d
root = %q
state = %q
oom_score = 0
[timeouts]
  'io.containerd.timeout.shim.load' = '60s'
[grpc]
  address = %q
[plugins.'io.containerd.internal.v1.opt']
  path = %q
`, version, n.path("root"), n.path("state"), n.socket(), n.path("opt"))
}

func handler(plugin, name, binary string) string {
	return fmt.Sprintf(`
  [plugins.'%[1]s'.containerd.runtimes.%[2]s]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'%[1]s'.containerd.runtimes.%[2]s.options]
      SystemdCgroup = false
      BinaryName = %[3]q
`, plugin, name, binary)
}

// gvisorPods is the prefix of the names of pods that run in gVisor, as with a RuntimeClass.
const gvisorPods = "gvisor"

// withGVisor is the option of a node with a runtime handler for gVisor.
func withGVisor(n *node) {
	n.gvisor = true
	n.tool("runsc")
}

func handlerOf(pod string) string {
	if strings.HasPrefix(pod, gvisorPods) {
		return "runsc"
	}
	return ""
}

// configure writes the configuration of a network with that name. It writes the file in place, since containerd does
// not notice a rename.
func (n *node) configure(network string) {
	n.t.Helper()
	type subnet struct {
		Subnet string `json:"subnet"`
		Start  string `json:"rangeStart"`
		End    string `json:"rangeEnd,omitempty"`
	}
	v4, v6 := subnet{Subnet: "10.88.0.0/24", Start: "10.88.0.2"}, subnet{Subnet: "fd00:88::/64", Start: "fd00:88::2"}
	if n.pool > 0 {
		v4.End, v6.End = fmt.Sprintf("10.88.0.%d", 1+n.pool), fmt.Sprintf("fd00:88::%x", 1+n.pool)
	}
	main := maps.Clone(n.main)
	if main == nil {
		main = map[string]any{"type": "gate", "control": n.path("control"), "bridge": "cni0", "isGateway": true}
	}
	ipam := map[string]any{"type": "host-local", "ranges": [][]subnet{{v4}, {v6}},
		"gc": map[string]any{"nested": true}} // for the IPAM plugin of examples/ipam; host-local ignores it
	main["ipam"] = ipam
	plugins := []any{main}
	if n.chained {
		ipam["type"] = "lease"
		plugins = append(plugins, map[string]any{"type": "gate", "control": n.path("control"), "chained": true})
	}
	n.writeList("10-pods", network, "1.0.0", plugins...)
	n.network = network
}

func (n *node) writeList(file, network, version string, plugins ...any) {
	n.t.Helper()
	content, err := json.MarshalIndent(map[string]any{
		"cniVersion": version, "name": network, "plugins": plugins,
		"nerdctlLabels": map[string]any{"nerdctl/default-network": "true"}, // nerdctl creates a network if none has this label
	}, "", "  ")
	n.must(err)
	n.must(os.WriteFile(n.path("cni/conf/"+file+".conflist"), content, 0o644))
}
