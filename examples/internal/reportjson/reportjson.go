// SPDX-License-Identifier: Apache-2.0

// Package reportjson writes a pass's report as JSON, for the command and the agent. The command's
// testdata/report.schema.json is its schema.
package reportjson

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// SchemaVersion is incremented when a field is removed or changes its meaning.
const SchemaVersion = 1

// A Report is a pass's report as JSON, with the agent's findings if there are any. If no source was
// asked (Looks is 0), its reservations have neither verdict nor reason.
type Report struct {
	*gc.Report
	Findings any
	// Cause returns why a leak leaked, and nothing for other entries. Nil returns nothing.
	Cause func(*gc.Entry) string
}

// A caused entry has a cause.
type caused struct {
	*gc.Entry
	cause string
}

func (c caused) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(c.Entry)
	if err != nil || c.cause == "" {
		return text, err
	}
	return fmt.Appendf(text[:len(text)-1], `,"cause":%q}`, c.cause), nil
}

// Write writes the report as one indented object, one reservation at a time: those of a large node
// would take a hundred megabytes. It stops at the first error.
func (r Report) Write(w io.Writer) error {
	type plain gc.Report
	head := struct {
		SchemaVersion int                `json:"schemaVersion"`
		Error         string             `json:"error,omitempty"`
		Counts        map[gc.Verdict]int `json:"counts,omitzero"`
		plain
		Findings any `json:"findings,omitempty"`
	}{SchemaVersion: SchemaVersion, Error: text(r.Err), plain: plain(*r.Report), Findings: r.Findings}
	if head.Reservations = nil; r.Looks > 0 {
		head.Counts = r.Counts()
	}
	top, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return err
	}
	out, separator, end := bufio.NewWriter(w), ",\n  \"reservations\": [", "\n}\n"
	_, _ = out.Write(bytes.TrimSuffix(top, []byte("\n}"))) // Flush returns the error of any Write
	for i := range r.Reservations {
		one, err := json.MarshalIndent(r.entry(i), "    ", "  ")
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n    %s", separator, one); err != nil {
			return err
		}
		separator, end = ",", "\n  ]\n}\n"
	}
	_, _ = out.WriteString(end)
	return out.Flush()
}

// entry returns the JSON of a reservation.
func (r Report) entry(i int) any {
	e := &r.Reservations[i]
	switch {
	case r.Looks > 0 && r.Cause != nil:
		return caused{e, r.Cause(e)}
	case r.Looks > 0:
		return e
	}
	return struct {
		*hostlocal.Reservation
		Error string `json:"error,omitempty"`
	}{e.Reservation, text(e.Err)}
}

// MarshalJSON returns what Write writes.
func (r Report) MarshalJSON() ([]byte, error) {
	var all bytes.Buffer
	err := r.Write(&all)
	return all.Bytes(), err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Write writes a value as indented JSON.
func Write(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
