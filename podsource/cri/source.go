// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Options say what a Source asks for. The zero value asks for the sandboxes
// alone.
type Options struct {
	// WithStatus asks for the addresses of each sandbox, too, with one more call
	// for each. A sandbox keeps its reservations without them. They are for
	// conflicts (R10): an address in use whose reservation is another's, or is
	// missing. And they tell which sandboxes are in the node's network.
	WithStatus bool
	// Logger is told which runtimes a search found. The zero Logger is silent.
	Logger logr.Logger
}

// A Source asks container runtimes which sandboxes there are. It holds nothing
// open between two calls of Pods.
type Source struct {
	opts      Options
	endpoints []endpoint
	search    bool // the endpoints are guesses: not all of them need be there

	mu       sync.Mutex      // guards answered
	answered map[string]bool // the endpoints that ever gave a list, by name
}

// New returns a source that asks the runtime at the endpoint, and touches
// nothing. An endpoint is unix:///run/containerd/containerd.sock, or the path
// alone; on Windows npipe:////./pipe/containerd-containerd.
//
// Without an endpoint each call of Pods looks at [DefaultEndpoints] and unites
// what answers there. A socket that is missing is skipped, and so is a server
// that does not speak CRI, as Docker's containerd. Anything else that is wrong
// with one of them is an error, as it may be the one that has the pods. So is it
// when a runtime that answered once is missing later.
func New(endpoint string, opts Options) (*Source, error) {
	s := &Source{opts: opts, search: endpoint == "", answered: make(map[string]bool)}
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

// Pods returns one pod for each sandbox that the runtime lists, in any state. It
// declares that sandboxes are named by their container IDs, which have 64
// hexadecimal digits, in every network, and no later than
// [podsource.RuntimeLag] after their addresses were reserved.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "cri"}
	pods, err := s.list(ctx)
	if err != nil {
		return a, err
	}
	a.Pods = pods
	a.Names = []podsource.Names{{Form: podsource.Hex64, Lag: podsource.RuntimeLag}}
	return a, nil
}

// list asks the runtimes.
func (s *Source) list(ctx context.Context) ([]podsource.Pod, error) {
	var all []podsource.Pod
	var skipped []string // and why
	found := false
	for _, e := range s.endpoints {
		pods, err := s.ask(ctx, e)
		if s.skippable(e, err) {
			why := "no socket"
			if errors.Is(err, errNoCRI) {
				why = err.Error()
			}
			skipped = append(skipped, fmt.Sprintf("%s (%s)", e.name, why))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("container runtime at %s: %w", e.name, err)
		}
		found = true
		s.markAnswered(e)
		all = append(all, pods...)
	}
	if !found {
		return nil, fmt.Errorf("%w: no container runtime was found at %s; if it listens elsewhere, name its endpoint",
			podsource.ErrIncomplete, strings.Join(skipped, ", "))
	}
	return all, nil
}

// skippable reports whether a search goes on after this error.
func (s *Source) skippable(e endpoint, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.search && !s.answered[e.name] && (errors.Is(err, errNoSocket) || errors.Is(err, errNoCRI))
}

// markAnswered notes that a runtime answered.
func (s *Source) markAnswered(e endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.search && !s.answered[e.name] {
		s.opts.Logger.Info("Found a container runtime", "endpoint", e.name)
	}
	s.answered[e.name] = true
}

// Endpoints returns the endpoints that have answered so far, in the order in
// which they are asked. It may be called at any time.
func (s *Source) Endpoints() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, e := range s.endpoints {
		if s.answered[e.name] {
			names = append(names, e.name)
		}
	}
	return names
}
