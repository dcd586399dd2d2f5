// SPDX-License-Identifier: Apache-2.0

package gc

import "encoding/json"

// schemaVersion is that of a report's JSON. A field that is added leaves it as it
// is; one that goes or changes its meaning raises it.
const schemaVersion = 1

// MarshalJSON returns the report as one object. Its fields and the words of
// verdicts and reasons are a contract, by schemaVersion. Times are RFC 3339,
// durations nanoseconds, lists are sorted as in the report; what is empty or not
// known is left out.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	return json.Marshal(struct {
		SchemaVersion int `json:"schemaVersion"`
		plain
		Counts map[Verdict]int `json:"counts"`
		Error  string          `json:"error,omitempty"`
	}{schemaVersion, plain(r), r.Counts(), text(r.Err)})
}

// MarshalJSON adds to an entry's fields the rule behind it, its reason for
// people, and its error.
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

// text is an error's, or empty.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
