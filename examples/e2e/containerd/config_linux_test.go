// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// configVersion3 is the configuration of containerd 2. It leaves the machine's /opt, AppArmor,
// systemd and out-of-memory scores alone. The long timeout for a shim makes recovery independent
// of the load of the machine.
func configVersion3(n *node) string {
	return fmt.Sprintf(`
version = 3
root = %[1]q
state = %[2]q
oom_score = 0
[timeouts]
  'io.containerd.timeout.shim.load' = '60s'
[grpc]
  address = %[3]q
[plugins.'io.containerd.internal.v1.opt']
  path = %[4]q
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %[5]q
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = %[6]q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = %[7]q
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%[8]q]
    conf_dir = %[9]q
    use_internal_loopback = %[10]t
`, n.path("root"), n.path("state"), n.socket(), n.path("opt"), n.image, n.path("certs"), runc(),
		n.path("cni/bin"), n.path("cni/conf"), n.ownLoopback) + n.configGVisor()
}

// configVersion2 is the configuration of containerd 1.
func configVersion2(n *node) string {
	return fmt.Sprintf(`
version = 2
root = %[1]q
state = %[2]q
oom_score = 0
[timeouts]
  'io.containerd.timeout.shim.load' = '60s'
[grpc]
  address = %[3]q
[plugins."io.containerd.internal.v1.opt"]
  path = %[4]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[5]q
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = %[6]q
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[7]q
    conf_dir = %[8]q
`, n.path("root"), n.path("state"), n.socket(), n.path("opt"), n.image, runc(), n.path("cni/bin"), n.path("cni/conf"))
}

// runc returns the path of runclite, which runs runc without limits.
func runc() string { return filepath.Join(os.Getenv(binEnv), "runclite") }

// configure writes the configuration of a network with that name. It writes the file in place,
// since containerd does not notice a rename.
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
	ipam := "host-local"
	if n.chained {
		ipam = "lease"
	}
	plugins := []any{map[string]any{
		"type":      "gate",
		"control":   n.path("control"),
		"bridge":    "cni0",
		"isGateway": true,
		"ipam": map[string]any{"type": ipam, "ranges": [][]subnet{{v4}, {v6}},
			"gc": map[string]any{"nested": true}}, // for the IPAM plugin of examples/ipam; host-local ignores it
	}}
	if n.chained {
		plugins = append(plugins, map[string]any{"type": "gate", "control": n.path("control"), "chained": true})
	}
	content, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       network,
		"plugins":    plugins,
		// nerdctl creates a network if none has this label.
		"nerdctlLabels": map[string]any{"nerdctl/default-network": "true"},
	}, "", "  ")
	n.must(err)
	n.must(os.WriteFile(n.path("cni/conf/10-pods.conflist"), content, 0o644))
	n.network = network
}

// installPlugins links the CNI plugins into the node's own directory, where a case can remove
// them.
func (n *node) installPlugins() error {
	for _, name := range []string{"bridge", "host-local", "loopback", "gate"} {
		if err := os.Symlink(filepath.Join(os.Getenv(binEnv), name), n.path("cni/bin/"+name)); err != nil {
			return err
		}
	}
	return os.Symlink(filepath.Join(os.Getenv(binEnv), "gate"), n.path("cni/bin/lease"))
}
