// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// A view is what a command shows of its reports.
type view struct {
	inUse    bool   // also what is in use
	released bool   // something may have been released
	tail     string // ends the summary
}

// print writes the reports to stdout in the format that -o asks for.
func (a *app) print(done results, v view) error {
	if a.flags.format == formatJSON {
		return a.printJSON(done.reports)
	}
	var out strings.Builder
	for i := range done.reports {
		a.showReport(&out, &done.reports[i], done.judged, len(done.reports) > 1, v)
	}
	out.WriteString(a.duplicates(done.reports))
	out.WriteString(a.unreserved(done.reports))
	out.WriteString(a.summary(done, v))
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

// printJSON writes an array with one object for each network.
func (a *app) printJSON(reports []gc.Report) error {
	if reports == nil {
		reports = []gc.Report{}
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(reports)
}
