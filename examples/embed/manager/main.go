// SPDX-License-Identifier: Apache-2.0

// Manager adds a Reconciler to a manager of controller-runtime. It runs on every node, without
// leader election. Its arguments are a network, and a command that prints the IDs of all sandboxes
// of the node: manager podnet crictl pods -q
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func main() {
	log.SetLogger(logr.FromSlogHandler(slog.Default().Handler()))
	if err := run(signals.SetupSignalHandler(), os.Args[1:]); err != nil {
		slog.Error("Ended", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: manager NETWORK COMMAND [ARGUMENT ...]")
	}
	cluster, err := config.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := manager.New(cluster, manager.Options{LeaderElection: true, LeaderElectionID: "hostlocal-gc-example"})
	if err != nil {
		return err
	}
	if err := collect(mgr, "", args[0], sandboxes(args[1:]), gc.Options{Logger: mgr.GetLogger()}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// collect adds a Reconciler to the manager, which then makes passes over the data directory, and
// releases in one network. The Reconciler is a Runnable, so the caller need not keep it.
func collect(mgr manager.Manager, dataDir, network string, source podsource.Source, opts gc.Options) error {
	store := hostlocal.New(dataDir) // "" is /var/lib/cni/networks
	reconciler, err := gc.New(store, []string{network}, source, opts)
	if err != nil {
		return err
	}
	return mgr.Add(reconciler)
}

// sandboxes is a source that lists the sandboxes in the output of a command. Containers of other
// runtimes in the network have other IDs, and are kept.
func sandboxes(command []string) podsource.Source {
	return podsource.Sandboxes(func(ctx context.Context) (all []podsource.Pod, err error) {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("listing sandboxes with %s: %w", command[0], err)
		}
		for id := range strings.FieldsSeq(string(out)) {
			all = append(all, podsource.Pod{ContainerIDs: []string{id}})
		}
		return all, nil
	})
}
