// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// DefaultLongestADD is the default of Options.LongestADD, the same as that of StartingFor
// in package gc.
const DefaultLongestADD = 14 * time.Minute

// Rank returns [podsource.RankADDs]: sources that are asked later know the container
// of an ADD that has ended before this source reads the processes.
func (*Source) Rank() podsource.Rank { return podsource.RankADDs }

// String returns "netns".
func (*Source) String() string { return "netns" }

// Options are the options of [New]. The zero value is right for an agent in a
// container with hostPID, and for one outside of containers.
type Options struct {
	// Proc is where a procfs of the node is mounted. Empty is /proc. The network namespace
	// of its process 1 is the node's own: a reservation of an address that is configured
	// there is kept, but no pod holds the address.
	Proc string
	// Nested asserts that the node is itself a container, as in kind: process 1 is
	// not the machine's. Without it such a process 1 is an error, since in most cases
	// the agent's pod lacks hostPID and sees only its own processes. With it, it is still an
	// error unless a process shows that process 1 is a node's: one in a child PID
	// namespace, as of a container, or an ancestor of the agent with other mounts.
	Nested bool
	// StartedByRuntime asserts that a runtime on the node has started this process, as it does a
	// CNI plugin, in the PID namespace of process 1. With Nested no other process must then show
	// that process 1 is a node's.
	StartedByRuntime bool
	// Patience is how long one reading may take before the node is read again without it.
	// Zero is a second. On a node with far more work than it can do, each may take seconds.
	Patience time.Duration
	// Networks are networks whose main plugin configures the container's addresses in
	// its network namespace: bridge, ptp, macvlan, ipvlan, vlan. There an address that
	// is in no namespace is not in use, so the answer speaks of these networks, and
	// such an address may be released even if no other source speaks of them (R14).
	// The answer speaks of none, and its Note says why, while not all addresses are
	// seen, or while an interface of a container is up without an address: gVisor and
	// KubeVirt remove the address from the namespace and use it (hazard 59). With Networks
	// a call takes longer, since it lists the interfaces of each namespace.
	Networks []string
	// LongestADD is how long a CNI ADD may run. A process that has had the environment
	// of an ADD for longer is a daemon that inherited it, and claims nothing. Zero is
	// [DefaultLongestADD]; an agent that sets gc.Options.StartingFor uses the same
	// value here. It must not be negative.
	LongestADD time.Duration
}
