// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// Of the nodes these are in trouble: a network's name is mistyped, the agent does not run, it is in dry run.
const nodes, wrong, down, dry = 30, 7, 11, 23

// Thirty agents behind an API server, three of them in trouble: kubectl, with the documented rights, shows one screen,
// the gravest first. The agents have addresses in a network namespace, in which a second API server has the data of the
// first one. They are on the loopback interface, since some kernels have no dummy one.
func TestFleet(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("it makes a network namespace, which needs root")
	}
	n, dir := newNode(t), t.TempDir()
	kubectl := goCommand("off", "tool", "-n", "k8s.io/kubernetes/cmd/kubectl")
	binary := command(dir)
	check(os.Symlink(binary, filepath.Join(dir, "kubectl-hostlocal_gc")))
	rules := fleetRules()
	user := n.grant(rules...)

	runtime.LockOSThread() // until the test ends, and with it the thread and what it started
	check(netns.Set(must(netns.New())))
	lo := must(netlink.LinkByName("lo"))
	check(netlink.LinkSetUp(lo))
	second := cluster
	second.launch()
	t.Cleanup(func() { kill(second.api) })

	// One pod runs on each node. In a second directory an address is leaked, too.
	live, leaked := containerID("live"), containerID("leaked")
	for path, id := range map[string]string{"a/podnet/10.1.0.2": live, "b/podnet/10.1.0.2": live, "b/podnet/10.1.0.3": leaked} {
		check(os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755))
		check(os.WriteFile(filepath.Join(dir, path), []byte(id+"\r\neth0"), 0o600))
		check(os.Chtimes(filepath.Join(dir, path), time.Time{}, ago(old).Time))
	}
	list := fmt.Appendf(nil, `[{"namespace": "shop", "name": "web", "containerIDs": [%q], "ips": ["10.1.0.2"]}]`, live)
	check(os.WriteFile(filepath.Join(dir, "pods.json"), list, 0o600))
	var agents [nodes]*exec.Cmd
	for i := range nodes {
		name, ip := fmt.Sprintf("node-%02d", i), fmt.Sprintf("10.99.0.%d", i+1)
		check(netlink.AddrAdd(lo, must(netlink.ParseAddr(ip+"/24"))))
		n.pod(name, onHostNetwork, func(_ *node, pod *corev1.Pod) {
			pod.Spec.NodeName, pod.Labels = name, map[string]string{"app.kubernetes.io/name": "hostlocal-gc"}
			pod.Status.PodIP, pod.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		})
		args := map[int][]string{wrong: {"agent", "--data-dir=a", "--network=podnett"}, dry: {"agent", "--data-dir=b", "--network=podnet", "--dry-run"}}[i]
		if args == nil {
			args = []string{"agent", "--data-dir=a", "--network=podnet"}
		}
		if i != down {
			agents[i] = run(dir, name, nil, binary, append(args, "--source=file:pods.json", "--memory=none", "--listen=",
				"--metrics-listen="+ip+":9777", "--node="+name)...)
			t.Cleanup(func() { kill(agents[i]) })
		}
	}
	kubeconfig(filepath.Join(dir, "config"), "admin-token", user)
	var took time.Duration
	ask := func(args ...string) string {
		cmd := exec.CommandContext(n.ctx, kubectl, append([]string{"hostlocal-gc", "--kubeconfig=config", "-n", n.namespace}, args...)...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir}
		begun := time.Now()
		out, _ := cmd.CombinedOutput() // its status says that some nodes are not fine
		took = time.Since(begun)
		return string(out)
	}
	const want = `NODE     STATE    SINCE  WHAT (-o json has all)
node-07  MISSING    AGE  podnett: it has no directory in a; it holds podnet
node-11  UNKNOWN         dial tcp 10.99.0.12:9777: connect: connection refused
node-23  LEAKED    AGE  podnet: 2 reservations, 1 leaked, 1 in use
27 of 30 nodes are fine.
`
	var got string
	defer func() {
		t.Logf("the last of these took %v (-want +got):\n%s", took.Round(time.Millisecond), cmp.Diff(want, got))
	}()
	n.eventually(func() bool { // all agents have made a pass
		got = regexp.MustCompile(` +(\d+[hms])+  podnet`).ReplaceAllString(ask("--timeout=1m"), "    AGE  podnet")
		if strings.Contains(got, "28 of 30") { // the first pass does not ask where nothing is reserved
			check(agents[wrong].Process.Signal(unix.SIGHUP))
		}
		return got == want
	})
	kubeconfig(filepath.Join(dir, "config"), "admin-token", n.grant(rules[0]))
	n.eventually(func() bool { return strings.Contains(ask(), `cannot get resource "pods/proxy"`) })
}

// fleetRules returns the documented rights of people.
func fleetRules() (rules []rbacv1.PolicyRule) {
	for _, text := range bytes.Split(must(os.ReadFile("../../hostlocal-gc/deploy/fleet.yaml")), []byte("---\n")) {
		var role rbacv1.ClusterRole // of which a Role has a part
		check(yaml.UnmarshalStrict(text, &role))
		rules = append(rules, role.Rules...)
	}
	return rules
}
