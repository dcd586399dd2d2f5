// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits for clients, so that none keeps a goroutine for ever.
const (
	headerTime = 5 * time.Second
	readTime   = 10 * time.Second
	writeTime  = 30 * time.Second
	idleTime   = time.Minute
	maxHeader  = 16 << 10
	// maxConns limits the connections of an address, and with them the agent's memory: one more closes
	// the one that has done nothing for longest, so that a health check is always let in. maxReports
	// and maxPages limit what is written at the same time: a report is kept until its clients have
	// read it, and making the page of a large node takes tens of megabytes.
	maxConns   = 256
	maxReports = 3
	maxPages   = 1
	// graceTime is the time that open answers have when the agent ends. Then their connections are
	// closed.
	graceTime = 300 * time.Millisecond
)

// A server serves one address.
type server struct {
	listener net.Listener
	handler  http.Handler
}

// listen opens the addresses of the options.
func (a *Agent) listen(ctx context.Context) (servers []server, err error) {
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
			for _, opened := range servers {
				_ = opened.listener.Close()
			}
			return nil, fmt.Errorf("serving HTTP: %w; %s says where", err, s.flag)
		}
		a.opts.Passes.Logger.Info(s.what, "address", l.Addr().String())
		servers = append(servers, server{l, s.handler})
	}
	return servers, nil
}

// serve answers until ctx ends, and returns soon after.
func (s server) serve(ctx context.Context) error {
	h := &http.Server{
		Handler: s.handler, ConnState: new(connections).note,
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
	}
	ended := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		defer cancel()
		if h.Shutdown(grace) != nil {
			_ = h.Close() // closes the remaining connections
		}
	})()
	if err := h.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	<-ended
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
	mux := a.harmless(true)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, debugPath, http.StatusFound)
	})
	mux.Handle("GET "+debugPath, a.debug())
	return a.checkHost(mux)
}

// metricsHandler serves the endpoints that name no pod. The API server's proxy for pods leaves the name
// in the request by which its client called the API server (k8s.io/apimachinery 0.37,
// pkg/util/proxy/upgradeaware.go: UseLocationHost), so the node's state is for requests with any name.
func (a *Agent) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", a.checkHost(a.harmless(false)))
	mux.HandleFunc("GET "+NodePath, a.node)
	return mux
}

func (a *Agent) harmless(detailed bool) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.healthy(detailed))
	mux.HandleFunc("GET /readyz", a.ready(detailed))
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
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	listen, _, _ := net.SplitHostPort(a.opts.Listen)
	metrics, _, _ := net.SplitHostPort(a.opts.MetricsListen)
	switch host {
	case "":
		return false
	case "localhost", listen, metrics, a.opts.Node:
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}
