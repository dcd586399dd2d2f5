// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// An Attachment is the attachment of a container to a network by a CNI ADD.
type Attachment struct {
	Network, ContainerID string
	// IfName is the name of the interface, IPs are its addresses, and Pod is the pod's name.
	// All may be empty.
	IfName string
	IPs    []netip.Addr
	Pod    types.NamespacedName
}

// Always is the since of [Attachments] for a store that was there before the node's first
// ADD.
var Always = time.Unix(0, 0)

// Attachments is the source of an agent that keeps a store of the attachments that it makes.
// networks are those in which it serves every ADD. since is the time from which on the store has
// every one of them: [Always], or for a store in memory, when this process began to serve.
//
// list returns every attachment whose ADD has ended and whose DEL has not, each with its
// container ID. If the store was lost, or a part of it is not restored yet, list must return
// an error, such as [ErrIncomplete]; stores that are restored apart are an Attachments each. A list
// without attachments of these networks is an answer about what was reserved before the node's boot,
// and about nothing since, unless [AllowEmpty] is around the source.
//
// The answer declares that any container of these networks is in it at once. A
// reservation made in this boot and before since is judged only if list has it. It is an error if
// networks is empty or has [EveryNetwork], or if since is zero.
func Attachments(networks []string, since time.Time, list func(context.Context) ([]Attachment, error)) Source {
	networks = slices.Clone(networks)
	boot := new(boottime.Earliest)
	boot.Read() // notices when the clock is set forward from now on
	return attachments{wrapper{func(ctx context.Context) (Answer, error) {
		a := Answer{Source: "attachments", Networks: networks, Names: AnyContainer, AtOnce: true, Authoritative: true}
		if len(networks) == 0 || slices.Contains(networks, EveryNetwork) || since.IsZero() {
			return a, fmt.Errorf("Attachments needs the names of the networks in which the agent serves every ADD, "+
				"and the time since which its store is complete, or Always; %w", ErrPermanent)
		}
		all, err := list(ctx)
		if err != nil {
			return a, fmt.Errorf("reading the agent's attachments: %w", err)
		}
		for _, at := range all {
			if at.ContainerID == "" {
				return a, fmt.Errorf("reading the agent's attachments: one of network %q has no container ID", at.Network)
			}
			a.Pods = append(a.Pods, Pod{NamespacedName: at.Pod, ContainerIDs: []string{at.ContainerID}, IPs: at.IPs, Network: at.Network})
		}
		// Stamps of whole seconds and small steps of the clock may be too early. A zero boot, of an unknown one, is before all.
		booted := boot.Read().Add(-2 * time.Second)
		if !slices.ContainsFunc(all, func(at Attachment) bool { return slices.Contains(networks, at.Network) }) {
			a.Gaps = append(a.Gaps, Gap{From: booted})
			a.Note = "no attachment of its networks is listed, so it speaks of nothing that was reserved since the boot (see AllowEmpty)"
		}
		if since.After(Always) {
			a.Gaps = append(a.Gaps, Gap{From: booted, To: since})
		}
		return a, nil
	}, RankCache, "attachments"}}
}

// attachments is the source of Attachments. Its gap without an end is that of an empty list.
type attachments struct{ wrapper }

// Sandboxes is the source of a list like crictl's: every sandbox of the node's container
// runtime, in any state, with its whole ID among ContainerIDs: an ID that is cut short, as
// crictl's table shows it, is an error. The answer declares that it names
// sandboxes in every network, but not at once: a runtime lists one some minutes after its
// address was reserved.
func Sandboxes(list func(context.Context) ([]Pod, error)) Source {
	return wrapper{func(ctx context.Context) (Answer, error) {
		pods, err := list(ctx)
		a := Answer{Source: "sandboxes", Pods: pods, Networks: []string{EveryNetwork}, Names: SandboxContainers}
		for _, p := range pods {
			ids := p.ContainerIDs
			if len(ids) == 0 || slices.ContainsFunc(ids, func(id string) bool { return id == "" || !SandboxContainers.Has(id) }) {
				err = cmp.Or(err, fmt.Errorf("a sandbox has the container IDs %q: each must be whole, 64 lower-case hexadecimal digits", ids))
			}
		}
		return a, err
	}, RankRuntime, "sandboxes"}
}
