// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/node"
)

// InFlags returns a text of the library in words of the command: flags in place of its names of options.
var InFlags = strings.NewReplacer(
	"making a reconciler: ", "", "AllowForeign has ", "--allow-foreign has ", "MinAge is ", "--min-age is ",
	"StartingFor is ", "--starting-for is ",
	"StartupTimeout is ", "--startup-timeout is ",
	"RuntimeRequestTimeout is ", "--runtime-request-timeout is ", "SourceTimeout is ", "--timeout is ", "Interval is ", "--interval is ",
	"wrap it in podsource.AllowEmpty", "--allow-empty says so", "say so with Nested", "say so with --source netns:nested",
	"Options.Config is not set", "there is no --kubeconfig", "hostPID, or Proc must be the path of the node's procfs.", "hostPID.",
).Replace

// LeftOut returns why a source was left out, or its note if it was not.
func LeftOut(note string) (text string, isSo bool) {
	text, isSo = strings.CutPrefix(InFlags(note), node.LeftOut)
	return term.Clean(text), isSo
}

// Answered reports whether a source gave an answer. One that was left out did not.
func Answered(r *gc.Report, source string) bool {
	return slices.ContainsFunc(r.Sources, func(s gc.SourceReport) bool {
		_, left := LeftOut(s.Note)
		return s.Name == source && s.Error == "" && !left
	})
}

// nodeShows reports whether the kernel and libcni's cache answered.
func nodeShows(r *gc.Report) bool { return Answered(r, "netns") && Answered(r, "cnicache") }

// lacks reports whether one of these two has a note on what it does not show.
func lacks(s gc.SourceReport) bool {
	return s.Note != "" && (s.Name == "netns" || s.Name == "cnicache")
}

// Sources says in one line what each source contributed, and in another one which were left out. It is
// empty if none was asked. An age below a minute is not said, and errors are told elsewhere.
func Sources(r *gc.Report) (lines []string) {
	var said, absent []string
	for _, s := range r.Sources {
		note, left := LeftOut(s.Note)
		text := term.Count(s.Entries, "entry")
		if note != "" {
			text += "; " + note
		}
		switch {
		case left:
			absent = append(absent, s.Name+" ("+note+")")
			continue
		case s.Error != "":
			text = "no answer"
		case s.AsOf.After(r.Started.Add(time.Minute)):
			text += ", dated " + term.Age(s.AsOf, r.Started) + " in the future"
		case !s.AsOf.IsZero() && s.AsOf.Before(r.Started.Add(-time.Minute)):
			text += ", " + term.Age(r.Started, s.AsOf) + " old"
		}
		said = append(said, s.Name+" ("+text+")")
	}
	text := "Sources: "
	if r.Looks > 1 {
		text = "Sources, asked twice: "
	}
	if said != nil {
		lines = append(lines, text+strings.Join(said, ", ")+".")
	}
	if absent != nil {
		lines = append(lines, "Left out: "+strings.Join(absent, ", ")+".")
	}
	return lines
}

// Owner names the container that a file names, cut as other tools cut it, or says what the file has instead.
func Owner(e *gc.Entry) string {
	if e.Owner != hostlocal.Owned {
		return "(" + e.Owner.String() + ")"
	}
	return term.ID(e.ContainerID)
}

// NotJudged replaces the verdict of entries that were not judged.
const NotJudged = "not judged"

// Verdict returns the word of an entry's verdict.
func Verdict(e *gc.Entry) string {
	if e.Reason == gc.SourceFailed {
		return NotJudged
	}
	return e.Verdict.String()
}

// Counts counts entries by verdict, as in "2 reservations: 1 in-use, 1 leaked".
func Counts(screen term.Screen, entries []*gc.Entry) string {
	counts := make(map[string]int)
	for _, e := range entries {
		counts[Verdict(e)]++
	}
	var said []string
	for v := gc.InUse; v <= gc.Failed; v++ {
		if n := counts[v.String()]; n > 0 {
			said = append(said, screen.Paint(term.VerdictStyle(v), fmt.Sprintf("%d %s", n, v)))
		}
	}
	if n := counts[NotJudged]; n > 0 {
		said = append(said, fmt.Sprintf("%d %s", n, NotJudged))
	}
	text := term.Count(len(entries), "reservation")
	if said != nil {
		text += ": " + strings.Join(said, ", ")
	}
	return text
}
