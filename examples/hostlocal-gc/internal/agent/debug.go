// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
)

const debugPath = "/debug/hostlocal-gc"

// debug serves the report of the last pass: as a page if the client prefers HTML, as browsers do,
// or asks for ?format=html, and else as JSON.
func (a *Agent) debug() http.Handler {
	reports, pages := atOnce(maxReports, a.report), atOnce(maxPages, a.page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Vary", "Accept")
		switch format := r.URL.Query().Get("format"); {
		case format == "json", format == "" && !prefersHTML(r.Header.Values("Accept")):
			reports(w, r)
		case format == "html", format == "":
			pages(w, r)
		default:
			http.Error(w, "there is no such format: give json or html", http.StatusBadRequest)
		}
	})
}

// report writes the JSON.
func (a *Agent) report(w http.ResponseWriter, _ *http.Request) {
	last := a.statuses.get()
	if last.passes == 0 {
		http.Error(w, "no pass has ended yet", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := reportjson.Report{Report: &last.report, Cause: func(e *gc.Entry) string { return string(last.causes.Of(e)) }}
	if all := a.all(&last, time.Now()); len(all) > 0 {
		out.Findings = all
	}
	if err := out.Write(w); err != nil { // the client may be gone
		a.opts.Passes.Logger.V(1).Info("The last report was cut short", "error", err.Error())
	}
}

// page writes the page.
func (a *Agent) page(w http.ResponseWriter, _ *http.Request) {
	var body bytes.Buffer // so that an error leaves no partial answer
	if err := a.writePage(&body, time.Now()); err != nil {
		a.opts.Passes.Logger.Error(err, "Writing the last report")
		http.Error(w, "writing the last report: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", contentPolicy())
	_, _ = body.WriteTo(w) // the client may be gone
}

// prefersHTML reports whether a client names HTML, as browsers do. Clients that accept anything are programs.
func prefersHTML(accept []string) bool { return strings.Contains(strings.Join(accept, ","), "html") }

// healthy says that the process answers. A restart would repair neither a source nor a disk that
// fails, and would lose what was learned of the node's clock (R5).
func (a *Agent) healthy(detailed bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
		a.findings(w, detailed)
	}
}

// ready says whether each source has answered, and not against the settings. A setting that is wrong then stops a
// rollout. What fails later does not: the agent waits for it, and so would the next one. Only detailed answers
// have the error, which may name a pod.
func (a *Agent) ready(detailed bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if last := a.statuses.get(); !last.ready {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "waiting for a pass in which each source answers, and live pods' addresses have their network's directory")
			if detailed && last.err != nil {
				fmt.Fprintln(w, last.err)
			}
			a.findings(w, detailed)
			return
		}
		a.healthy(detailed)(w, r)
	}
}

// findings lists the findings, one a line. Only detailed ones have what a tenant may have named.
func (a *Agent) findings(w io.Writer, detailed bool) {
	last := a.statuses.get()
	for _, f := range a.all(&last, time.Now()) {
		if !detailed {
			f.Text = nameless(f.Text) // before the line is cut
		}
		fmt.Fprintln(w, f.Line())
	}
}
