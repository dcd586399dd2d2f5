// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The nodes of README.md and of tests. Ages of an hour and more are shown without seconds, so they do not differ
// between runs.

// scenes are the nodes by their names, as in README.md.
var scenes = map[string]func(*testing.T) *node{
	"full": fullNode, "conflict": conflictNode, "dual": dualNode,
}

// fullNode has no address left, though only half of them are in use.
func fullNode(t *testing.T) *node {
	n := newNode(t)
	podnet := n.network("podnet", "10.244.1.0/28")
	n.put("podnet.conflist", `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
  {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.1.0/28"}},
  {"type": "portmap"}
]}
`)
	var live []pod
	for i := range 13 { // 16 less network, gateway and broadcast
		name := fmt.Sprintf("web-%d", i)
		age := 3*day + 4*time.Hour + 30*time.Minute
		if i > 6 {
			age = 2*time.Hour + 10*time.Minute
		}
		ips := podnet.add(sandbox(name), age)
		switch {
		case i == 3: // a power failure before the plugin wrote the owner
			podnet.write(ips[0], "", age)
		case i%2 == 0:
			live = append(live, pod{Namespace: "shop", Name: name, UID: name, ContainerIDs: []string{sandbox(name)}, IPs: ips})
		}
	}
	n.pods("pods.json", live...)
	return n
}

// conflictNode has an address that is reserved for a container that is not live, while a live pod
// with another container has it.
func conflictNode(t *testing.T) *node {
	n := newNode(t)
	podnet := n.network("podnet", "10.244.1.0/24")
	live := []pod{{Namespace: "kube-system", Name: "kube-proxy-7xk2p", UID: "proxy", HostNetwork: true, IPs: []string{"192.168.0.10"}}}
	old := 5*day + 2*time.Hour + 30*time.Minute
	for _, name := range []string{"web-1", "web-2"} {
		ips := podnet.add(sandbox(name), old)
		live = append(live, pod{Namespace: "shop", Name: name, UID: name, ContainerIDs: []string{sandbox(name)}, IPs: ips})
	}
	ips := podnet.add(sandbox("mysql-0 before the crash"), old)
	live = append(live, pod{Namespace: "db", Name: "mysql-0", UID: "mysql-0", ContainerIDs: []string{sandbox("mysql-0")}, IPs: ips})
	live = append(live, pod{Namespace: "shop", Name: "web-3", UID: "web-3", ContainerIDs: []string{sandbox("web-3")}, IPs: []string{"10.244.1.77"}})
	gone := podnet.add(sandbox("web-4"), old)
	podnet.write(gone[0], "half a backup\nof something\nelse\n", old)
	podnet.add(sandbox("web-5"), old)
	n.pods("pods.json", live...)
	return n
}

// dualNode gives each pod an IPv4 and an IPv6 address, and some pods an address in a second
// network.
func dualNode(t *testing.T) *node {
	n := newNode(t)
	podnet := n.network("podnet", "10.244.1.0/24", "fd00:10:244:1::/64")
	storage := n.network("storage", "192.168.100.0/24")
	n.put("podnet.conf", `{"cniVersion": "1.0.0", "name": "podnet", "type": "ptp", "ipam": {"type": "host-local",
  "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:10:244:1::/64"}]]}}
`)
	live := []pod{{Namespace: "shop", Name: "search", UID: "search", StartedAt: ago(90 * time.Minute)}}
	for i := range 6 {
		name := fmt.Sprintf("web-%d", i)
		age := time.Duration(i+2)*day + 7*time.Hour + 30*time.Minute
		ips := podnet.add(sandbox(name), age)
		if i%2 == 0 {
			storage.add(sandbox(name), age) // its address is in no pod's status
		}
		if i < 4 {
			live = append(live, pod{Namespace: "shop", Name: name, UID: name, IPs: ips[:1]})
		}
	}
	podnet.add(sandbox("search"), time.Hour+30*time.Minute)
	n.pods("pods.json", live...)
	return n
}

var (
	sceneLine = regexp.MustCompile("^<!-- scene: ([a-z]+) -->\n$")
	// Processes that differ between runs.
	lockHolders = regexp.MustCompile(`process [0-9]+ \([^)]*\)`)
)

// The examples of README.md are run in order. A comment "scene: NAME" makes a new node, and each line of a console block that
// begins with "$ " is run on it. -update rewrites the outputs.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	must(t, err)
	var out strings.Builder
	var n *node
	played, inside := 0, false
	for line := range strings.Lines(string(text)) {
		scene := sceneLine.FindStringSubmatch(line)
		args, command := strings.CutPrefix(line, "$ hostlocal-gc ")
		switch {
		case scene != nil:
			n = scenes[scene[1]](t)
		case line == "```\n" || line == "```console\n":
			inside = line != "```\n"
		case inside && !command:
			continue // an output, which is made anew
		}
		out.WriteString(line)
		if command {
			got := run(t, n.dir, nil, strings.Fields(args)...)
			out.WriteString(lockHolders.ReplaceAllString(got.stdout, "process 4711 (cp)") + got.stderr)
			played++
		}
	}
	if played < 3 {
		t.Errorf("only %d commands were found", played)
	}
	if *update {
		must(t, os.WriteFile("README.md", []byte(out.String()), 0o644))
	} else if diff := cmp.Diff(string(text), out.String()); diff != "" {
		t.Errorf("the outputs differ; go test . -update rewrites them (-README.md +played):\n%s", diff)
	}
}
