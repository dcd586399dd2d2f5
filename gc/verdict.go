// SPDX-License-Identifier: Apache-2.0

package gc

// A Verdict is what a pass decided about a reservation, or did with it. Its words are
// stable. Verdicts are numbered without gaps, from InUse to Failed.
type Verdict uint16

// The verdicts, in the order in which reports show them.
const (
	InUse     Verdict = iota + 1 // in-use: a live pod holds it
	Young                        // young: not old enough to be judged
	Starting                     // starting: a pod that is starting may hold it
	Foreign                      // foreign: no source here could know its owner
	Conflict                     // conflict: two pods or containers claim it
	Malformed                    // malformed: its file holds nothing that host-local writes
	Leaked                       // leaked: no live pod holds it, and it was not released
	Released                     // released: it was leaked, and its file was removed
	Changed                      // changed: its file was replaced during the pass, and was kept
	Gone                         // gone: its file was removed by another process during the pass
	Failed                       // failed: an error prevented a decision or the release
)

// String returns the verdict's word, or nothing for a number that is no verdict.
func (v Verdict) String() string {
	return [...]string{"", "in-use", "young", "starting", "foreign", "conflict", "malformed", "leaked", "released", "changed", "gone",
		"failed", ""}[min(v, Failed+1)]
}

// MarshalText returns the verdict's word, which is the verdict in JSON.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// A Reason says why a reservation got its verdict. Its words are stable. Each reason
// belongs to one verdict and to one of the rules R1 to R14. Reasons are numbered from 1
// on, without gaps, by the verdict that they lead to.
type Reason uint16

// The reasons, by the verdict that they lead to, each with its rule and a phrase for people.
var (
	ContainerLive  = reason("container-live", InUse, "R3", "its container belongs to a live pod")
	AddressClaimed = reason("address-claimed", InUse, "R3", "a live pod has its address")
	SiblingInUse   = reason("sibling-in-use", InUse, "R3", "its container holds another address, which is in use")

	TooYoung     = reason("too-young", Young, "R5", "younger than the minimum age")
	NotYetListed = reason("not-yet-listed", Young, "R5",
		"older than the minimum age that was set, but not than these sources may take to list its container")
	UntrustedTimestamp = reason("untrusted-timestamp", Young, "R5",
		"its timestamp can't be trusted, so its age counts from when it was first seen")
	StaleAnswer = reason("stale-answer", Young, "R5", "a source's list is dated in the future, or from before the clock was set")

	PodStarting     = reason("pod-starting", Starting, "R4", "made since a pod started that has neither address nor container yet")
	PodStartUnknown = reason("pod-start-unknown", Starting, "R4",
		"a pod has neither address nor container yet, and when it started is unknown")
	StartingNoEnd = reason("pod-starting-no-end", Starting, "R4",
		"a starting pod may hold it; a source that names such containers, as the container runtime does, would end this")
	EntryUnproven = reason("entry-unproven", Starting, "R4",
		"an entry of the CNI cache that does not show whether it lives names its container; a runtime that does not would end this")

	ForeignOwner = reason("foreign-owner", Foreign, "R14",
		"no source here could know such an owner: for a container ask one that sees addresses, or allow the owner")
	NoSourceForNetwork = reason("no-source-for-network", Foreign, "R14", "no source that counts speaks of its network")
	NotRecorded        = reason("not-recorded", Foreign, "R14",
		"reserved before the oldest entry of the CNI cache, or in a time of which there is no record, as there is none of an empty one")

	OtherContainer = reason("other-container", Conflict, "R10",
		"its owner is not live, but a live pod with another container has its address")
	TwoPods               = reason("two-pods", Conflict, "R10", "two live pods have its address")
	ClaimedInOtherNetwork = reason("claimed-in-other-network", Conflict, "R10", "a live pod has its address, in another network")
	OwnerInConflict       = reason("owner-in-conflict", Conflict, "R10", "its owner holds another address, which is in conflict")

	OwnerMalformed = reason("owner-malformed", Malformed, "R7", "its file holds nothing that host-local writes")

	Unowned         = reason("unowned", Leaked, "R3", "no live pod has its container or its address")
	EmptyOwner      = reason("empty-owner", Leaked, "R3", "its file is empty, and no live pod has its address")
	NetworkNotNamed = reason("network-not-named", Leaked, "R14", "nobody holds it, but its network is not among those to release in")
	NotTried        = reason("not-tried", Leaked, "R8", "nobody holds it, but the pass ended first, or the lock could not be taken")

	ReleasedLeak  = reason("released-leak", Released, "R3", "no live pod had its container or its address")
	ReleasedEmpty = reason("released-empty", Released, "R3", "its file was empty, and no live pod had its address")

	FileChanged = reason("file-changed", Changed, "R6", "its file was changed or replaced after the pass had listed it")

	FileGone = reason("file-gone", Gone, "R12", "another process removed it during the pass")

	OwnerUnreadable   = reason("owner-unreadable", Failed, "R11", "its file could not be read")
	SiblingUnreadable = reason("sibling-unreadable", Failed, "R3",
		"a reservation that is young or in use, perhaps of the same container, could not be read")
	ReleaseFailed = reason("release-failed", Failed, "R11", "its file could not be removed, or the file system did not say whether it was")
	SourceFailed  = reason("source-failed", Failed, "R2", "not judged: a pod source gave no answer that counts")
)

// reasons has all reasons in the order of their declaration, after the row of none.
var reasons = []row{{verdict: Failed}}

type row struct {
	word       string
	verdict    Verdict
	rule, text string
}

// reason declares a reason. Inlined, its calls would take twelve kilobytes of every program.
//
//go:noinline
func reason(word string, verdict Verdict, rule, text string) Reason {
	reasons = append(reasons, row{word, verdict, rule, text})
	return Reason(len(reasons) - 1)
}

// row returns the row of r, or that of none for a number that is no reason.
func (r Reason) row() row { return reasons[min(int(r), len(reasons))%len(reasons)] }

// String returns the reason's word, or nothing for a number that is no reason.
func (r Reason) String() string { return r.row().word }

// MarshalText returns the reason's word, which is the reason in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Text returns the reason as a phrase for people. Its wording may change.
func (r Reason) Text() string { return r.row().text }

// Verdict returns the verdict that r leads to. That of a number that is no reason, as zero, is Failed.
func (r Reason) Verdict() Verdict { return r.row().verdict }

// Rule returns the number of the safety rule behind r, as in "R3".
func (r Reason) Rule() string { return r.row().rule }
