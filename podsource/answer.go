// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"strings"
	"time"
)

// An Answer is what a source says: the pods that it sees, and what it means that
// it does not see others. Without declarations it is believed as it stands: whoever
// is not in Pods does not live, whatever its container's ID looks like, in every
// network. So Pods must have everybody who can hold an address there. A source that
// lists Kubernetes pods or sandboxes alone sets Forms or Names to [Hex64], and other
// runtimes' containers are kept as foreign (R14). A declaration that does not hold
// costs a live pod its address.
type Answer struct {
	// Source names who answers, for reports: "cri", "kubelet".
	Source string
	// Pods are the live pods. A pod may appear in several entries.
	Pods []Pod
	// AsOf is when Pods were last known to be true, by this node's clock. Zero
	// is: when the source was asked. Ages count up to it (R5).
	AsOf time.Time
	// Networks are those that the answer speaks of: nothing is released in a
	// network that no answer speaks of (R14). Nil is every network, and none for
	// an answer that is Supplementary.
	Networks []string

	// Names declares which containers the source names: one of such an ID, in
	// such a network, that is not in Pods does not live (R4, R5, R14).
	Names []Names
	// Forms are the forms of container IDs that Pods, where they come without
	// any, may have: [Hex64] for a list of Kubernetes pods. An owner of a form
	// that no source could mean is foreign, and kept (R14).
	Forms []Form
	// SeesADDs declares that the container ID of every CNI ADD under way on this
	// node is in Pods (R4, R5).
	SeesADDs bool
	// SeesAddresses declares that every address configured in a network
	// namespace of this node is in Pods (R14).
	SeesAddresses bool
	// Authoritative declares that no pods in the answer means that there are
	// none. Without it such an answer is an error (R9).
	Authoritative bool
	// Supplementary marks an answer that only ever adds reasons to keep:
	// network namespaces, a cache of results. Alone it never lets a reservation be
	// released; only its declarations can. So it may be empty.
	Supplementary bool
	// Recorded are the attachments that a cache of CNI results holds, also those
	// that ended. Where it is not nil, Names counts only in those networks in
	// which the cache proves to be the node's: one of Recorded is the owner of a
	// reservation, and each reserved address that a source which SeesAddresses
	// saw has its owner in Recorded or in an ADD under way. Even there it counts
	// only for containers that must be recorded if they live: those in Recorded,
	// those reserved before the node booted, and those since RecordedSince.
	Recorded []Attachment
	// RecordedSince is since when no record went from the cache whose container
	// lives, by this node's clock: at the latest the time of the oldest that is in
	// it. Zero is unknown.
	RecordedSince time.Time
	// Gaps are when the source was not told who was attached, as a record that nobody
	// kept: Pods may lack containers whose addresses were reserved then. For what was
	// reserved in a gap Names does not count, and the answer speaks of no network (R14).
	Gaps []Gap

	// Note is what people should know beside, as why the answer declares less than
	// it could. Reports have it; nothing is decided by it.
	Note string

	// Parts are the answers of the members of a [Union], in the order of its
	// arguments; after an error without those that were not asked.
	// What the answer itself has stands beside them.
	Parts []Answer
	// Took is how long the source took, and Err why it gave no answer. Union
	// sets both for its parts.
	Took time.Duration
	Err  error
}

// Names declares that a source names each live container whose ID has the Form,
// in each of the Networks, by its container ID, if the container's address was
// reserved at least Lag ago and its ADD has ended.
type Names struct {
	// Form is the form of the container IDs. The zero Form is none.
	Form Form
	// Networks are those meant; nil is every network.
	Networks []string
	// Lag is how much later than its reservation a container is listed. Zero is:
	// at the latest when its ADD ends. [RuntimeLag] is for container runtimes.
	Lag time.Duration
}

// A Gap is the time from From to To, both included, by this node's clock. A zero
// From is any time before To, a zero To any time since From.
type Gap struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// But is the form of the containers that the source was told of nevertheless, as
	// by a runtime afterwards. The zero Form is none.
	But Form `json:"but,omitempty"`
}

// RuntimeLag, as the Lag of [Names], is that of a container runtime, which lists
// a sandbox minutes after its ADD: twice kubelet's runtimeRequestTimeout and
// three minutes.
const RuntimeLag time.Duration = -1

// An Attachment is an interface that a CNI ADD gave a container.
type Attachment struct{ Network, ContainerID string }

// A Form is a form of container IDs: [AnyForm], [Hex64], or a prefix and Hex64,
// as in "default-" + Hex64 for the IDs of nerdctl in the namespace "default".
type Form string

const (
	// Hex64 is 64 lower-case hexadecimal digits, by which the runtimes of
	// Kubernetes name sandboxes (containerd, internal/cri/util GenerateID; CRI-O
	// does the same).
	Hex64 Form = "<64 hex digits>"
	// AnyForm is every container ID.
	AnyForm Form = "<any>"
)

// Matches reports whether a container ID has the form. An empty ID, that of a
// reservation file without content, has every form but the zero one: it names no
// container, so none of that form is its owner.
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

// Members returns the answers that a is made of: those of its Parts and theirs,
// and a itself where it has no Parts, or pods beside them.
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
