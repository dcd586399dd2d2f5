// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/keymutex"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/textlog"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// A serving is what the flags of serve say.
type serving struct {
	socket, stateDir, dataDir string
	networks, existing        []string
	minAge, timeout           time.Duration
	verbose                   int
}

func serveCommand() *cobra.Command {
	var o serving
	cmd := &cobra.Command{
		Use:   "serve --network NAME [flags]",
		Short: "Serve CNI requests, once lost addresses were given back",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return o.run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.socket, "socket", defaultSocket, "unix socket to listen on")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/cniserver", "folder of the record")
	f.StringVar(&o.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data dir")
	f.StringArrayVar(&o.networks, "network", nil, "network to serve (repeatable)")
	f.StringArrayVar(&o.existing, "existing", nil,
		"who knows the attachments that exist when there is no record yet: KIND[:ARG] as hostlocal-gc's --source has it (repeatable, united)")
	f.DurationVar(&o.minAge, "min-age", gc.DefaultMinAge, "what is younger is not released while requests are served; 0: nothing is too young")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "how long a request may take, waiting for its turn left aside")
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
	if err := gate(started, filepath.Join(o.stateDir, "serving.lock"), textlog.New(os.Stderr, o.verbose)); err != nil {
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
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, n := range s.networks {
		loops.Go(func() { _ = n.loop.Start(ctx) }) // always nil
	}
	return s.listen(ctx, o.socket)
}

func (o *serving) newServer() (*server, error) {
	s := &server{
		dataDir: o.dataDir, networks: make(map[string]*network), intents: intents{filepath.Join(o.stateDir, "intents")},
		minAge: o.minAge, timeout: o.timeout, log: textlog.New(os.Stderr, o.verbose), turns: keymutex.NewHashed(64),
	}
	if s.minAge == 0 {
		s.minAge = gc.NoADDInFlight
	}
	var err error
	if s.record, err = checkpoint.Open(filepath.Join(o.stateDir, "attachments.json"), checkpoint.Options{}); err != nil {
		return nil, err
	}
	var stores []*hostlocal.Store
	for _, name := range o.networks {
		store, err := hostlocal.New(o.dataDir, name)
		if err != nil {
			return nil, errors.Join(err, s.record.Close())
		}
		stores = append(stores, store)
	}
	for i, store := range stores {
		s.networks[o.networks[i]] = &network{store: store, loop: gc.New(store, s.live(), gc.Options{MinAge: s.minAge, Logger: s.log})}
	}
	return s, nil
}

// start brings the disk to where nothing is half done and nothing is lost.
func (s *server) start(ctx context.Context, existing []string) error {
	minAge := gc.NoADDInFlight // it serves the ADDs, and has not begun
	if _, err := s.record.Pods(ctx); errors.Is(err, fs.ErrNotExist) {
		// Somebody else may have served them until a moment ago.
		minAge = s.minAge
		if err := s.firstRecord(ctx, existing); err != nil {
			return err
		}
		at(startBackfill)
	} else if err != nil {
		return err
	}
	if err := s.settleAll(ctx); err != nil {
		return err
	}
	at(startSettled)
	gone, err := s.record.Prune()
	if err != nil {
		return err
	}
	for _, e := range gone {
		s.log.Info("Forgot an attachment whose network namespace is gone", "network", e.Network, "containerID", e.ContainerID, "ifName", e.IfName)
	}
	at(startPruned)
	for name, n := range s.networks {
		report, err := gc.New(n.store, s.live(), gc.Options{MinAge: minAge, Logger: s.log}).AtStartup(ctx)
		if err != nil {
			s.log.Error(err, "Collecting leaked addresses at start-up; going on", "network", name)
		}
		s.log.Info("Collected leaked addresses", "network", name, "released", report.Counts()[gc.Released], "inUse", report.Counts()[gc.InUse])
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
		return s.recordExisting(ctx, src)
	}
	for name, n := range s.networks {
		rs, err := n.store.Scan(ctx)
		if err != nil {
			return err
		}
		if len(rs) > 0 {
			return fmt.Errorf("network %s has %d reservations, and there is no record: say with --existing who knows the attachments that exist", name, len(rs))
		}
	}
	return s.recordExisting(ctx, podsource.Static(podsource.Vouched(nil)))
}

// listen answers until ctx ends, and lets the requests that it has come to their
// end.
func (s *server) listen(ctx context.Context, socket string) error {
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
		r := new(request)
		dec := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxRequest))
		if err := dec.Decode(r); err != nil {
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
