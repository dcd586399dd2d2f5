// SPDX-License-Identifier: Apache-2.0

package term

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// ID shortens a container ID to 12 digits, as crictl and docker do, or returns "-" for none. It keeps a prefix before the last 64
// characters, such as nerdctl's "default-", which does not identify the container.
func ID(id string) string {
	if id == "" {
		return "-"
	}
	return id[:min(len(id), max(0, len(id)-64)+12)]
}

// Age returns how long before now t was, in its two largest units: "3d4h", "7m", "20s". A future t
// has a minus sign, and a zero t is "-".
func Age(now, t time.Time) string {
	const day = 24 * time.Hour
	d, text := now.Sub(t), ""
	switch {
	case t.IsZero():
		return "-"
	case d <= -time.Second:
		return "-" + Age(t, now)
	case d >= day:
		text, d = fmt.Sprintf("%dd", d/day), (d % day).Truncate(time.Hour)
	case d >= time.Hour:
		d = d.Truncate(time.Minute)
	}
	if d > 0 || text == "" {
		text += max(0, d.Truncate(time.Second)).String()
	}
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Clean makes text safe for one line of a terminal: a control character in a name or error of
// another program could move the cursor.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return '?'
	}, text)
}

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
