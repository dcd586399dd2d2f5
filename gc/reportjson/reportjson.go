// SPDX-License-Identifier: Apache-2.0

// Package reportjson writes the report of a pass as JSON. Fields and the words of verdicts and reasons
// are stable for each SchemaVersion. Times are in RFC 3339, durations in nanoseconds, lists in the order
// of the report. Fields that are empty or unknown are left out.
package reportjson

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// SchemaVersion is the version of the JSON. A new field does not change it; a field that is removed or
// changes its meaning does.
const SchemaVersion = 1

// A Report is a report with what the caller knows beside it. If no source was asked (Looks is 0), its
// reservations have neither verdict nor reason.
type Report struct {
	*gc.Report
	// Findings is a field of its own, and left out if it is nil.
	Findings any
	// Cause returns why a leak leaked, and nothing for other entries. Nil returns nothing.
	Cause func(*gc.Entry) string
}

// Write writes the report as one indented object, one reservation at a time, since all of a large node
// would take a hundred megabytes. It stops at the first error, which is that of w.
func (r Report) Write(w io.Writer) error {
	type plain gc.Report
	head := struct {
		SchemaVersion int                `json:"schemaVersion"`
		Error         string             `json:"error,omitempty"`
		Counts        map[gc.Verdict]int `json:"counts,omitzero"`
		plain
		Duplicates []claim `json:"duplicates,omitempty"`
		Unreserved []claim `json:"unreserved,omitempty"`
		Findings   any     `json:"findings,omitempty"`
	}{SchemaVersion, text(r.Err), nil, plain(*r.Report), claims(r.Report.Duplicates), claims(r.Report.Unreserved), r.Findings}
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
		one, err := json.MarshalIndent(r.entry(&r.Reservations[i]), "    ", "  ")
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

// MarshalJSON returns what Write writes.
func (r Report) MarshalJSON() ([]byte, error) {
	var all bytes.Buffer
	err := r.Write(&all)
	return all.Bytes(), err
}

type entry struct {
	*hostlocal.Reservation
	Pod     *pod   `json:"pod,omitempty"`
	Verdict string `json:"verdict,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Text    string `json:"text,omitempty"`
	Cause   string `json:"cause,omitempty"`
	Error   string `json:"error,omitempty"`
}

func (r Report) entry(e *gc.Entry) entry {
	out := entry{Reservation: e.Reservation, Error: text(e.Err)}
	if r.Looks == 0 {
		return out
	}
	out.Verdict, out.Reason, out.Rule, out.Text = e.Verdict.String(), e.Reason.String(), e.Reason.Rule(), e.Reason.Text()
	if e.Pod != nil {
		out.Pod = &pod{e.Pod, e.Pod.From()}
	}
	if r.Cause != nil {
		out.Cause = r.Cause(e)
	}
	return out
}

type pod struct {
	*gc.Pod
	From string `json:"from,omitempty"`
}

type claim struct {
	IP   netip.Addr `json:"ip"`
	Pods []pod      `json:"pods"`
}

func claims(all []gc.Claim) (out []claim) {
	for _, c := range all {
		one := claim{IP: c.IP}
		for _, p := range c.Pods {
			one.Pods = append(one.Pods, pod{p, p.From()})
		}
		out = append(out, one)
	}
	return out
}

// text returns the text of an error, or nothing for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
