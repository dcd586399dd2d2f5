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
	"path/filepath"
	"slices"
	"sync"
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

// A serving is what the flags of serve say.
type serving struct {
	socket, stateDir, dataDir string
	networks, existing        []string
	gcMinAge, timeout         time.Duration
	verbose                   int
}

func serveCommand() *cobra.Command {
	var o serving
	cmd := &cobra.Command{
		Use:   "serve --network NAME [flags]",
		Short: "Serve CNI requests, once what leaked was released",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.socket, "socket", defaultSocket, "unix socket to listen on")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/cniserver", "directory of the record")
	f.StringVar(&o.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data directory")
	f.StringArrayVar(&o.networks, "network", nil, "network to serve, of which nobody else serves an ADD (repeatable)")
	f.StringArrayVar(&o.existing, "existing", nil,
		"who knows the attachments that exist when there is no record yet: KIND[:ARG] as hostlocal-gc's --source has it (repeatable, united)")
	f.DurationVar(&o.gcMinAge, "gc-min-age", gc.DefaultMinAge,
		"a GC detaches nothing that was attached less than this ago, as the runtime may have made its list before; 0: nothing is too young")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "how long a request may take, and as long again to undo an ADD that failed; waiting for its turn left aside")
	f.IntVarP(&o.verbose, "verbose", "v", 0, "level of the log on stderr")
	_ = cmd.MarkFlagRequired("network") // it exists
	return cmd
}

// run starts up and serves until ctx ends. The order is what it is all about:
// wait for plugins that a dead predecessor left; open the record, or write the
// first one; finish what was begun; forget what is gone; release what leaked;
// and only then listen.
func (o *serving) run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(o.stateDir, "intents"), 0o700); err != nil {
		return err
	}
	started, cancel := context.WithTimeout(ctx, 2*o.timeout)
	defer cancel()
	if err := gate(started, filepath.Join(o.stateDir, "serving.lock"), logs.New(os.Stderr, logs.Text, o.verbose)); err != nil {
		return err
	}
	s, err := o.newServer()
	if err != nil {
		return err
	}
	defer func() { _ = s.record.Close() }() // every change is on the disk
	if err := s.start(started, o.existing); err != nil {
		return err
	}
	var loop sync.WaitGroup
	defer loop.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	loop.Go(func() { _ = s.loop.Start(ctx) }) // always nil
	return s.listen(ctx, o.socket)
}

func (o *serving) newServer() (s *server, err error) {
	s = &server{
		store: hostlocal.New(o.dataDir), networks: o.networks, stateDir: o.stateDir, intents: intents{filepath.Join(o.stateDir, "intents")},
		gcMinAge: o.gcMinAge, timeout: o.timeout, log: logs.New(os.Stderr, logs.Text, o.verbose), turns: keymutex.NewHashed(64),
	}
	s.takeOver = takeOver{s, filepath.Join(o.stateDir, "taking-over")}
	s.record, err = checkpoint.Open(filepath.Join(o.stateDir, "attachments.json"), checkpoint.Options{
		Networks: o.networks,
		Lag:      1, // whoever is too young to be listed is taken for an attachment
	})
	if err != nil {
		return nil, err
	}
	if s.loop, err = gc.New(s.store, s.networks, podsource.Union(s.takeOver, s.live()), gc.Options{Logger: s.log}); err != nil {
		return nil, errors.Join(err, s.record.Close())
	}
	return s, nil
}

// start brings the disk to where nothing is half done and nothing is lost.
func (s *server) start(ctx context.Context, existing []string) error {
	if _, err := s.record.Pods(ctx); errors.Is(err, podsource.ErrNotHere) {
		if err := s.firstRecord(ctx, existing); err != nil {
			return err
		}
		at(startBackfill)
	} else if err != nil {
		s.log.Error(err, "Asking the record; as long as it does not answer nothing is released")
	}
	if err := s.settleAll(ctx); err != nil {
		return err
	}
	at(startSettled)
	gone, err := s.record.Prune(ctx)
	if err != nil {
		s.log.Error(err, "Forgetting attachments whose network namespaces are gone; going on")
	}
	for _, e := range gone {
		s.log.Info("Forgot an attachment whose network namespace is gone", "network", e.Network, "containerID", e.ContainerID, "ifName", e.IfName)
	}
	at(startPruned)
	asserts, err := s.asserts(ctx)
	if err != nil {
		return err
	}
	if _, err := s.loop.AtStartup(ctx, asserts...); err != nil {
		s.log.Error(err, "Releasing leaked addresses at start-up; going on")
	}
	at(startHooked)
	return nil
}

// settleAll finishes what was begun. What can't be finished now keeps its intent,
// and with it its addresses.
func (s *server) settleAll(ctx context.Context) error {
	left, err := s.intents.all()
	if err != nil {
		return err
	}
	for _, i := range left {
		if err := s.finish(ctx, i); err != nil {
			s.log.Error(err, "Finishing what was begun; the next start or request tries again",
				"network", i.Network, "containerID", i.ContainerID, "ifName", i.IfName)
		}
	}
	return nil
}

// firstRecord is for the start without a record: of a new node, or one that was
// served by something else so far. Without a word on who knows what exists, the
// node must be empty.
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
	rs, err := s.store.List(ctx)
	if err != nil {
		return err
	}
	rs = slices.DeleteFunc(rs, func(r hostlocal.Reservation) bool { return !slices.Contains(s.networks, r.Network) })
	if len(rs) > 0 {
		return fmt.Errorf("network %s has reservations, %d with those of the other networks, and there is no record: say with --existing who knows the attachments that exist",
			rs[0].Network, len(rs))
	}
	return s.recordExisting(ctx, podsource.AllowEmpty(podsource.Static{}))
}

// listen answers until ctx ends, and lets the requests that it has come to their
// end.
func (s *server) listen(ctx context.Context, socket string) error {
	// /run is empty after a boot. The plugins that runtimes start are root's.
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("making the socket's directory: %w", err)
	}
	// The record is locked, so nobody else's socket is removed here.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var l net.Listener
	var err error
	private(func() { l, err = net.Listen("unix", socket) })
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
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	return web.Shutdown(last)
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+requestPath, func(w http.ResponseWriter, req *http.Request) {
		// To its end: only from there on does the server see that the plugin ends.
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
			_, _ = w.Write(result) // a client that has gone can't be told
			return
		}
		s.log.Error(err, "Request failed", "command", r.Command, "containerID", r.ContainerID, "ifName", r.IfName)
		text, err := json.Marshal(asCNI(err))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(text)
	})
	return mux
}
