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
// Pods returns all pods that it can know of, or an error (R2). A source that exists but
// is not ready returns [ErrIncomplete], wrapped. If a source leaves out a pod that it
// could not read, or an address that it could not parse, that pod loses its address.
//
// Callers call Pods from one goroutine at a time, and do not change what it returns.
// Pods returns soon after ctx ends.
type Source interface {
	Pods(ctx context.Context) (Answer, error)
}

// Func makes a Source of a function that lists plain pods: Kubernetes pods, with or without
// the IDs of their sandboxes, in every network.
func Func(list func(ctx context.Context) ([]Pod, error)) Source {
	return AnswerFunc(func(ctx context.Context) (Answer, error) {
		pods, err := list(ctx)
		return Answer{Pods: pods, Networks: []string{EveryNetwork}}, err
	})
}

// Static is a Source that always returns the same plain pods. It is for tests, and for
// callers that already have the list.
type Static []Pod

// Pods returns s.
func (s Static) Pods(context.Context) (Answer, error) {
	return Answer{Pods: s, Networks: []string{EveryNetwork}}, nil
}

// AnswerFunc makes a Source of a function that returns an [Answer].
func AnswerFunc(answer func(ctx context.Context) (Answer, error)) Source {
	return wrapper{answer, RankPods, ""}
}

// The errors of sources. They come wrapped.
var (
	// ErrIncomplete is returned by a source that exists but does not know all pods
	// yet: a cache that has not synced, a runtime that is recovering, a list in
	// which a required pod is missing. A later call may succeed.
	ErrIncomplete = errors.New("list of pods is incomplete")
	// ErrNotHere is returned by a source that does not exist on this node: the socket
	// of a kubelet that does not serve it, a record that was never written. It is the
	// only error on which [Fallback] uses its second source. A source that exists and
	// does not answer now must not return it.
	ErrNotHere = errors.New("source does not exist on this node")
	// ErrPermanent is returned when a later call can't succeed either: the source was
	// made with the name of another node. AtStartup of package gc then returns at
	// once instead of waiting.
	ErrPermanent = errors.New("asking again will not help")
)

// A Pod is what a source knows about one live pod, one sandbox, one network namespace or
// one attachment. Every field may be empty, but the fewer a source fills in, the more
// reservations are kept.
type Pod struct {
	types.NamespacedName
	// UID distinguishes the pod from another of the same name.
	UID types.UID
	// ContainerIDs are the IDs under which the runtime called CNI ADD for this
	// pod: those of its sandboxes, in any state, whole, and without a scheme such as
	// "containerd://". The IDs of the containers in a sandbox may be beside them, for
	// interfaces that were attached under these, and never in their place. A pod that is
	// listed under another spelling of its ID loses its address.
	ContainerIDs []string
	// IPs are the addresses that the pod is known to hold.
	IPs []netip.Addr
	// Network is the network of IPs, if the source knows it. If it is empty, the
	// addresses are claimed in every network (R3), and so they are if it has no directory.
	Network string
	// MoreIPs says that the pod may hold more addresses than IPs, as when one of them
	// could not be read. Like a pod without any address it may then own any
	// reservation made since it started (R4).
	MoreIPs bool
	// HostNetwork marks a pod in the node's own network. Its addresses are the node's
	// and claim nothing. But a list with such a pod is not empty (R9). An entry that has
	// neither a name nor a UID nor a container is the node's own network namespace: its
	// addresses keep their reservations.
	HostNetwork bool
	// Finished marks a pod whose containers have ended and will never run again
	// (phase Succeeded or Failed). It holds its containers and addresses for five
	// minutes after FinishedAt, since its sandbox is removed later than its
	// containers. If FinishedAt is zero, or from before the node's clock was set, the
	// five minutes begin when it was first seen finished (R5). A pod with a
	// FinishedAt counts as Finished.
	Finished   bool
	FinishedAt time.Time
	// StartedAt is when the node began to start the pod, by the node's clock
	// (status.startTime in Kubernetes). While neither ContainerIDs nor IPs are
	// known, the pod may own any reservation made since (R4). Zero is unknown: the
	// pod may then own every reservation without a known owner.
	StartedAt time.Time
	// Unproven marks an entry about which the source can't tell whether it is live. Its
	// containers keep their reservations until another source than a cache would have
	// named them (R4). If StartedAt is set, it is when the entry was written, and the
	// entry also ends once that is before the node's boot and it was first seen 2 T and 3
	// minutes ago.
	Unproven bool
	// NotRunning says that nothing runs in it any more: a sandbox that its runtime reports as not
	// ready, a network namespace without a process. It is shown to people, and no decision depends
	// on it: such an entry keeps its reservations like any other.
	NotRunning bool
	// Origin says where the source found the entry: a network namespace and a
	// process, a cache file, a sandbox. Two entries of one answer with different
	// origins are different pods, unless they share a UID, a name or a container ID.
	Origin string
}

// HasFinished reports whether the pod is Finished or has a FinishedAt.
func (p *Pod) HasFinished() bool { return p.Finished || !p.FinishedAt.IsZero() }
