// SPDX-License-Identifier: Apache-2.0

// Package reportjson writes for programs what a pass found, the same from the command
// and from the agent. testdata/report.schema.json of the command says what it may hold.
package reportjson

import (
	"encoding/json"
	"io"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// SchemaVersion is raised where a field goes or changes its meaning.
const SchemaVersion = 1

// A Report is what a pass found, as JSON. Where no source was asked (Looks is 0) nothing
// was judged, and its reservations have neither verdict nor reason.
type Report struct{ *gc.Report }

// MarshalJSON returns one object.
func (r Report) MarshalJSON() ([]byte, error) {
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

// Write writes a value as people can read it, too.
func Write(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
