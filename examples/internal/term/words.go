// SPDX-License-Identifier: Apache-2.0

package term

import (
	"fmt"
	"strings"
)

// Count formats a number with its noun, such as "1 entry" and "3 addresses".
func Count(n int, noun string) string {
	stem, isY := strings.CutSuffix(noun, "y")
	switch {
	case n == 1:
		return "1 " + noun
	case isY:
		return fmt.Sprintf("%d %sies", n, stem)
	case strings.HasSuffix(noun, "s"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Few joins the first few words, and counts the others.
func Few(words []string, few int) string {
	if more := len(words) - few; more > 1 { // counting one word would be as long as the word
		words = append(words[:few:few], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// Dash returns the text, or a dash if it is empty.
func Dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
