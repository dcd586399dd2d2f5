// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strconv"
	"strings"
)

// maxPrintable is the length of a tenant's text in a report, in bytes before quoting.
const maxPrintable = 128

// printable makes a tenant's text, such as a command name or a mount point, safe for a
// report: it is cut, and quoted unless it is a plain word. So no part of it looks like
// the report's own text.
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
