// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// explain rewords a source's error, which is written for agents, for users of the plugin.
func explain(err error) string {
	switch {
	case !errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), "process 1"):
		return err.Error()
	case os.Geteuid() != 0 || inUserNamespace():
		return fmt.Sprintf("rootless networks are not supported: the node's processes and namespaces can't be seen, so nothing is released (%v)", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("this plugin can't inspect all processes of the node, so nothing is released: it needs all capabilities of process 1, "+
			"and SELinux or AppArmor may deny access (%v)", err)
	}
	return fmt.Sprintf("this plugin can't see the node's processes, so nothing is released: where the runtime has a PID namespace of its own, give it the host's; "+
		`where the node is itself a container, set "nested" in "gc" of "ipam" or in %s beside the plugin (%v)`, settingsFile, err)
}

// inUserNamespace reports whether this process's user IDs are not the machine's
// (user_namespaces(7)).
func inUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(text))
	return err == nil && (len(fields) != 3 || fields[0] != "0" || fields[1] != "0" || fields[2] != "4294967295")
}
