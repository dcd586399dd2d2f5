// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
)

// A view selects what a command shows of a report.
type view struct {
	all      bool   // also what is in use or was not judged
	released bool   // something may have been released
	tail     string // ends the summary
}

// print writes a result to stdout in the format that -o asks for.
func (a *app) print(r *result, v view) error {
	if a.flags.format == formatJSON {
		return a.printJSON(r)
	}
	if nothingListed := len(r.Networks) == 0 && r.Err != nil; nothingListed {
		return nil // the error says why
	}
	var out strings.Builder
	for _, n := range r.Networks {
		if !slices.Contains(r.Missing, n) && (r.judged || v.all) {
			a.showNetwork(&out, r, n, v)
		}
	}
	out.WriteString(a.attention(r))
	out.WriteString(a.summary(r, v))
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

// printJSON writes the report as one object.
func (a *app) printJSON(r *result) error {
	cause := func(e *gc.Entry) string { return string(r.causes.Of(e)) }
	return reportjson.Report{Report: &r.Report, Cause: cause}.Write(a.stdout)
}

// writeJSON writes a value as indented JSON.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
