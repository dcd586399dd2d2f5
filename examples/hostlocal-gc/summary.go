// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// summary is the last line: all networks in one sentence, and what was done.
func (a *app) summary(done results, v view) string {
	return a.screen.Fold(a.sentence(done, v)) + "\n"
}

func (a *app) sentence(done results, v view) string {
	if len(done.reports) == 0 {
		return fmt.Sprintf("No network has a folder in %s.", a.flags.dataDir)
	}
	counts := make(map[gc.Verdict]int)
	total := 0
	for i := range done.reports {
		total += len(done.reports[i].Reservations)
		for verdict, n := range done.reports[i].Counts() {
			counts[verdict] += n
		}
	}
	var out strings.Builder
	if len(done.reports) == 1 {
		fmt.Fprintf(&out, "%s, ", done.reports[0].Network)
	} else {
		fmt.Fprintf(&out, "%d networks, ", len(done.reports))
	}
	out.WriteString(count(total, "reservation"))
	if !done.judged {
		return out.String() + ": not judged."
	}
	separator := ": "
	for _, verdict := range gc.Verdicts() {
		if n := counts[verdict]; n > 0 {
			out.WriteString(separator + a.screen.Paint(term.VerdictStyle(verdict), fmt.Sprintf("%d %s", n, verdict)))
			separator = ", "
		}
	}
	out.WriteByte('.')
	if v.tail != "" {
		out.WriteString(" " + v.tail)
	}
	if v.released {
		out.WriteString(lockTime(done.reports))
	}
	return out.String() + nextLook(done.reports)
}

// lockTime says for how long ADDs may have had to wait.
func lockTime(reports []gc.Report) string {
	var held, longest time.Duration
	for i := range reports {
		held += reports[i].LockHeld
		longest = max(longest, reports[i].LongestHold)
	}
	if held == 0 {
		return " The plugin's lock was not needed."
	}
	return fmt.Sprintf(" The plugin's lock was held for %s, at most %s at once.",
		held.Round(time.Microsecond), longest.Round(time.Microsecond))
}

// nextLook says when a second look is worth it, counted from the passes, which
// took no time to speak of.
func nextLook(reports []gc.Report) string {
	var next, started time.Time
	for i := range reports {
		if t := reports[i].NextCheck; !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next, started = t, reports[i].Started
		}
	}
	if next.IsZero() {
		return ""
	}
	return fmt.Sprintf(" A second look is worth it in %s.", term.Age(next, started))
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
