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

// errorMessage returns the message of a delegate's error.
func errorMessage(text []byte) string {
	var e struct{ Msg string }
	if err := json.Unmarshal(text, &e); err != nil {
		return ""
	}
	return e.Msg
}

// withDetails is a delegate's error with more in its details. Everything else in
// it stays as it is, so that who looks for the message finds it.
func withDetails(text []byte, details string) []byte {
	var e map[string]json.RawMessage
	if err := json.Unmarshal(text, &e); err != nil || e == nil || details == "" {
		return text
	}
	var before string
	if err := json.Unmarshal(e["details"], &before); err == nil && before != "" {
		details = before + "; " + details
	}
	quoted, err := json.Marshal(details)
	if err != nil {
		return text
	}
	e["details"] = quoted
	whole, err := json.MarshalIndent(e, "", "    ")
	if err != nil {
		return text
	}
	return append(whole, '\n')
}
