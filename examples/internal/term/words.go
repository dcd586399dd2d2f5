// SPDX-License-Identifier: Apache-2.0

package term

import (
	"fmt"
	"strings"
)

// Count is a number with its noun, as in "1 entry" and "3 addresses".
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

// Few joins the first few words, and says how many more there are.
func Few(words []string, few int) string {
	if more := len(words) - few; more > 1 { // that there is one more takes as much room as that one
		words = append(words[:few:few], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// Dash is the text, or a dash where there is none.
func Dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
