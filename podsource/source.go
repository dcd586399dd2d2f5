// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A Source knows which pods are live on this node.
//
// Pods returns all that it can know of, or an error (R2). A source that is there
// but not ready returns [ErrIncomplete], wrapped. Leaving out a pod that could
// not be read, or an address that could not be parsed, costs that pod its
// address.
//
// The caller asks from one goroutine at a time and does not change what is
// returned. Pods returns soon after ctx ended.
type Source interface {
	Pods(ctx context.Context) (Answer, error)
}

// Func makes a Source of a function that lists plain pods: an [Answer] without
// declarations, which speaks of every network.
type Func func(ctx context.Context) ([]Pod, error)

// Pods calls f.
func (f Func) Pods(ctx context.Context) (Answer, error) {
	pods, err := f(ctx)
	return Answer{Pods: pods}, err
}

// Static is a Source that always gives the same plain pods. It is for tests, and
// for callers that have the list already.
type Static []Pod

// Pods returns s.
func (s Static) Pods(context.Context) (Answer, error) { return Answer{Pods: s}, nil }

// AnswerFunc makes a Source of a function that gives a whole [Answer].
type AnswerFunc func(ctx context.Context) (Answer, error)

// Pods calls f.
func (f AnswerFunc) Pods(ctx context.Context) (Answer, error) { return f(ctx) }

// The errors of sources. They come wrapped.
var (
	// ErrIncomplete is returned by a source that is there but does not know all
	// pods yet: a cache that has not synced, a runtime that is recovering, a
	// list in which a required pod is missing. Asking again later may help.
	ErrIncomplete = errors.New("list of pods is incomplete")
	// ErrNotHere is returned by a source that does not exist on this node: a
	// socket of a kubelet that does not serve it, a record that was never
	// written. [Fallback] acts on it, and on nothing else. A source that exists
	// and does not answer now must not return it.
	ErrNotHere = errors.New("source does not exist on this node")
	// ErrPermanent is returned where to ask again helps nobody: the source was
	// made with the name of another node. The hook of package gc returns it at
	// once instead of waiting.
	ErrPermanent = errors.New("asking again will not help")
)

// A Pod is what a source knows of one live pod, of one sandbox, of one network
// namespace or of one attachment. Every field may be missing, but the fewer a
// source fills in, the more is kept.
type Pod struct {
	types.NamespacedName
	// UID tells a pod from another of the same name.
	UID types.UID
	// ContainerIDs are the IDs under which the runtime called CNI ADD for this
	// pod: those of its sandboxes, in any state, without a scheme such as
	// "containerd://". IDs of the containers in a sandbox are not wanted.
	ContainerIDs []string
	// IPs are the addresses that the pod is known to hold.
	IPs []netip.Addr
	// Network is the network that IPs are in, where the source knows it. An
	// address of an unknown network is claimed in every network (R3).
	Network string
	// MoreIPs says that the pod may hold more addresses than IPs: one of them
	// could not be read. It may then own any reservation made since it started,
	// as a pod without any address may (R4).
	MoreIPs bool
	// HostNetwork marks a pod in the node's own network. It counts as seen, but
	// its addresses are the node's and claim nothing.
	HostNetwork bool
	// Finished marks a pod whose containers have ended and will never run again
	// (phase Succeeded or Failed). It holds what it names for five minutes after
	// FinishedAt, since its sandbox goes later than its containers. Where
	// FinishedAt is zero, or from before the node's clock was set, those minutes
	// count from when it was first seen finished (R5). A pod with a FinishedAt
	// has finished also without the mark.
	Finished   bool
	FinishedAt time.Time
	// StartedAt is when the node began to start the pod, by the node's clock
	// (status.startTime in Kubernetes). It matters while neither ContainerIDs
	// nor IPs are known: the pod may then own any reservation made since (R4).
	// Zero is unknown, and keeps every reservation that nobody else owns.
	StartedAt time.Time
	// Unproven marks an entry of which the source can't tell whether it lives: it
	// names containers, and nothing more is known of them. It keeps what it names
	// as a starting pod does (R4): until a container runtime that would name the
	// container has not for long.
	Unproven bool
	// Origin says where the source saw it: a network namespace and a process, a
	// cache file, a sandbox. Two entries of one answer with different origins are
	// about different pods, unless they agree in UID, name or container ID.
	Origin string
}

// HasFinished reports whether the pod's containers have ended for good.
func (p *Pod) HasFinished() bool { return p.Finished || !p.FinishedAt.IsZero() }
