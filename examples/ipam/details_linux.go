// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// errorOf returns an error in CNI's format. 100 is the first code for plugins (CNI spec).
func errorOf(msg string) []byte {
	text, _ := json.MarshalIndent(map[string]any{"code": 100, "msg": msg}, "", "    ") // it can be encoded
	return append(text, '\n')
}

// errorMessage returns the message of host-local's error.
func errorMessage(text []byte) string {
	var e struct{ Msg string }
	_ = json.Unmarshal(text, &e) // what is no error has no message
	return e.Msg
}

// withDetails returns host-local's error with more details. All other fields stay, since runtimes
// search for the message.
func withDetails(text []byte, said []string) []byte {
	var e map[string]json.RawMessage
	if err := json.Unmarshal(text, &e); err != nil || e == nil || len(said) == 0 {
		return text
	}
	details, before := "hostlocal-gc-ipam: "+strings.Join(said, "; "), ""
	if err := json.Unmarshal(e["details"], &before); err == nil && before != "" {
		details = before + "; " + details
	}
	e["details"], _ = json.Marshal(details)       // a string can be encoded
	whole, _ := json.MarshalIndent(e, "", "    ") // and what was decoded
	return append(whole, '\n')
}

// explain rewords an error of the kernel's source, which is written for agents, for users of the plugin.
func (r *request) explain(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("this plugin can't inspect all processes of the node, so nothing is released: it needs all capabilities of process 1, "+
			"rootless networks are not supported, and SELinux or AppArmor may deny access (%v)", err)
	case !errors.Is(err, errNoNode):
		return err.Error()
	case !r.conf.nested:
		return fmt.Sprintf("process 1, as this plugin sees it, is not the machine's, so the node's processes may not be seen, and nothing is released: "+
			`where the node is itself a container, set "nested" in "gc" of "ipam" or in %s beside the plugin; `+
			"where only the program that executes the plugin has a PID namespace of its own, give it the node's", settingsFile)
	}
	return fmt.Sprintf(`nothing shows that process 1, as this plugin sees it, is the node's, in spite of "nested", so nothing is released: `+
		"the runtime has not mounted CNI_NETNS (%s) for it alone, or its mount there is shared, and no process is in a container. "+
		"Give the program that executes the plugin the node's PID namespace", os.Getenv("CNI_NETNS"))
}
