// SPDX-License-Identifier: Apache-2.0

package gc

import "fmt"

// A Verdict is what a pass decided of one reservation, or did with it. It prints
// and marshals as a word, which is stable: "in-use".
type Verdict uint8

const (
	InUse     Verdict = iota // a live pod holds it
	Young                    // not old enough to be judged
	Starting                 // a pod that is starting may hold it
	Foreign                  // no source here could know its owner
	Conflict                 // two claim it
	Malformed                // nobody can say who holds it
	Leaked                   // nobody holds it; it would be, or was to be, released
	Released                 // it was leaked, and its file was removed
	Changed                  // it became another while the pass went on, and was kept
	Gone                     // it went away while the pass went on
	Failed                   // an error kept it from being judged or released
)

var verdicts = [...]string{
	InUse: "in-use", Young: "young", Starting: "starting", Foreign: "foreign", Conflict: "conflict", Malformed: "malformed",
	Leaked: "leaked", Released: "released", Changed: "changed", Gone: "gone", Failed: "failed",
}

// Verdicts returns all verdicts, in the order in which they are best read.
func Verdicts() []Verdict {
	all := make([]Verdict, len(verdicts))
	for i := range all {
		all[i] = Verdict(i)
	}
	return all
}

// String returns the verdict's word, as in "in-use".
func (v Verdict) String() string {
	if int(v) < len(verdicts) {
		return verdicts[v]
	}
	return fmt.Sprintf("verdict-%d", uint8(v))
}

// MarshalText returns the verdict's word.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads a verdict's word. Any other text is an error.
func (v *Verdict) UnmarshalText(text []byte) error { return fromWord(v, len(verdicts), text) }

// fromWord looks for the value below n that prints as a word.
func fromWord[T interface {
	~uint8
	String() string
}](v *T, n int, word []byte) error {
	for i := range n {
		if T(i).String() == string(word) {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("%q is not a word of %T", word, *v)
}

// A Reason says why a reservation got its verdict. Each belongs to one verdict
// and to one of the rules R1 to R14. It prints and marshals as a word, which is
// stable: "container-live".
type Reason uint8

// The reasons, by the verdict that they lead to.
const (
	ContainerLive  Reason = iota // InUse
	AddressClaimed               // InUse
	SiblingInUse                 // InUse

	TooYoung           // Young
	NotYetListed       // Young
	UntrustedTimestamp // Young
	StaleAnswer        // Young

	PodStarting     // Starting
	PodStartUnknown // Starting
	StartingNoEnd   // Starting
	EntryUnproven   // Starting

	ForeignOwner       // Foreign
	NoSourceForNetwork // Foreign
	CacheIsNewer       // Foreign

	OtherContainer        // Conflict
	TwoPods               // Conflict
	ClaimedInOtherNetwork // Conflict
	OwnerInConflict       // Conflict

	OwnerMalformed // Malformed

	Unowned         // Leaked
	EmptyOwner      // Leaked
	NetworkNotNamed // Leaked
	NotTried        // Leaked

	ReleasedLeak  // Released
	ReleasedEmpty // Released

	FileChanged // Changed

	FileGone // Gone

	OwnerUnreadable   // Failed
	SiblingUnreadable // Failed
	ReleaseFailed     // Failed
	SourceFailed      // Failed
	NoPods            // Failed
)

type reason struct {
	verdict          Verdict
	rule, word, text string
}

var reasons = [...]reason{
	ContainerLive:  {InUse, "R3", "container-live", "its container belongs to a live pod"},
	AddressClaimed: {InUse, "R3", "address-claimed", "a live pod has its address"},
	SiblingInUse:   {InUse, "R3", "sibling-in-use", "its container holds another address, which is in use"},

	TooYoung: {Young, "R5", "too-young", "younger than the minimum age"},
	NotYetListed: {Young, "R5", "not-yet-listed",
		"older than the minimum age that was set, but not than these sources may take to list its container"},
	UntrustedTimestamp: {Young, "R5", "untrusted-timestamp", "its timestamp says no age, so it counts from when it was first seen"},
	StaleAnswer:        {Young, "R5", "stale-answer", "a source's list is dated in the future, or from before the clock was set"},

	PodStarting:     {Starting, "R4", "pod-starting", "made since a pod started that has neither address nor container yet"},
	PodStartUnknown: {Starting, "R4", "pod-start-unknown", "a pod has neither address nor container yet, and when it started is unknown"},
	StartingNoEnd: {Starting, "R4", "pod-starting-no-end",
		"a starting pod may hold it; a source that names containers of its form, such as the container runtime, would end this"},
	EntryUnproven: {Starting, "R4", "entry-unproven",
		"a CNI cache entry without a network namespace names its container; the node's boot ends this, or a runtime that does not name it for long"},

	ForeignOwner: {Foreign, "R14", "foreign-owner",
		"no source here knows containers with such an ID: ask one that sees addresses, or allow the form"},
	NoSourceForNetwork: {Foreign, "R14", "no-source-for-network", "no source that counts speaks of its network"},
	CacheIsNewer: {Foreign, "R14", "cache-is-newer",
		"reserved before the oldest record of the CNI cache, or while no record was kept: that of its container may be missing"},

	OtherContainer:        {Conflict, "R10", "other-container", "its owner is not live, but a live pod with another container has its address"},
	TwoPods:               {Conflict, "R10", "two-pods", "two live pods have its address"},
	ClaimedInOtherNetwork: {Conflict, "R10", "claimed-in-other-network", "a live pod has its address, in another network"},
	OwnerInConflict:       {Conflict, "R10", "owner-in-conflict", "its owner holds another address, over which there is a conflict"},

	OwnerMalformed: {Malformed, "R7", "owner-malformed", "its file holds nothing that host-local writes"},

	Unowned:         {Leaked, "R3", "unowned", "no live pod has its container or its address"},
	EmptyOwner:      {Leaked, "R3", "empty-owner", "its file is empty, and no live pod has its address"},
	NetworkNotNamed: {Leaked, "R14", "network-not-named", "nobody holds it, but its network is not among those to release in"},
	NotTried:        {Leaked, "R8", "not-tried", "nobody holds it, but the pass ended or the lock could not be had before its turn"},

	ReleasedLeak:  {Released, "R3", "released-leak", "no live pod had its container or its address"},
	ReleasedEmpty: {Released, "R3", "released-empty", "its file was empty, and no live pod had its address"},

	FileChanged: {Changed, "R6", "file-changed", "it is not the reservation any more that the pass listed"},
	FileGone:    {Gone, "R12", "file-gone", "somebody else removed it meanwhile"},

	OwnerUnreadable:   {Failed, "R11", "owner-unreadable", "its file could not be read"},
	SiblingUnreadable: {Failed, "R3", "sibling-unreadable", "an address in use or a young one, perhaps of the same container, could not be read"},
	ReleaseFailed:     {Failed, "R11", "release-failed", "its file could not be removed"},
	SourceFailed:      {Failed, "R2", "source-failed", "not judged: a pod source gave no answer that counts"},
	NoPods:            {Failed, "R9", "no-pods", "not judged: a pod source reports no pod at all"},
}

func (r Reason) row() reason {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return reason{verdict: Failed, word: fmt.Sprintf("reason-%d", uint8(r))}
}

// String returns the reason's word, as in "container-live".
func (r Reason) String() string { return r.row().word }

// Text returns the reason as half a sentence for people. Its wording may change.
func (r Reason) Text() string { return r.row().text }

// Verdict returns the verdict that r leads to.
func (r Reason) Verdict() Verdict { return r.row().verdict }

// Rule returns the number of the safety rule behind r, as in "R3".
func (r Reason) Rule() string { return r.row().rule }

// MarshalText returns the reason's word.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a reason's word. Any other text is an error.
func (r *Reason) UnmarshalText(text []byte) error { return fromWord(r, len(reasons), text) }
