// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// DefaultCrictlConfig is where crictl looks for its configuration.
const DefaultCrictlConfig = "/etc/crictl.yaml"

// ErrNotFound is returned, wrapped, by a search that finds no runtime with a sandbox.
var ErrNotFound = fmt.Errorf("%w: no container runtime with a sandbox was found", podsource.ErrIncomplete)

// Options configure a Source. The zero value is the safe default: it lists sandboxes and
// containers only.
type Options struct {
	// WithStatus also gets the addresses of each sandbox, with one more call for each. A
	// sandbox keeps its reservations without them. They show conflicts (R10): an address
	// in use with a reservation of another container, or with none. They also show which
	// sandboxes are in the node's network.
	//
	// A sandbox whose status the runtime does not return within a second, or which has an
	// address that can't be parsed, is kept by its ID. It may hold more addresses
	// ([podsource.Pod.MoreIPs]): it claims every reservation that no source names, until
	// that is older than gc.Options.StartingFor (R4). The Note of the answer names one
	// of them. All statuses together take five seconds at most, and a third of the time
	// until the deadline of the context.
	WithStatus bool
	// CrictlConfig is crictl's configuration, from which a search takes the runtime's
	// endpoint: the node's /etc/crictl.yaml, wherever it is mounted. It need not exist.
	// Empty is [DefaultCrictlConfig].
	CrictlConfig string
	// Logger logs each runtime when it answers for the first time. The zero Logger is silent.
	Logger logr.Logger
}

// A Source asks container runtimes for their sandboxes. It keeps no connection between two
// calls of Pods.
type Source struct {
	opts      Options
	endpoints []endpoint
	search    bool                    // the endpoints are the defaults, which need not exist
	answered  []endpoint              // those that have returned a list
	addresses map[string][]netip.Addr // of each sandbox in the last answer
}

// New returns a source for the runtime at the endpoint. It does not access the endpoint,
// which is unix:///run/containerd/containerd.sock, or the path alone, or on Windows
// npipe:////./pipe/containerd-containerd. Any other endpoint is an error.
//
// Without an endpoint each call of Pods searches for runtimes: the one that
// $CONTAINER_RUNTIME_ENDPOINT or else [Options].CrictlConfig names, and those at
// [DefaultEndpoints]. The answer has the sandboxes of all that were found.
//
//   - The runtime that is named must answer. A configuration that can't be parsed, or has a
//     key twice, is an error.
//   - Of the default endpoints, missing sockets and servers without CRI, such as
//     Docker's containerd, are skipped. Any other error is an error of the answer, since
//     this runtime may be the one with the pods. So is a runtime that answered an earlier
//     call and is missing now.
//   - An answer without any sandbox is an error: an idle runtime may have been found, and
//     the node's own have another socket (hazard 53).
func New(endpoint string, opts Options) (*Source, error) {
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

// String returns the name of the source, also for one that does not answer.
func (s *Source) String() string { return "cri" }

// Pods returns one pod for each sandbox that the runtime lists, in any state, with the
// containers in it. The answer declares that it names each sandbox, whose container ID has 64
// hexadecimal digits, in every network, late ([podsource.Answer.Names]).
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	none := podsource.Answer{Source: s.String()} // beside an error
	endpoints, err := s.candidates()
	if err != nil {
		return none, fmt.Errorf("searching for a container runtime: %w", err)
	}
	a := podsource.Answer{Source: s.String(), Networks: []string{podsource.EveryNetwork}, Names: podsource.SandboxContainers}
	var without, notes []string // endpoints without sandboxes, and why; notes on those with
	for _, e := range endpoints {
		pods, note, err := s.ask(ctx, e)
		switch {
		case s.skippable(e) && (errors.Is(err, errNoSocket) || errors.Is(err, errNoCRI)):
			without = append(without, fmt.Sprintf("%s (%v)", e.name, err))
			continue
		case err != nil:
			return none, fmt.Errorf("container runtime at %s: %w", e.name, err)
		case len(pods) == 0:
			without = append(without, e.name+" (no sandbox)")
		case note != "":
			notes = append(notes, e.name+": "+note)
		}
		if !slices.ContainsFunc(s.answered, e.same) {
			s.answered = append(s.answered, e)
			s.opts.Logger.Info("Found a container runtime", "endpoint", e.name, "sandboxes", len(pods))
		}
		a.Pods = append(a.Pods, pods...)
	}
	if s.search && len(a.Pods) == 0 {
		return none, fmt.Errorf("%w: %s; the node's own may have another socket: name its endpoint", ErrNotFound, strings.Join(without, ", "))
	}
	a.Note = strings.Join(notes, "; ")
	s.remember(a.Pods)
	return a, nil
}

// remember gives sandboxes whose status is not known the addresses that they had: a sandbox keeps
// its addresses for its life, and the file of one may not have its ID (hazard 84).
func (s *Source) remember(pods []podsource.Pod) {
	known := make(map[string][]netip.Addr, len(pods))
	for i, p := range pods {
		id := p.ContainerIDs[0]
		if p.MoreIPs {
			pods[i].IPs = slices.Compact(slices.SortedFunc(slices.Values(append(p.IPs, s.addresses[id]...)), netip.Addr.Compare))
		}
		known[id] = pods[i].IPs
	}
	s.addresses = known
}

// skippable reports whether a search may go on without the endpoint.
func (s *Source) skippable(e endpoint) bool {
	return s.search && !e.named && !slices.ContainsFunc(s.answered, e.same)
}
