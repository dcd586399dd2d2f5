// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// errInternal is the code of errors that CNI has no other for (cni, pkg/types).
const errInternal = 999

// printError prints an error of this plugin's own, in the form that CNI demands
// (CNI spec, "Error"), and returns the exit code.
func printError(msg, details string) int {
	text, err := json.MarshalIndent(struct {
		Code    int    `json:"code"`
		Msg     string `json:"msg"`
		Details string `json:"details,omitempty"`
	}{errInternal, msg, details}, "", "    ")
	if err != nil {
		text = fmt.Appendf(nil, `{"code":%d,"msg":"printing an error of hostlocal-gc-ipam"}`, errInternal)
	}
	_, _ = os.Stdout.Write(append(text, '\n')) // nobody is left to be told
	return 1
}
