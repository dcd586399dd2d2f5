// SPDX-License-Identifier: Apache-2.0

// Manager is an agent with a manager of controller-runtime. Its arguments are the networks in
// which it releases leaked addresses: manager podnet
package main

import (
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/node"
)

func main() {
	ctrl.SetLogger(logr.FromSlogHandler(slog.Default().Handler()))
	if err := run(os.Args[1:]); err != nil {
		ctrl.Log.Error(err, "Ended")
		os.Exit(1)
	}
}

func run(networks []string) error {
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{})
	if err != nil {
		return err
	}
	source, err := node.New(node.Options{Logger: mgr.GetLogger()})
	if err != nil {
		return err
	}
	if err := add(mgr, hostlocal.New(""), networks, source, gc.Options{Logger: mgr.GetLogger()}); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// add adds a Reconciler to a manager, which then runs it on every node, also without the lead.
func add(mgr ctrl.Manager, store *hostlocal.Store, networks []string, source podsource.Source, opts gc.Options) error {
	reconciler, err := gc.New(store, networks, source, opts)
	if err != nil {
		return err
	}
	return mgr.Add(reconciler)
}
