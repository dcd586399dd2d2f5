// SPDX-License-Identifier: Apache-2.0

// Embed is the smallest agent with the start-up hook. Its arguments are a network, and a command
// that prints the IDs of all sandboxes: embed podnet crictl pods -q
package main

import (
	"context"
	"log"
	"os"
	"os/exec"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: embed NETWORK COMMAND [ARGUMENT ...]")
	}
	store := hostlocal.New(os.Getenv("DATA_DIR")) // "" is /var/lib/cni/networks
	// Containers of other runtimes in the network, such as nerdctl's, have other IDs, and are kept.
	source := podsource.Sandboxes(func(ctx context.Context) (all []podsource.Pod, err error) {
		out, err := exec.CommandContext(ctx, os.Args[2], os.Args[3:]...).Output()
		for id := range strings.FieldsSeq(string(out)) {
			all = append(all, podsource.Pod{ContainerIDs: []string{id}})
		}
		return all, err // all or an error: a list beside an error is ignored (R2)
	})
	reconciler, err := gc.New(store, []string{os.Args[1]}, source, gc.Options{})
	if err != nil {
		log.Fatal(err)
	}
	report, err := reconciler.AtStartup(context.Background()) // 30 s at most
	if err != nil {
		log.Printf("releasing leaked addresses at start-up: %v; going on", err)
	}
	log.Printf("released %d of %d addresses; ready", report.Counts()[gc.Released], len(report.Reservations))
} // an agent starts to serve here
