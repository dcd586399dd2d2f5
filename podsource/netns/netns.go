// SPDX-License-Identifier: Apache-2.0

package netns

import "github.com/hostlocal-gc/hostlocal-gc/podsource"

// Rank returns [podsource.RankAddresses].
func (*Source) Rank() podsource.Rank { return podsource.RankAddresses }

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
	// pod lacks hostPID.
	Nested bool
}
