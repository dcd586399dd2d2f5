// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr"
	"k8s.io/utils/keymutex"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// A server does what the requests ask for. Its state is on the disk: the record
// of what is complete, the intents of what is not, and host-local's reservations.
type server struct {
	store    *hostlocal.Store
	stateDir string   // of the record, the intents and the take-over
	networks []string // that it serves
	loop     *gc.Reconciler
	record   *checkpoint.Checkpoint
	intents  intents
	takeOver takeOver
	gcMinAge time.Duration
	timeout  time.Duration
	log      logr.Logger

	// single is held by a GC alone and by everything else together.
	single sync.RWMutex
	// turns lets the requests for one container come one after the other.
	turns keymutex.KeyMutex
}

// live is who holds addresses: what is recorded, and what is under way.
func (s *server) live() podsource.Source { return podsource.Union(s.record, s.intents) }

// handle does one request and returns the result, if the command has one.
func (s *server) handle(ctx context.Context, r *request) (result []byte, err error) {
	d, err := delegationOf(r.Config, s.store.DataDir())
	if err != nil {
		return nil, err
	}
	if !slices.Contains(s.networks, d.network) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("network %q is not served here; start the server with --network %s", d.network, d.network), "")
	}
	switch r.Command {
	case "ADD", "DEL", "CHECK":
		if err := attachable(r); err != nil {
			return nil, err
		}
	case "GC", "STATUS":
	default:
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown CNI_COMMAND %q", r.Command), "")
	}
	err = s.inTurn(ctx, r, func(ctx context.Context) (err error) {
		switch r.Command {
		case "ADD":
			result, err = s.add(ctx, r, d)
		case "DEL":
			err = s.del(ctx, r, d)
		case "CHECK":
			err = s.check(ctx, r, d)
		case "GC":
			err = s.gc(ctx, r, d)
		case "STATUS":
			err = s.status(ctx, r, d)
		}
		return err
	})
	return result, err
}

// inTurn does a request when its turn has come: a GC alone, STATUS at any time,
// and the rest one after the other for each container. The time limit begins then.
//
// A plugin that is killed does not stop what was begun for it: half done would be
// worse. What was not begun yet is left undone, since its runtime has given up and
// may have asked for the opposite meanwhile.
func (s *server) inTurn(ctx context.Context, r *request, do func(context.Context) error) error {
	switch r.Command {
	case "GC":
		s.single.Lock()
		defer s.single.Unlock()
	case "STATUS":
	default:
		s.single.RLock()
		defer s.single.RUnlock()
		s.turns.LockKey(r.ContainerID)
		defer func() { _ = s.turns.UnlockKey(r.ContainerID) }() // never fails
	}
	if err := ctx.Err(); err != nil {
		return types.NewError(types.ErrTryAgainLater, "the plugin ended before it was the request's turn", err.Error())
	}
	ctx, cancel := s.inTime(ctx)
	defer cancel()
	return do(ctx)
}

// inTime is a context that ends when the time limit is up, and not before.
func (s *server) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
}

// delegate runs the plugin that does the work.
func (s *server) delegate(ctx context.Context, command string, r *request, d *delegation) (types.Result, error) {
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{}}
	path, err := exec.FindInPath(d.plugin, filepath.SplitList(r.Path))
	if err != nil {
		return nil, err
	}
	args := &invoke.Args{
		Command: command, ContainerID: r.ContainerID, NetNS: r.NetNS, IfName: r.IfName,
		PluginArgsStr: r.Args, Path: r.Path,
	}
	if command == "ADD" {
		return invoke.ExecPluginWithResult(ctx, path, d.config, args, exec)
	}
	return nil, invoke.ExecPluginWithoutResult(ctx, path, d.config, args, exec)
}

// settle ends what an earlier request for the same attachment left behind: one
// that died, or an ADD whose answer its runtime never saw and which it repeats.
func (s *server) settle(ctx context.Context, r *request, d *delegation) error {
	left, err := s.intents.of(r.key(d.network))
	if err != nil {
		return err
	}
	if left != nil {
		return s.finish(ctx, left)
	}
	for _, e := range s.record.Entries() {
		if e.Key == r.key(d.network) {
			old := *r
			old.NetNS = sameNetNS(e.NetNS)
			return s.detach(ctx, &old, d)
		}
	}
	return nil
}

// finish undoes an ADD or ends a DEL that an intent tells of.
func (s *server) finish(ctx context.Context, left *intent) error {
	d, err := delegationOf(left.Config, s.store.DataDir())
	if err != nil {
		return err
	}
	r := left.request
	if netnsID(r.NetNS) != left.NetNSID {
		r.NetNS = "" // gone, or another container's by now
	}
	return s.detach(ctx, &r, d)
}

// sameNetNS is the path of a recorded namespace if it is still the same there.
func sameNetNS(n checkpoint.NetNS) string {
	if !n.Present() {
		return ""
	}
	return n.Path
}

// detach is unplumb, release, forget. Each step may find its work done already.
// A step that fails leaves those after it undone and the intent where it is, so
// nothing is forgotten before it is done.
func (s *server) detach(ctx context.Context, r *request, d *delegation) error {
	there, err := unplumb(r.NetNS, r.IfName)
	if err != nil {
		return err
	}
	if !there {
		gone := *r
		gone.NetNS = ""
		r = &gone
	}
	at(delUnplumbed)
	if _, err := s.delegate(ctx, "DEL", r, d); err != nil {
		return fmt.Errorf("releasing what %s holds: %w", r.key(d.network), err)
	}
	at(delReleased)
	if err := s.record.Remove(r.key(d.network)); err != nil {
		return err
	}
	at(delForgotten)
	return s.intents.forget(r.key(d.network))
}
