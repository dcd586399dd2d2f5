// SPDX-License-Identifier: Apache-2.0

package main

import "encoding/json"

// errorMessage returns the message of a delegate's error.
func errorMessage(text []byte) string {
	var e struct{ Msg string }
	if err := json.Unmarshal(text, &e); err != nil {
		return ""
	}
	return e.Msg
}

// withDetails returns a delegate's error with more details. All other fields stay, since runtimes
// search for the message.
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
