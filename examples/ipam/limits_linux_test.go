// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// In a user namespace, or where other processes are hidden, nothing is released. The ADD ends as
// with host-local alone, and says why.
func TestSeesTooLittle(t *testing.T) {
	for _, row := range []struct {
		reason string
		in     func(*exec.Cmd)
		want   string
	}{
		{"a user namespace", func(cmd *exec.Cmd) {
			ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
		}, "CAP_SYS_PTRACE"},
		{"a PID namespace of its own", func(cmd *exec.Cmd) {
			cmd.Args = []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", cmd.Path}
			cmd.Path = "/usr/bin/unshare"
		}, "hostPID"},
	} {
		n := newTestNode(t)
		nested := n.gc
		n.gc = "{}"
		if strings.Contains(row.want, "CAP") {
			n.gc = nested
		}
		n.fill(old)
		n.reserve(address(7), "b", old) // an earlier ADD of b
		for _, c := range []call{{command: "ADD", id: "a"}, {command: "ADD", id: "b"}} {
			got := n.run(func() *exec.Cmd {
				cmd := n.command(c)
				row.in(cmd)
				return cmd
			})
			why := noneLeft
			if c.id == "b" {
				why = twice
			}
			if got.code == 0 || !strings.Contains(errorMessage([]byte(got.out)), why) || !strings.Contains(got.out, row.want) {
				t.Errorf("%s: %s: code %d, %s", row.reason, c.id, got.code, got.out)
			}
		}
		if left := len(n.reserved()); left != addresses {
			t.Errorf("%s: %d reservations are left, want all", row.reason, left)
		}
	}
}

// The release of an address names the host ports that were mapped to it.
func TestTellsOfMappedPorts(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	n.write(n.recordFile("gone5"), fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":%q,"netns":"/run/netns/gone5",`+
		`"capabilityArgs":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}`, sandbox("gone5"), network), old)
	got := n.call(call{command: "ADD", id: "a"})
	if got.code != 0 {
		t.Fatal(got.out)
	}
	for line := range strings.Lines(got.stderr) {
		if named := strings.Contains(line, "host ports 8080/tcp may still lead to that address"); named != strings.Contains(line, sandbox("gone5")) {
			t.Errorf("it says: %s", line)
		}
	}
	if !strings.Contains(got.stderr, "8080") {
		t.Errorf("nothing is said of the port: %s", got.stderr)
	}
}
