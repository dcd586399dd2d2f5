// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

// No variable sets --yes, and none sets --allow-foreign, which is true for a short time only: a container of nerdctl keeps its
// address unless a person gives the flag.
func TestForeignIsNoVariable(t *testing.T) {
	a := &app{}
	c := a.repairCommand()
	if err := fromEnvironment(c.Flags(), lookup(map[string]string{"HOSTLOCAL_GC_YES": "true"})); err != nil || a.flags.yes {
		t.Errorf("a variable says yes, error %v", err)
	}
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
		n.pods("pods.json", pod{Name: "x", ContainerIDs: []string{sandbox("x")}})
		args := []string{"release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"}
		cmd := command(t, n.dir, append(args, row.flags...)...)
		cmd.Env = append(cmd.Env, row.env)
		if out, err := cmd.CombinedOutput(); err != nil || podnet.there(ips[0]) != row.left {
			t.Errorf("%s: %v, and it is not %v that the address is kept:\n%s", row.reason, err, row.left, out)
		}
	}
}
