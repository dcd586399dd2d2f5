// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
)

const debugPath = "/debug/hostlocal-gc"

// Limits for clients, so that none keeps a goroutine for ever.
const (
	writeTime = 30 * time.Second
	// maxConns limits the connections of an address, and with them the agent's memory: one more closes
	// the one that has done nothing for longest, so that a health check is always let in. maxReports
	// limits what is written at the same time: a report is kept until its clients have read it.
	maxConns   = 256
	maxReports = 3
)

// A server serves one address.
type server struct {
	listener net.Listener
	handler  http.Handler
}

func (a *Agent) listen(ctx context.Context) (servers []server, _ error) {
	for _, s := range []struct {
		flag, address, what string
		handler             http.Handler
	}{
		{"--listen", a.opts.Listen, "Serving HTTP", a.handler()},
		{"--metrics-listen", a.opts.MetricsListen, "Serving metrics", a.metricsHandler()},
	} {
		if s.address == "" {
			continue
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address)
		if err != nil {
			return nil, fmt.Errorf("serving HTTP: %w; %s says where", err, s.flag) // the process ends
		}
		a.opts.Passes.Logger.Info(s.what, "address", l.Addr().String())
		servers = append(servers, server{l, s.handler})
	}
	return servers, nil
}

// serve answers until ctx ends. It closes all connections then.
func (s server) serve(ctx context.Context) error {
	h := &http.Server{
		Handler: s.handler, ConnState: new(connections).note, MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: writeTime, IdleTimeout: time.Minute,
	}
	defer context.AfterFunc(ctx, func() { _ = h.Close() })()
	if err := h.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	return nil
}

// connections are the open ones, the one that did something last at the end.
type connections struct {
	mu  sync.Mutex // guards all
	all []net.Conn
}

// note is called when a connection begins, reads a request, has answered it, or ends.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.all)
	c.all = slices.DeleteFunc(c.all, func(other net.Conn) bool { return other == conn })
	if closed := len(c.all) == before && state != http.StateNew; closed || state == http.StateClosed {
		return
	}
	if c.all = append(c.all, conn); len(c.all) > maxConns {
		_ = c.all[0].Close() // the server notices
		c.all = c.all[1:]
	}
}

// handler serves all endpoints. They are read-only.
func (a *Agent) handler() http.Handler {
	mux := a.harmless()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, debugPath, http.StatusFound)
	})
	mux.Handle("GET "+debugPath, atOnce(maxReports, a.debug))
	return a.checkHost(mux)
}

// metricsHandler serves the endpoints that name no pod. The API server's proxy for pods leaves the name
// in the request by which its client called the API server (k8s.io/apimachinery 0.37,
// pkg/util/proxy/upgradeaware.go: UseLocationHost), so the node's state is for requests with any name.
func (a *Agent) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", a.checkHost(a.harmless()))
	mux.HandleFunc("GET "+NodePath, a.node)
	return mux
}

func (a *Agent) harmless() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.healthy)
	mux.HandleFunc("GET /readyz", a.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry}))
	mux.HandleFunc("GET "+NodePath, a.node)
	return mux
}

// atOnce limits the number of concurrent requests, and refuses others.
func atOnce(most int, next http.HandlerFunc) http.HandlerFunc {
	busy := make(chan struct{}, most)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
			next(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests for the report; retry in a second", http.StatusServiceUnavailable)
		}
	}
}

// checkHost sets the headers of every answer, and refuses requests for other host names. Without it
// a page of another site could read the answers in a browser once that site's name resolves to
// loopback (DNS rebinding).
func (a *Agent) checkHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		if !a.meant(r.Host) {
			http.Error(w, "this server has another name; use its address, or localhost", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// meant reports whether a Host header names this server: an address, which no DNS name resolved to,
// or a known name.
func (a *Agent) meant(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost" || host == a.opts.Node && host != ""
}

// debug serves the report of the last pass: as a page if the client names HTML, as browsers do, or asks
// for ?format=html, and else as JSON.
func (a *Agent) debug(w http.ResponseWriter, r *http.Request) {
	head, last, now := w.Header(), a.last.Load(), time.Now()
	head.Set("Cache-Control", "no-store")
	head.Set("Vary", "Accept")
	html := strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "html")
	if format := r.URL.Query().Get("format"); format != "" {
		html = format == "html"
	}
	var err error
	switch {
	case html:
		var body bytes.Buffer // so that an error leaves no partial answer
		if err = a.writePage(&body, last, now); err != nil {
			http.Error(w, "writing the last report: "+err.Error(), http.StatusInternalServerError)
			break
		}
		head.Set("Content-Type", "text/html; charset=utf-8")
		head.Set("Content-Security-Policy", contentPolicy)
		_, err = body.WriteTo(w)
	case last.passes == 0:
		http.Error(w, "no pass has ended yet", http.StatusServiceUnavailable)
	default:
		head.Set("Content-Type", "application/json")
		out := reportjson.Report{Report: &last.report, Cause: func(e *gc.Entry) string { return string(last.causes.Of(e)) }}
		if all := a.all(last, now); len(all) > 0 {
			out.Findings = all
		}
		err = out.Write(w)
	}
	if err != nil { // the client may be gone
		a.opts.Passes.Logger.V(1).Info("The last report was cut short", "error", err.Error())
	}
}

// healthy says that the process answers. A restart would repair neither a source nor a disk that
// fails, and would lose what was learned of the node's clock (R5).
func (a *Agent) healthy(w http.ResponseWriter, _ *http.Request) { a.writeFindings(w, "ok") }

// ready says whether each source has answered, and not against the settings. A setting that is wrong then stops a
// rollout. What fails later does not: the agent waits for it, and so would the next one.
func (a *Agent) ready(w http.ResponseWriter, r *http.Request) {
	if a.last.Load().ready {
		a.healthy(w, r)
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	a.writeFindings(w, "waiting for a pass in which each source answers, and live pods' addresses have their network's directory")
}

// writeFindings writes a line, and the findings of the node's state, one a line.
func (a *Agent) writeFindings(w io.Writer, line string) {
	fmt.Fprintln(w, line)
	for _, f := range a.nodeState(time.Now()).Findings {
		fmt.Fprintln(w, f.Line())
	}
}
