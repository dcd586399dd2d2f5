// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"strings"
	"time"
)

// An Answer is what a source returns: live pods, and declarations about what is not
// among them. Without declarations, a container that is not in Pods is not live, in any
// network, whatever its ID looks like. So Pods must have everything that can hold an
// address there. A source that lists only Kubernetes pods or sandboxes sets Forms or
// Names to [Hex64]; containers of other runtimes are then foreign and kept (R14). If a
// declaration is not true, a live pod loses its address.
type Answer struct {
	// Source is the source's name in reports: "cri", "kubelet".
	Source string
	// Pods are the live pods. A pod may appear in several entries.
	Pods []Pod
	// AsOf is when Pods was last known to be true, by this node's clock. Zero is when
	// the source was called. The age of a reservation is taken at this time (R5).
	AsOf time.Time
	// Networks are the networks that the answer speaks of. In a network of which no
	// answer speaks, nothing is released (R14). Nil is every network; for a
	// Supplementary answer it is none.
	Networks []string

	// Names declares which containers the source names. A container with such an ID,
	// in such a network, that is not in Pods is not live (R4, R5, R14).
	Names []Names
	// Forms are the forms of container IDs that Pods may have if they come without
	// container IDs: [Hex64] for a list of Kubernetes pods. An owner whose form no
	// source declares is foreign, and kept (R14).
	Forms []Form
	// SeesADDs declares that the container ID of every CNI ADD in flight on this node
	// is in Pods (R4, R5).
	SeesADDs bool
	// SeesAddresses declares that every address configured in a network
	// namespace of this node is in Pods (R14).
	SeesAddresses bool
	// Authoritative declares that an answer without pods means that there are none.
	// Otherwise such an answer is an error (R9).
	Authoritative bool
	// Supplementary marks an answer whose pods only keep reservations, such as network
	// namespaces or a cache of results. It may be empty. What is not among its pods is
	// not released because of that; only its declarations let anything be released.
	Supplementary bool
	// Recorded are the attachments in a cache of CNI results, also those that have
	// ended. If it is not nil, Names counts only in networks in which the cache is
	// proven to be the node's: an attachment in Recorded owns a reservation, and every
	// reserved address that a source with SeesAddresses found has an owner that is in
	// Recorded or in an ADD in flight. Even then it counts only for containers that
	// would be recorded if they were live: those in Recorded, and those whose address
	// was reserved before the node booted or since RecordedSince.
	Recorded []Attachment
	// RecordedSince is a time since which no record of a live container was removed
	// from the cache, by this node's clock: at the latest the time of the oldest
	// record in it. Zero is unknown.
	RecordedSince time.Time
	// Gaps are times in which the source was not informed of attachments, for example
	// because no record was kept. Pods may lack containers whose addresses were reserved
	// then. For these reservations Names does not count, and the answer speaks of no
	// network (R14).
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

// Names declares that a source names, by its container ID, each live container whose ID
// has the Form, in each of the Networks, if its ADD has ended and its address was
// reserved at least Lag ago.
type Names struct {
	// Form is the form of the container IDs. The zero Form is none.
	Form Form
	// Networks are the networks; nil is every network.
	Networks []string
	// Lag is how much later than its reservation a container is listed. With zero it is
	// listed when its ADD ends. [RuntimeLag] is for container runtimes.
	Lag time.Duration
}

// A Gap is the time from From to To, both included, by this node's clock. With a zero From
// it is all time until To, with a zero To all time since From.
type Gap struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// But is the form of containers that the source learned about nevertheless, for
	// example from a runtime afterwards. The zero Form is none.
	But Form `json:"but,omitempty"`
}

// RuntimeLag is the Lag of [Names] for a container runtime, which may list a sandbox
// minutes after its ADD. It stands for twice kubelet's runtimeRequestTimeout and three
// minutes.
const RuntimeLag time.Duration = -1

// An Attachment is the attachment of a container to a network by a CNI ADD.
type Attachment struct{ Network, ContainerID string }

// A Form is a form of container IDs: [AnyForm], [Hex64], or a prefix and Hex64. The IDs
// of nerdctl in the namespace "default" have the form "default-" + Hex64.
type Form string

const (
	// Hex64 is 64 lower-case hexadecimal digits, the form of sandbox IDs in
	// Kubernetes (containerd, internal/cri/util GenerateID; CRI-O does the same).
	Hex64 Form = "<64 hex digits>"
	// AnyForm is every container ID.
	AnyForm Form = "<any>"
)

// Matches reports whether a container ID has the form. An empty ID, as of an empty
// reservation file, has every form except the zero Form: it names no container, so no
// container of that form is the owner.
func (f Form) Matches(containerID string) bool {
	prefix, isHex := strings.CutSuffix(string(f), string(Hex64))
	switch {
	case f == AnyForm:
		return true
	case !isHex:
		return false
	case containerID == "":
		return true
	}
	digits, ok := strings.CutPrefix(containerID, prefix)
	return ok && len(digits) == 64 && strings.Trim(digits, "0123456789abcdef") == ""
}

// Members returns the answers that a consists of: its Parts, with theirs, and a itself
// if it has no Parts, or pods beside them.
func (a Answer) Members() []Answer {
	if a.Parts == nil {
		return []Answer{a}
	}
	var all []Answer
	if len(a.Pods) > 0 {
		own := a
		own.Parts = nil
		all = append(all, own)
	}
	for _, p := range a.Parts {
		all = append(all, p.Members()...)
	}
	return all
}
