// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strconv"
	"strings"
)

// maxPrintable is the most that a report has of a text that a tenant chose, in
// bytes before it is quoted.
const maxPrintable = 128

// printable is a text that a tenant chose, such as the name of a process or a
// mount point, as a report can have it: cut, and quoted unless it is a plain word.
// Nothing in it can pass for the report's own words.
func printable(text string) string {
	cut := ""
	if len(text) > maxPrintable {
		text, cut = text[:maxPrintable], "..."
	}
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%="
	if text == "" || strings.Trim(text, plain) != "" {
		text = strconv.QuoteToASCII(text)
	}
	return text + cut
}
