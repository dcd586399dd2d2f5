// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/go-logr/logr"
	"k8s.io/utils/keymutex"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// serve starts up and serves until a signal ends it. Before it has the lock a signal ends the process.
func serve(o options) error {
	log := logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil))
	// Who can read the record's directory can lock it, and so keep each next server from starting.
	if err := errors.Join(makePrivate(o.runDir), os.MkdirAll(o.stateDir, 0o700), os.Chmod(o.stateDir, 0o700)); err != nil {
		return fmt.Errorf("making the directories of the socket and the record: %w", err)
	}
	if err := waitForDelegates(filepath.Join(o.runDir, "lock"), log); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := newServer(o, log)
	if err != nil {
		return err
	}
	defer func() { _ = s.record.Close() }() // each change is already on the disk
	if err := s.start(ctx); err != nil {
		return err
	}
	go func() { _ = s.loop.Start(ctx) }() // the error is always nil; a pass may be killed at any time
	return s.listen(ctx)
}

// newServer opens the record and the intents.
func newServer(o options, log logr.Logger) (s *server, err error) {
	s = &server{options: o, store: hostlocal.New(o.dataDir), log: log, containers: keymutex.NewHashed(64)}
	if len(o.sources) > 0 {
		var env source.Env
		env.Logger = s.log
		if s.source, err = source.Parse(o.sources, env); err != nil {
			return nil, err
		}
	}
	s.intents = &intents{path: filepath.Join(o.runDir, "intents.json"), networks: o.networks, opened: time.Now()}
	if err := s.intents.load(); err != nil {
		return nil, err
	}
	s.record, err = checkpoint.Open(filepath.Join(o.stateDir, "attachments.json"), checkpoint.Options{Networks: o.networks, Nested: o.nested})
	if err != nil {
		return nil, err
	}
	s.loop, err = gc.New(s.store, o.networks, podsource.Union(s.record, s.intents),
		gc.Options{Logger: s.log, Memory: filepath.Join(o.runDir, "memory"), OnReport: s.backfillAgain})
	if err != nil {
		_ = s.record.Close() // nothing was written
	}
	return s, err
}

// makePrivate makes a directory that nobody but root and this user can change or replace, or checks
// one that exists, and all above it: who can do so answers for this server, and tells it what to
// detach.
func makePrivate(dir string) error {
	dir, err := filepath.Abs(dir)
	err = cmp.Or(err, os.MkdirAll(dir, 0o700))
	above, linkErr := filepath.EvalSymlinks(filepath.Dir(dir))
	if err := cmp.Or(err, linkErr); err != nil {
		return err
	}
	for path, next := dir, above; ; path, next = next, filepath.Dir(next) {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st, _ := info.Sys().(*syscall.Stat_t) // never nil on Linux
		isOpen := info.Mode().Perm()&0o022 != 0 && (path == dir || info.Mode()&fs.ModeSticky == 0)
		if !info.IsDir() || isOpen || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%s (%v, of user %d) must be a directory, not a link, that belongs to root and in which no one else can write",
				path, info.Mode(), st.Uid)
		}
		if path == next {
			return nil
		}
	}
}

// waitForDelegates waits until neither another server nor a delegate that it started runs:
// a server that was killed may leave a delegate behind, which still reserves an address.
// Each server has a lock, which its delegates inherit, so it is free when the last of them
// has ended. It is held until this process and its delegates end.
func waitForDelegates(path string, log logr.Logger) error {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT, 0o600) // without O_CLOEXEC, so that delegates inherit it
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return nil
	}
	log.Info("Waiting for another server, or for the plugins that it started, to end", "lock", path)
	return syscall.Flock(fd, syscall.LOCK_EX)
}

// start does what must be done before the first request, in this order: forget attachments whose
// namespaces are gone, record what other servers attached, finish interrupted requests, and release
// leaked addresses.
//
// Another server may have attached a container again since its request was interrupted, and a DEL
// would release the address of that attachment. So an intent is left to a DEL of the runtime if the
// source lists its container or does not answer. It is dropped if its namespace is not at its path,
// as after `nerdctl restart`: then the old address, if it is left, is a leak like any other.
func (s *server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	if _, err := s.record.Prune(ctx); err != nil {
		s.log.Error(err, "Forgetting attachments that have ended; going on")
	}
	listed := s.backfill(ctx)
	if err := s.record.Backfill(ctx, nil, nil); err != nil && !errors.Is(err, fs.ErrExist) { // the first record, if there was no answer
		return err
	}
	for _, r := range s.intents.all() {
		if listed == nil || listed[r.ContainerID] {
			s.log.Info("Leaving an interrupted request until its DEL: its container may live", "attachment", r.Key)
			continue
		}
		present, err := s.unplumb(*r)
		if err == nil && present.Netns == "" {
			err = s.intents.set(r.Key, nil)
		} else if err == nil {
			err = s.detach(ctx, r)
		}
		if err != nil {
			s.log.Error(err, "Finishing an interrupted request; its addresses are kept until a DEL or the next start", "attachment", r.Key)
		}
	}
	// This server does no ADD before it listens. What another one may do is in the record's gap.
	if _, err := s.loop.AtStartup(ctx, gc.NoADDInFlight); err != nil {
		s.log.Error(err, "Releasing leaked addresses at start-up; going on")
	}
	return nil
}

// backfill records the attachments that another server made, or a version of this one
// without a record: those of the source's containers that have a reservation. What an ADD in
// flight reserves, or one whose container the source does not list yet, is in the record's
// gap: it does not speak of that, so it is kept (hazards 52 and 93). Without a source, or after an
// error, all that is not recorded is kept, until a DEL, a GC, a boot, or an answer of a source.
// It returns the listed containers, or nil if they are unknown.
func (s *server) backfill(ctx context.Context) (listed map[string]bool) {
	listed = make(map[string]bool)
	if s.source == nil {
		return listed
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var list hostlocal.Listing
	source := podsource.AnswerFunc(func(ctx context.Context) (a podsource.Answer, err error) {
		list, err = s.store.List(ctx) // not before the call of Backfill, which takes care of a DEL that ends meanwhile
		if err == nil {
			a, err = s.source.Pods(ctx)
		}
		return a, err
	})
	err := s.record.Backfill(ctx, source, func(p podsource.Pod) ([]checkpoint.Entry, error) {
		ids, of := slices.Clone(p.ContainerIDs), make(map[checkpoint.Key]checkpoint.Entry)
		for _, r := range list.Reservations {
			switch {
			case r.Owner == hostlocal.Unreadable: // it may be anybody's
				return nil, r.Err
			case slices.Contains(p.IPs, r.IP): // a damaged file has no owner, and so makes an invalid entry: an error (hazard 84)
				ids = append(ids, r.ContainerID)
			}
		}
		for _, id := range ids {
			listed[id] = true
		}
		for _, r := range list.Reservations {
			// Before v0.8 host-local did not write the interface.
			k := checkpoint.Key{Network: r.Network, ContainerID: r.ContainerID, IfName: cmp.Or(r.IfName, "eth0")}
			if slices.Contains(ids, k.ContainerID) && slices.Contains(s.networks, k.Network) {
				of[k] = checkpoint.Entry{Key: k, Pod: p.NamespacedName, UID: p.UID, IPs: append(of[k].IPs, r.IP)}
			}
		}
		return slices.Collect(maps.Values(of)), nil
	})
	if err == nil {
		return listed
	}
	if !errors.Is(err, fs.ErrExist) {
		s.log.Error(err, "Looking for attachments that are not recorded; addresses without a record are kept until a later try")
	}
	return nil
}

// backfillAgain is called after each pass. It closes the gap of the record once the source
// lists all that another server attached.
func (s *server) backfillAgain(gc.Report, error) {
	if time.Since(s.intents.opened) >= 2*checkpoint.DefaultLag {
		s.backfill(context.Background())
	}
}

// listen serves requests until ctx ends, and then completes those that it has received.
func (s *server) listen(ctx context.Context) error {
	socket := filepath.Join(s.runDir, socketName)
	_ = os.Remove(socket) // of a server that has ended; if it can't be removed, Listen fails
	l, err := net.Listen("unix", socket)
	if err == nil {
		err = os.Chmod(socket, 0o600)
	}
	if err != nil {
		return err
	}
	// A GC request with a thousand attachments has a tenth of this size.
	web := &http.Server{Handler: http.MaxBytesHandler(s, 1<<20), ReadTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		ctx, cancel := s.withTimeLimit(ctx)
		defer cancel()
		ended <- web.Shutdown(ctx)
	})()
	s.log.Info("Serving", "socket", socket)
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// unplumb removes the interface of a request, and with it the other end of its veth pair.
// It returns the request without its namespace if that is no longer at its path: another one
// there is left alone, also if it has the same number, which the record shows if it is that of
// another container. It is no error if the interface is already gone.
func (s *server) unplumb(r request) (request, error) {
	isAnothers := slices.ContainsFunc(s.record.Entries(), func(e checkpoint.Entry) bool {
		return e.ContainerID != r.ContainerID && e.IfName == r.IfName && e.NetNS.Path == r.Netns && e.NetNS.Present()
	})
	if isAnothers || r.NetNSID == "" || netnsID(r.Netns) != r.NetNSID {
		r.Netns = ""
		return r, nil
	}
	err := ns.WithNetNSPath(r.Netns, func(ns.NetNS) error { return ip.DelLinkByName(r.IfName) })
	if err != nil && !errors.Is(err, ip.ErrLinkNotFound) {
		return r, fmt.Errorf("removing interface %s from %s: %w", r.IfName, r.Netns, err)
	}
	return r, nil
}

// netnsID identifies the network namespace at a path. It is empty if there is none. The kernel uses
// a number again, but not the time at which the inode was made: a mount keeps that. Of a link, as
// below /proc, each look may make another inode (path_from_stashed in the kernel's fs/libfs.c).
func netnsID(path string) string {
	info, err := os.Stat(path)
	if err != nil || ns.IsNSorErr(path) != nil {
		return "" // or its mount is gone, and the mount point is left
	}
	st, _ := info.Sys().(*syscall.Stat_t) // never nil on Linux
	if here, err := os.Lstat(path); err != nil || !os.SameFile(here, info) {
		st.Ctim = syscall.Timespec{}
	}
	return fmt.Sprint(st.Ino, st.Ctim.Nano())
}
