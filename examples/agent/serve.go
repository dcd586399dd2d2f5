// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds for clients, so that none keeps a goroutine for ever.
const (
	headerTime = 5 * time.Second
	readTime   = 10 * time.Second
	writeTime  = 30 * time.Second
	idleTime   = time.Minute
	maxHeader  = 16 << 10
	// graceTime is for answers that are under way when the agent ends. Whoever
	// hangs on its connection then loses it.
	graceTime = 300 * time.Millisecond
)

// listen opens the port, or returns nil where none is wanted.
func (a *agent) listen(ctx context.Context) (net.Listener, error) {
	if a.settings.listen == "" {
		return nil, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", a.settings.listen)
	if err != nil {
		return nil, fmt.Errorf("serving HTTP: %w; --listen says where", err)
	}
	a.log.Info("Serving HTTP", "address", l.Addr().String())
	return l, nil
}

// serve answers until ctx ends, and then soon ends itself.
func (a *agent) serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler:           a.handler(),
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
	}
	ended := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		defer cancel()
		if s.Shutdown(grace) != nil {
			_ = s.Close() // of the connections that are left; there is nobody to tell
		}
	})()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	<-ended
	return nil
}

// handler has the endpoints. They are read only.
func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, debugPath, http.StatusFound)
	})
	mux.HandleFunc("GET /healthz", a.healthy)
	mux.HandleFunc("GET /readyz", a.ready)
	mux.HandleFunc("GET "+debugPath, a.debug)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		mux.ServeHTTP(w, r)
	})
}
