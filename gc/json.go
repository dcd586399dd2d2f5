// SPDX-License-Identifier: Apache-2.0

package gc

import "encoding/json"

// schemaVersion is the version of a report's JSON. A new field does not change it; a
// field that is removed or changes its meaning does.
const schemaVersion = 1

// MarshalJSON returns the report as one object. Its fields and the words of verdicts and
// reasons are stable for each schemaVersion. Times are in RFC 3339, durations in
// nanoseconds. Lists are in the order of the report. Fields that are empty or unknown are
// left out.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	return json.Marshal(struct {
		SchemaVersion int             `json:"schemaVersion"`
		Error         string          `json:"error,omitempty"`
		Counts        map[Verdict]int `json:"counts"`
		plain
	}{schemaVersion, text(r.Err), r.Counts(), plain(r)})
}

// MarshalJSON adds what From returns to the pod's fields.
func (p Pod) MarshalJSON() ([]byte, error) {
	type plain Pod
	return json.Marshal(struct {
		plain
		From       string `json:"from,omitempty"`
		NotRunning bool   `json:"notRunning,omitempty"` // after From
	}{plain(p), p.From(), p.NotRunning})
}

// MarshalJSON adds the rule, the reason's text and the error to the entry's fields.
func (e Entry) MarshalJSON() ([]byte, error) {
	type plain Entry
	out := struct {
		plain
		Rule  string `json:"rule"`
		Text  string `json:"text"`
		Error string `json:"error,omitempty"`
	}{plain: plain(e), Rule: e.Reason.Rule(), Text: e.Reason.Text()}
	if e.Reservation != nil {
		out.Error = text(e.Err)
	}
	return json.Marshal(out)
}

// text returns the text of an error, or nothing for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
