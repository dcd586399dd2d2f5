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
// Pods returns all of them or an error (R2). A source that can't vouch that its
// list is whole returns an error, [ErrIncomplete] wrapped where waiting may
// help. Leaving out a pod that could not be read, or an address that could not
// be parsed, costs that pod its address.
//
// A list may be empty only where a node without any pod is normal, which callers
// refuse unless told otherwise (R9), or unless the source vouches for it with
// [Vouched]. The caller doesn't change what is returned, and asks from one
// goroutine at a time. Pods returns soon after ctx ended.
type Source interface {
	Pods(ctx context.Context) ([]Pod, error)
}

// Func makes a Source of a function.
type Func func(ctx context.Context) ([]Pod, error)

// Pods calls f.
func (f Func) Pods(ctx context.Context) ([]Pod, error) { return f(ctx) }

// Static is a Source that always gives the same pods. It is made for tests and
// for callers that have the list already.
type Static []Pod

// Pods returns s.
func (s Static) Pods(context.Context) ([]Pod, error) { return s, nil }

// ErrIncomplete is returned, wrapped, by a source that is there but does not
// know all pods yet: a cache that has not synced, a runtime that is recovering,
// a list in which a required pod is missing. Asking again later may help.
var ErrIncomplete = errors.New("list of pods is incomplete")

// A Pod is what a source knows of one live pod, or of one sandbox. Every field
// may be missing, but the fewer a source fills in, the more is kept.
type Pod struct {
	types.NamespacedName
	// UID tells a pod from another of the same name. What several sources say
	// under one UID is taken as said of one pod.
	UID types.UID
	// ContainerIDs are the IDs under which the runtime called CNI ADD for this
	// pod: those of its sandboxes, in any state, without a scheme such as
	// "containerd://". IDs of the containers in a sandbox are not wanted.
	ContainerIDs []string
	// IPs are the addresses that the pod is known to hold, in any network.
	IPs []netip.Addr
	// StartedAt is when the node began to start the pod, by the node's clock
	// (status.startTime in Kubernetes). It matters while neither ContainerIDs
	// nor IPs are known: the pod may then own any reservation made since (R4).
	// Zero is unknown, and keeps every reservation that nobody else owns.
	StartedAt time.Time
	// FinishedAt is when the last container of a pod ended that will never run
	// again (phase Succeeded or Failed), by the node's clock. Such a pod is live
	// until the reconciler's minimum age has passed since: its sandbox goes
	// later than its containers. After that it is nothing, whatever addresses
	// its status still lists. Zero is a pod that has not finished.
	FinishedAt time.Time
	// HostNetwork marks a pod in the node's own network. It counts as seen, but
	// its addresses are the node's and claim nothing.
	HostNetwork bool
}
