// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// In an agent's pod the commands use the agent's variables, and judge the node as the agent does.
func TestAgentsVariables(t *testing.T) {
	const all = "HOSTLOCAL_GC_NETWORK=*"
	for _, row := range []struct {
		reason, env, args string
		status            int
		says              string // on stdout or stderr
	}{
		{"all networks", all, "check --cni-dir .", statusLeaked, "LEAKED: podnet: "},
		{"all networks", all, "list", statusDone, "10.1.0.3"},
		{"all networks", all, "plan --exit-code", statusLeaked, "10.1.0.3"},
		{"all networks", all, "show 10.1.0.3", statusDone, "10.1.0.3 in network podnet is leaked"},
		{"all networks", all, "map", statusDone, "podnet"},
		{"all networks, and one is named", all, "plan --network other", statusError, `network "other" has no directory`},
		{"a release wants who sees other runtimes' containers", all, "release", statusUsage, "needs --source netns"},
		{"so does this", all, "remove-malformed 10.1.0.3 --yes", statusUsage, "a --network is missing"},
		{"all networks beside one is no name", "HOSTLOCAL_GC_NETWORK=* podnet", "list", statusUsage, "remove the other --network"},
	} {
		n := newNode(t)
		podnet := n.network("podnet", "10.1.0.0/24")
		podnet.add(sandbox("web"), time.Hour)
		podnet.add(sandbox("gone"), time.Hour)
		n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}})
		cmd := command(t, n.dir, append(strings.Fields(row.args), "--data-dir", "networks", "--source", "file:pods.json")...)
		cmd.Env = append(cmd.Env, row.env)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		got := finish(t, cmd.Run(), &stdout, &stderr)
		if got.status != row.status || !strings.Contains(got.stdout+got.stderr, row.says) || !podnet.there("10.1.0.3") {
			t.Errorf("%s, %s: exit status %d, want %d, that says %q:\n%s%s", row.reason, row.args, got.status, row.status, row.says, got.stdout, got.stderr)
		}
	}
}

// No variable sets --allow-foreign, which is true for a short time only: a container of nerdctl keeps its
// address unless a person gives the flag.
func TestForeignIsNoVariable(t *testing.T) {
	for _, row := range []struct {
		reason, env string
		flags       []string
		left        bool
	}{
		{"a variable", "HOSTLOCAL_GC_ALLOW_FOREIGN=*", nil, true},
		{"the flag", "", []string{"--allow-foreign", "default-"}, false},
	} {
		n := newNode(t)
		podnet := n.network("podnet", "10.1.0.0/24")
		ips := podnet.add("default-"+sandbox("nerdctl's"), time.Hour)
		n.put("crictl.json", fmt.Sprintf(`{"items": [{"id": %q, "metadata": {"namespace": "a", "name": "x"}}, {"id": %q, "metadata": {"namespace": "b", "name": "y"}}]}`,
			sandbox("x"), sandbox("y")))
		args := []string{"release", "--data-dir", "networks", "--network", "podnet", "--source", "file:crictl.json"}
		cmd := command(t, n.dir, append(args, row.flags...)...)
		cmd.Env = append(cmd.Env, row.env)
		if out, err := cmd.CombinedOutput(); err != nil || podnet.there(ips[0]) != row.left {
			t.Errorf("%s: %v, and it is not %v that the address is kept:\n%s", row.reason, err, row.left, out)
		}
	}
}
