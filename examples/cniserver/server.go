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

// A server handles CNI requests. Its state is on the disk: the record of complete
// attachments, the intents of unfinished requests, and host-local's reservations.
type server struct {
	store    *hostlocal.Store
	stateDir string   // for the record, the intents and the take-over
	networks []string // the served ones
	loop     *gc.Reconciler
	record   *checkpoint.Checkpoint
	intents  intents
	takeOver takeOver
	gcMinAge time.Duration
	timeout  time.Duration
	log      logr.Logger

	// gcLock is locked by a GC, and read-locked by the other requests but STATUS.
	gcLock sync.RWMutex
	// containerLocks serialize the requests of a container.
	containerLocks keymutex.KeyMutex
}

// livePods is the source of the pods that hold addresses: recorded ones, and those with an
// unfinished request.
func (s *server) livePods() podsource.Source { return podsource.Union(s.record, s.intents) }

// handle handles a request, and returns its result if the command has one.
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
		if err := validateAttachment(r); err != nil {
			return nil, err
		}
	case "GC", "STATUS":
	default:
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown CNI_COMMAND %q", r.Command), "")
	}
	err = s.serialize(ctx, r, func(ctx context.Context) (err error) {
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

// serialize waits for conflicting requests, and then calls do: a GC runs alone, STATUS
// at any time, and other requests one at a time for each container. The time limit begins
// after the wait.
//
// If the plugin ends while its request runs, the request is completed, since half of it
// would be worse. If it ends before, the request is dropped: the runtime has given up, and
// may have sent the opposite request.
func (s *server) serialize(ctx context.Context, r *request, do func(context.Context) error) error {
	switch r.Command {
	case "GC":
		s.gcLock.Lock()
		defer s.gcLock.Unlock()
	case "STATUS":
	default:
		s.gcLock.RLock()
		defer s.gcLock.RUnlock()
		s.containerLocks.LockKey(r.ContainerID)
		defer func() { _ = s.containerLocks.UnlockKey(r.ContainerID) }() // the error is always nil
	}
	if err := ctx.Err(); err != nil {
		return types.NewError(types.ErrTryAgainLater, "the plugin ended while its request waited for others", err.Error())
	}
	ctx, cancel := s.withTimeLimit(ctx)
	defer cancel()
	return do(ctx)
}

// withTimeLimit returns a context with a time limit of its own, which does not end with ctx.
func (s *server) withTimeLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
}

// delegate runs the delegate, bridge or ptp.
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

// finishEarlier undoes or completes an earlier request for the attachment: one that was
// interrupted, or an ADD that the runtime repeats since it did not get the answer.
func (s *server) finishEarlier(ctx context.Context, r *request, d *delegation) error {
	left, err := s.intents.get(r.key(d.network))
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

// finish undoes the ADD or completes the DEL of an intent.
func (s *server) finish(ctx context.Context, left *intent) error {
	d, err := delegationOf(left.Config, s.store.DataDir())
	if err != nil {
		return err
	}
	r := left.request
	if netnsID(r.NetNS) != left.NetNSID {
		r.NetNS = "" // it is gone, or that of another container
	}
	return s.detach(ctx, &r, d)
}

// sameNetNS returns the path of a recorded namespace, or nothing if another one is there.
func sameNetNS(n checkpoint.NetNS) string {
	if !n.Present() {
		return ""
	}
	return n.Path
}

// detach unplumbs, releases, forgets, and removes the intent. Each step may already be
// done. If one fails, those after it are not done and the intent stays, so that the request
// can be repeated.
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
	failpoint(delUnplumbed)
	if _, err := s.delegate(ctx, "DEL", r, d); err != nil {
		return fmt.Errorf("releasing the addresses of %s: %w", r.key(d.network), err)
	}
	failpoint(delReleased)
	if err := s.record.Remove(r.key(d.network)); err != nil {
		return err
	}
	failpoint(delForgotten)
	return s.intents.remove(r.key(d.network))
}
