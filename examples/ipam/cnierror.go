// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// errInternal is the code of errors without a code in CNI (cni, pkg/types).
const errInternal = 999

// printError prints an error of this plugin in CNI's format (CNI spec, "Error"), and returns the
// exit code.
func printError(msg, details string) int {
	text, err := json.MarshalIndent(struct {
		Code    int    `json:"code"`
		Msg     string `json:"msg"`
		Details string `json:"details,omitempty"`
	}{errInternal, msg, details}, "", "    ")
	if err != nil {
		text = fmt.Appendf(nil, `{"code":%d,"msg":"printing an error of hostlocal-gc-ipam"}`, errInternal)
	}
	_, _ = os.Stdout.Write(append(text, '\n')) // an error can't be reported
	return 1
}
