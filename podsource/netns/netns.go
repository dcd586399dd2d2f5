// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// DefaultLongestADD is how long an ADD takes at most where Options don't say: what
// gc.DefaultStartingFor is.
const DefaultLongestADD = 14 * time.Minute

// DefaultTimeout is less than gc gives all sources together, so that an error names
// the source.
const DefaultTimeout = 10 * time.Second

// Rank returns [podsource.RankADDs]: an ADD that is not under way any more when
// processes are looked at has left its traces with the sources after that.
func (*Source) Rank() podsource.Rank { return podsource.RankADDs }

// Options say where the node is looked at. The zero value is right for an agent
// in a container with hostPID, and outside of containers.
type Options struct {
	// Proc is where a procfs of the node is mounted. Empty is /proc.
	Proc string
	// HostNetNS is the file of the node's own network namespace, whose addresses
	// are no pods'. Empty is that of process 1.
	HostNetNS string
	// Nested says that the node is itself a container, as in kind: its process 1
	// is not that of the machine. Without it such a process 1 is an error, as it
	// mostly means that the agent sees none but its own processes, because its
	// pod lacks hostPID. With it that is still an error, unless a process shows
	// that process 1 is a node's: one in a PID namespace below, as those of
	// containers are, or one with other mounts that started the agent. So an
	// agent that runs directly on a nested node without any container needs a PID
	// namespace of its own, as by unshare --pid --fork.
	Nested bool
	// Networks are those whose main plugin configures the addresses that it is given
	// in the container's network namespace: bridge, ptp, macvlan, ipvlan, vlan. There an
	// address that no namespace has is in use by nobody, so the answer speaks of these
	// networks, and what nobody is seen to use may be released though no other source
	// speaks of them (R14). It does not, and its Note says why, while not all addresses
	// are seen, or while an interface of a container is up and shows none: gVisor and KubeVirt
	// take the address out of the namespace and use it. A question takes longer with it,
	// as the interfaces of each namespace are listed, too. Empty: the answer speaks of no network.
	Networks []string
	// LongestADD is for how long a process may run a CNI ADD at most. One that
	// has the environment of an ADD for longer is a daemon that inherited it, and
	// claims nothing. Zero is 14 minutes; agents that set gc.Options.StartingFor
	// give its value.
	LongestADD time.Duration
	// Timeout is how long one question may take. The context may end it earlier. A
	// node with 1,000 processes takes some 0.1 s. Zero is [DefaultTimeout]; it must
	// not be negative.
	Timeout time.Duration
}
