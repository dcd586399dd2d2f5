// SPDX-License-Identifier: Apache-2.0

package term

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// idLength is what people compare of a container ID, as crictl and docker do.
const idLength = 12

// ID returns as much of a container ID as people need, or "-" for none. What comes
// before its last 64 characters, as "default-" of nerdctl's, says nothing of which
// container it is, and stays.
func ID(id string) string {
	if id == "" {
		return "-"
	}
	return id[:min(len(id), max(0, len(id)-64)+idLength)]
}

// Age returns how long before now t was, in its two largest units: "3d4h", "7m",
// "20s". What lies in the future has a minus sign, and a zero t is "-".
func Age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := now.Sub(t)
	if d <= -time.Second {
		return "-" + units(d.Abs())
	}
	return units(max(0, d))
}

// units cuts d to its two largest units, of which the second is left out when it
// is zero.
func units(d time.Duration) string {
	s := int64(d / time.Second)
	for _, u := range []struct {
		seconds  int64
		big      string
		fraction int64
		small    string
	}{
		{86400, "d", 3600, "h"},
		{3600, "h", 60, "m"},
		{60, "m", 1, "s"},
	} {
		if s < u.seconds {
			continue
		}
		text := fmt.Sprintf("%d%s", s/u.seconds, u.big)
		if rest := s % u.seconds / u.fraction; rest > 0 {
			text += fmt.Sprintf("%d%s", rest, u.small)
		}
		return text
	}
	return fmt.Sprintf("%ds", s)
}

// Clean makes text safe for one line of a terminal: names and errors come from
// other programs, and a control character among them could move the cursor.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return '?'
	}, text)
}

// columns returns how many columns text takes that was cleaned. Addresses, IDs and the
// names of pods are ASCII; wide and combining characters would be miscounted.
func columns(text string) int { return utf8.RuneCountInString(text) }
