// SPDX-License-Identifier: Apache-2.0

// Package reportjson writes a pass's report as JSON, for the command and the agent. The command's
// testdata/report.schema.json is its schema.
package reportjson

import (
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
}

// MarshalJSON returns one object.
func (r Report) MarshalJSON() ([]byte, error) {
	text, err := r.marshal()
	if err != nil || r.Findings == nil {
		return text, err
	}
	findings, err := json.Marshal(r.Findings)
	return fmt.Appendf(text[:len(text)-1], `,"findings":%s}`, findings), err
}

func (r Report) marshal() ([]byte, error) {
	if r.Looks > 0 {
		return r.Report.MarshalJSON()
	}
	type unjudged struct {
		*hostlocal.Reservation
		Error string `json:"error,omitempty"`
	}
	type plain gc.Report
	out := struct {
		SchemaVersion int `json:"schemaVersion"`
		plain
		Reservations []unjudged `json:"reservations,omitempty"`
		Error        string     `json:"error,omitempty"`
	}{SchemaVersion: SchemaVersion, plain: plain(*r.Report), Error: text(r.Err)}
	for i := range r.Report.Reservations {
		e := r.Report.Reservations[i].Reservation
		out.Reservations = append(out.Reservations, unjudged{e, text(e.Err)})
	}
	return json.Marshal(out)
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
