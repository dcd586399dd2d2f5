// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The values of zero Options.
const (
	// DefaultMaxAnswer is the maximum size of one answer, in bytes. A sandbox has a
	// few KiB, mostly annotations, so gRPC's 4 MiB would be too little for some
	// nodes. kubelet and containerd allow 16 MiB.
	DefaultMaxAnswer = 64 << 20
	// DefaultCrictlConfig is where crictl looks for its configuration.
	DefaultCrictlConfig = "/etc/crictl.yaml"
)

// Options configure a Source. The zero value is the safe default: it lists sandboxes only.
type Options struct {
	// WithStatus also gets the addresses of each sandbox, with one more call for each. A
	// sandbox keeps its reservations without them. They show conflicts (R10): an address
	// in use with a reservation of another container, or with none. They also show which
	// sandboxes are in the node's network.
	WithStatus bool
	// MaxAnswer limits the size of one answer of a runtime, in bytes; a larger one is an
	// error. Zero is [DefaultMaxAnswer]; it must not be negative.
	MaxAnswer int
	// CrictlConfig is crictl's configuration, from which a search takes the runtime's
	// endpoint: the node's /etc/crictl.yaml, wherever it is mounted. It need not exist.
	// Empty is [DefaultCrictlConfig].
	CrictlConfig string
	// Logger logs which runtimes a search found. The zero Logger is silent.
	Logger logr.Logger
}

// A Source asks container runtimes for their sandboxes. It keeps no connection between two
// calls of Pods.
type Source struct {
	opts      Options
	endpoints []endpoint
	search    bool // the endpoints are the defaults, which need not exist

	mu       sync.Mutex // guards answered
	answered []endpoint // those that have returned a list
}

// New returns a source for the runtime at the endpoint. It does not access the endpoint,
// which is unix:///run/containerd/containerd.sock, or the path alone, or on Windows
// npipe:////./pipe/containerd-containerd. Any other endpoint, and a negative option, is an
// error.
//
// Without an endpoint each call of Pods searches for runtimes: the one that
// $CONTAINER_RUNTIME_ENDPOINT or else [Options].CrictlConfig names, and those at
// [DefaultEndpoints]. The answer has the sandboxes of all that were found.
//
//   - The runtime that is named must answer.
//   - Of the default endpoints, missing sockets and servers without CRI, such as
//     Docker's containerd, are skipped. Any other error is an error of the answer, since
//     this runtime may be the one with the pods. So is a runtime that answered an earlier
//     call and is missing now.
//   - An answer without any sandbox is an error: an idle runtime may have been found, and
//     the node's own have another socket (hazard 53).
func New(endpoint string, opts Options) (*Source, error) {
	if opts.MaxAnswer < 0 {
		return nil, fmt.Errorf("asking a container runtime: MaxAnswer is %d; it must not be negative", opts.MaxAnswer)
	}
	opts.MaxAnswer = cmp.Or(opts.MaxAnswer, DefaultMaxAnswer)
	opts.CrictlConfig = cmp.Or(opts.CrictlConfig, DefaultCrictlConfig)
	s := &Source{opts: opts, search: endpoint == ""}
	names := []string{endpoint}
	if s.search {
		names = DefaultEndpoints()
	}
	for _, name := range names {
		e, err := parseEndpoint(name)
		if err != nil {
			return nil, err
		}
		s.endpoints = append(s.endpoints, e)
	}
	return s, nil
}

// Rank returns [podsource.RankRuntime].
func (s *Source) Rank() podsource.Rank { return podsource.RankRuntime }

// Pods returns one pod for each sandbox that the runtime lists, in any state. The answer
// declares that it names each sandbox, whose container ID has 64 hexadecimal digits, in
// every network, late ([podsource.Answer.Names]).
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "cri"}
	pods, err := s.list(ctx)
	if err != nil {
		return a, err
	}
	a.Pods = pods
	a.Networks, a.Names = []string{podsource.EveryNetwork}, podsource.SandboxContainers
	return a, nil
}

// list asks the runtimes.
func (s *Source) list(ctx context.Context) ([]podsource.Pod, error) {
	endpoints, err := s.candidates()
	if err != nil {
		return nil, fmt.Errorf("searching for a container runtime: %w", err)
	}
	var all []podsource.Pod
	var without []string // endpoints without sandboxes, and why
	var asked []os.FileInfo
	for _, e := range endpoints {
		socket, isNew := socketOf(e, asked)
		if !isNew {
			continue
		}
		pods, err := s.ask(ctx, e)
		switch {
		case s.skippable(e, err):
			why := "no socket"
			if errors.Is(err, errNoCRI) {
				why = err.Error()
			}
			without = append(without, fmt.Sprintf("%s (%s)", e.name, why))
			continue
		case err != nil:
			return nil, fmt.Errorf("container runtime at %s: %w", e, err)
		}
		if len(pods) == 0 {
			without = append(without, e.name+" (no sandbox)")
		}
		asked = append(asked, socket)
		s.markAnswered(e, len(pods))
		all = append(all, pods...)
	}
	if s.search && len(all) == 0 {
		return nil, fmt.Errorf("%w: no container runtime with a sandbox was found: %s; the node's own may have another socket: name its endpoint",
			podsource.ErrIncomplete, strings.Join(without, ", "))
	}
	return all, nil
}

// skippable reports whether a search skips the endpoint after this error.
func (s *Source) skippable(e endpoint, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	isDefault := s.search && e.namedBy == "" && !slices.ContainsFunc(s.answered, e.same)
	return isDefault && (errors.Is(err, errNoSocket) || errors.Is(err, errNoCRI))
}

// markAnswered records that a runtime answered, and logs the first time in a search.
func (s *Source) markAnswered(e endpoint, sandboxes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.answered, e.same) {
		return
	}
	if s.search {
		s.opts.Logger.Info("Found a container runtime", "endpoint", e.name, "sandboxes", sandboxes)
	}
	s.answered = append(s.answered, e)
}

// Endpoints returns the endpoints that have answered so far, in the order of their first
// answers. It may be called from several goroutines.
func (s *Source) Endpoints() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, e := range s.answered {
		names = append(names, e.name)
	}
	return names
}
