// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/keymutex"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/logs"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	socket, stateDir, dataDir string
	networks, existing        []string
	gcMinAge, timeout         time.Duration
	verbose                   int
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve --network NAME [flags]",
		Short: "Release leaked addresses, and then serve CNI requests",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return o.run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.socket, "socket", defaultSocket, "unix socket to listen on")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/cniserver", "directory of the record")
	f.StringVar(&o.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data directory")
	f.StringArrayVar(&o.networks, "network", nil, "network to serve; no other server may serve its ADDs (repeatable)")
	f.StringArrayVar(&o.existing, "existing", nil,
		"source of the existing attachments when there is no record yet: KIND[:ARG] as for --source of hostlocal-gc (repeatable, united)")
	f.DurationVar(&o.gcMinAge, "gc-min-age", gc.DefaultMinAge,
		"a GC detaches no attachment younger than this, since the runtime may have made its list before the ADD ended; 0: no minimum age")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "time limit of a request, and again of undoing an ADD that failed; waiting for other requests does not count")
	f.IntVarP(&o.verbose, "verbose", "v", 0, "log level, on stderr")
	_ = cmd.MarkFlagRequired("network") // it exists
	return cmd
}

// run starts up and serves until ctx ends. The order of the start matters: wait for the
// delegates of a server that was killed; open the record, or write the first one; finish
// interrupted requests; forget attachments whose namespaces are gone; release leaked
// addresses; listen.
func (o *serveOptions) run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(o.stateDir, "intents"), 0o700); err != nil {
		return fmt.Errorf("making the directory of the intents: %w", err)
	}
	started, cancel := context.WithTimeout(ctx, 2*o.timeout)
	defer cancel()
	if err := acquireLock(started, filepath.Join(o.stateDir, "serving.lock"), logs.New(os.Stderr, logs.Text, o.verbose)); err != nil {
		return err
	}
	s, err := o.newServer()
	if err != nil {
		return err
	}
	defer func() { _ = s.record.Close() }() // each change is already on the disk
	if err := s.start(started, o.existing); err != nil {
		return err
	}
	go func() { _ = s.loop.Start(ctx) }() // the error is always nil; a pass may be killed at any time
	return s.listen(ctx, o.socket)
}

func (o *serveOptions) newServer() (s *server, err error) {
	s = &server{
		store: hostlocal.New(o.dataDir), networks: o.networks, stateDir: o.stateDir,
		gcMinAge: o.gcMinAge, timeout: o.timeout, log: logs.New(os.Stderr, logs.Text, o.verbose), containerLocks: keymutex.NewHashed(64),
	}
	s.takeOver = takeOver{s, filepath.Join(o.stateDir, "taking-over")}
	s.intents = intents{filepath.Join(o.stateDir, "intents"), o.networks, s.takeOver.file}
	s.record, err = checkpoint.Open(filepath.Join(o.stateDir, "attachments.json"), checkpoint.Options{
		Networks: o.networks,
		Lag:      1, // recordExisting itself records containers too young to be listed
	})
	if err != nil {
		return nil, err
	}
	s.loop, err = gc.New(s.store, s.networks, podsource.Union(s.takeOver, s.livePods()), gc.Options{Logger: s.log})
	if err != nil {
		_ = s.record.Close() // nothing was written
		return nil, err
	}
	return s, nil
}

// start writes the first record if there is none, finishes interrupted requests, and
// releases leaked addresses.
func (s *server) start(ctx context.Context, existing []string) error {
	switch _, err := s.record.Pods(ctx); {
	case errors.Is(err, podsource.ErrNotHere):
		if err := s.firstRecord(ctx, existing); err != nil {
			return err
		}
		failpoint(startBackfill)
	case err != nil && ctx.Err() != nil: // whether there is a record is unknown
		return fmt.Errorf("asking the record: %w", err)
	case err != nil:
		s.log.Error(err, "Asking the record; no address is released as long as it fails")
	}
	if err := s.finishAll(ctx); err != nil {
		return err
	}
	failpoint(startFinished)
	gone, err := s.record.Prune(ctx)
	if err != nil {
		s.log.Error(err, "Forgetting attachments whose network namespaces are gone; going on")
	}
	for _, e := range gone {
		s.log.Info("Forgot an attachment whose network namespace is gone", "network", e.Network, "containerID", e.ContainerID, "ifName", e.IfName)
	}
	failpoint(startPruned)
	asserts, err := s.assertions(ctx)
	if err != nil {
		return err
	}
	if _, err := s.loop.AtStartup(ctx, asserts...); err != nil {
		s.log.Error(err, "Could not release leaked addresses at start-up; going on")
	}
	failpoint(startHooked)
	return nil
}

// finishAll finishes interrupted requests. One that can't be finished now keeps its intent,
// and so its addresses.
func (s *server) finishAll(ctx context.Context) error {
	left, err := s.intents.all()
	if err != nil {
		return err
	}
	for _, i := range left {
		if err := s.finish(ctx, i); err != nil {
			s.log.Error(err, "Finishing an interrupted request; the next start or request tries again",
				"network", i.Network, "containerID", i.ContainerID, "ifName", i.IfName)
		}
	}
	return nil
}

// firstRecord writes the record of a node that has none: a new one, or one that another
// agent has served so far. Without a source of the existing attachments, the networks must
// have no reservation.
func (s *server) firstRecord(ctx context.Context, existing []string) error {
	if len(existing) > 0 {
		src, err := source.Parse(existing, source.Env{Logger: s.log})
		if err != nil {
			return err
		}
		if err := s.takeOver.begin(); err != nil {
			return fmt.Errorf("noting when the take-over began: %w", err)
		}
		return s.recordExisting(ctx, src)
	}
	list, err := s.store.List(ctx)
	if err != nil {
		return err
	}
	rs := slices.DeleteFunc(list.Reservations, func(r hostlocal.Reservation) bool { return !slices.Contains(s.networks, r.Network) })
	if len(rs) > 0 {
		return fmt.Errorf("network %s has reservations, %d with those of the other networks, and there is no record: give a source of the existing attachments with --existing",
			rs[0].Network, len(rs))
	}
	return s.recordExisting(ctx, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { // no container of any kind
		return podsource.Answer{Networks: s.networks, Names: podsource.AnyContainer, Authoritative: true}, nil
	}))
}

// listen serves requests until ctx ends, and then completes those that it has received.
func (s *server) listen(ctx context.Context, socket string) error {
	// /run is empty after a boot. Runtimes start plugins as root.
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("making the socket's directory: %w", err)
	}
	// The record is locked, so this is not the socket of another server.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the old socket: %w", err)
	}
	var l net.Listener
	var err error
	withPrivateUmask(func() { l, err = net.Listen("unix", socket) })
	if err != nil {
		return err
	}
	web := &http.Server{Handler: s.routes(), ReadTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10}
	done := make(chan error, 1)
	go func() { done <- web.Serve(l) }()
	s.log.Info("Serving", "socket", socket)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := s.withTimeLimit(ctx)
	defer cancel()
	return web.Shutdown(ctx)
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+requestPath, func(w http.ResponseWriter, req *http.Request) {
		// The whole body: only then does the HTTP server notice that the plugin ends.
		r := new(request)
		body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxRequest))
		if err == nil {
			err = json.Unmarshal(body, r)
		}
		if err != nil {
			http.Error(w, fmt.Sprintf("reading the request: %v", err), http.StatusBadRequest)
			return
		}
		result, err := s.handle(req.Context(), r)
		if err == nil {
			_, _ = w.Write(result) // the plugin may have ended
			return
		}
		s.log.Error(err, "Request failed", "command", r.Command, "containerID", r.ContainerID, "ifName", r.IfName)
		text, _ := json.Marshal(cniError(err)) // it has only strings and a number
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(text)
	})
	return mux
}
