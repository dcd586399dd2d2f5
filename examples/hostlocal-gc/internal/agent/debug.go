// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/reportjson"
)

const debugPath = "/debug/hostlocal-gc"

// debug serves the report of the last pass: as a page if the client prefers HTML, as browsers do,
// or asks for ?format=html, and else as JSON.
func (a *Agent) debug(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer // so that an error leaves no partial answer
	var err error
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
	switch format := r.URL.Query().Get("format"); {
	case format == "json", format == "" && !prefersHTML(r.Header.Values("Accept")):
		last := a.statuses.get()
		if last.passes == 0 {
			http.Error(w, "no pass has ended yet", http.StatusServiceUnavailable)
			return
		}
		h.Set("Content-Type", "application/json")
		out := reportjson.Report{Report: &last.report}
		if all := append(last.found, a.ofAgent(&last, time.Now())...); len(all) > 0 {
			out.Findings = all
		}
		err = reportjson.Write(&body, out)
	case format == "html", format == "":
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", contentPolicy())
		err = a.writePage(&body, time.Now())
	default:
		http.Error(w, "there is no such format: give json or html", http.StatusBadRequest)
		return
	}
	if err != nil {
		a.opts.Passes.Logger.Error(err, "Writing the last report")
		http.Error(w, "writing the last report: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = body.WriteTo(w) // the client may be gone
}

// prefersHTML reports whether a client names HTML and does not prefer JSON. Clients that accept
// anything are programs.
func prefersHTML(accept []string) bool {
	var html, js float64
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		switch kind {
		case "text/html", "application/xhtml+xml":
			html = max(html, q)
		case "application/json":
			js = max(js, q)
		}
	}
	return html > 0 && html >= js
}
