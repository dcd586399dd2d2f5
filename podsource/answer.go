// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"slices"
	"strings"
	"time"
)

// An Answer is what a source returns: live pods, and declarations about what is not among
// them. The zero value of each declaration lets nothing be released. If a declaration is
// not true, a live pod loses its address.
type Answer struct {
	// Source is the source's name in reports: "cri", "kubelet".
	Source string
	// Pods are the live pods. A pod may appear in several entries.
	Pods []Pod
	// AsOf is when Pods was last known to be true, by this node's clock. Zero is when
	// the source was called. The age of a reservation is taken at this time (R5). A time
	// with a reading of the monotonic clock, as time.Now returns it, is exact whatever the
	// wall clock does; Round, JSON and metav1.Time lose it. Without one, a time in the
	// future or from before a step of the clock supports no release.
	AsOf time.Time

	// Networks are those of which the answer speaks, and in which its declarations count;
	// [EveryNetwork] is all of them. In a network of which no answer speaks nothing is
	// released (R14). An answer that speaks of none is an error unless it is
	// Supplementary. One with a Cache also speaks of the networks in which the cache
	// passes its check.
	Networks []string
	// Names is the kind of containers that the source names: every live one of that kind
	// is in Pods by its container ID, at the latest 2 T and 3 minutes after its address was
	// reserved, T being kubelet's runtimeRequestTimeout (R4, R5). The zero value is that of
	// a list of Kubernetes pods.
	Names Kind
	// AtOnce declares that each of these containers is in Pods as soon as its ADD has
	// ended.
	AtOnce bool
	// SeesADDs are the networks, or [EveryNetwork], of which every CNI ADD in flight on
	// this node is in Pods, by its container ID (R4, R5).
	SeesADDs []string
	// SeesAddresses declares that every address configured in a network namespace of this
	// node is in Pods, those of the node's own namespace included (R14).
	SeesAddresses bool
	// Authoritative declares that an answer without pods means that there are none.
	// Otherwise such an answer is an error (R9).
	Authoritative bool
	// Supplementary marks an answer whose pods only keep reservations, such as network
	// namespaces or a cache of results. It may be empty. What is not among its pods is
	// not released because of that; only its declarations let anything be released.
	Supplementary bool
	// Cache marks the answer of a cache of CNI results. Its Names count only where the
	// cache passes a check (R5).
	Cache *Cache
	// Gaps are times in which the source was not told of attachments: at most two, since
	// one that a step of the clock moved is kept beside itself. The answer does not speak
	// of what was reserved then, by the file's time as it stands. A file without a time
	// falls into every gap.
	Gaps []Gap

	// Note is for people, for example why the answer declares less than it could. It is
	// shown in reports, and no decision depends on it.
	Note string

	// Parts are the answers of the members of a [Union], in the order in which they
	// were called. After an error, members that were not called are missing. The other
	// fields of the answer stand beside its parts.
	Parts []Answer
	// Took is how long the source took, and Err why it gave no answer. Union sets
	// both in its Parts.
	Took time.Duration
	Err  error
}

// EveryNetwork stands for all networks, as the only name in a list of them.
const EveryNetwork = "*"

// Covers reports whether a list of networks has one: no list has none, and one with
// [EveryNetwork] has all.
func Covers(networks []string, network string) bool {
	return slices.Contains(networks, network) || slices.Contains(networks, EveryNetwork)
}

// A Kind is a kind of container, told by its ID.
type Kind uint8

const (
	// KubernetesPods are no containers: the source lists pods, with or without container IDs.
	KubernetesPods Kind = iota
	// SandboxContainers have IDs of 64 lower-case hexadecimal digits, as the sandboxes of
	// Kubernetes have them (containerd, internal/cri/util GenerateID; CRI-O does the same).
	SandboxContainers
	// AnyContainer is every container.
	AnyContainer
)

// Has reports whether a container with this ID is of the kind. An empty ID, as of an empty
// reservation file, is of both kinds of containers: it names none, so no container of the
// kind is the owner.
func (k Kind) Has(containerID string) bool {
	sandbox := containerID == "" || len(containerID) == 64 && strings.Trim(containerID, "0123456789abcdef") == ""
	return k == AnyContainer || k == SandboxContainers && sandbox
}

// A Gap is the time from From to To, both included, by this node's clock. With a zero From
// it is all time until To, with a zero To all time since From.
type Gap struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// But is the kind of containers that the source learned about nevertheless, for
	// example from a runtime afterwards.
	But Kind `json:"but,omitempty"`
}

// A Cache is what a cache of CNI results knows beside its live entries. The check compares it
// with the reservations and with the addresses that another source sees.
type Cache struct {
	// Entries are the attachments of all entries, live or ended. Those of a container with an
	// Unproven pod in the answer don't show whether it lives.
	Entries []Attachment
	// Since has for each network a time since which no entry of a live container in it was
	// removed from the cache, by this node's clock: at the latest the time of the network's
	// oldest entry. The time of a network that is missing, or zero, is unknown.
	Since map[string]time.Time
}

// Members returns the answers that a consists of: its Parts, with theirs, and a itself
// if it has no Parts, or pods beside them.
func (a Answer) Members() []Answer {
	var all []Answer
	for _, p := range a.Parts {
		all = append(all, p.Members()...)
	}
	if a.Parts == nil || len(a.Pods) > 0 {
		a.Parts = nil
		all = append(all, a)
	}
	return all
}
