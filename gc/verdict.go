// SPDX-License-Identifier: Apache-2.0

package gc

import "fmt"

// A Verdict is what a pass decided of one reservation, or did with it. It
// prints, and marshals, as a word: "in-use".
type Verdict uint8

const (
	InUse     Verdict = iota // a live pod holds it
	Young                    // not old enough to be judged
	Starting                 // a pod that is starting may hold it
	Conflict                 // two claim it
	Malformed                // nobody can say who holds it
	Leaked                   // nobody holds it; it would be, or was to be, released
	Released                 // it was leaked, and its file was removed
	Changed                  // it became another while the pass went on, and was kept
	Gone                     // it went away while the pass went on
	Failed                   // an error kept it from being judged or released
)

var verdicts = [...]string{
	InUse: "in-use", Young: "young", Starting: "starting", Conflict: "conflict", Malformed: "malformed",
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
	return fmt.Sprintf("verdict %d", uint8(v))
}

// MarshalText returns the verdict's word.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// A Reason says why a reservation got its verdict. Each reason belongs to one
// verdict and to one of the rules R1 to R13.
type Reason uint8

// The reasons, by the verdict that they lead to.
const (
	ContainerLive  Reason = iota // InUse
	AddressClaimed               // InUse
	SiblingInUse                 // InUse

	TooYoung    // Young
	TimeInDoubt // Young

	PodStarting     // Starting
	PodStartUnknown // Starting

	OtherContainer  // Conflict
	TwoPods         // Conflict
	OwnerInConflict // Conflict

	OwnerMalformed // Malformed

	Unowned    // Leaked
	EmptyOwner // Leaked
	NotTried   // Leaked

	ReleasedLeak  // Released
	ReleasedEmpty // Released

	FileChanged    // Changed
	SiblingChanged // Changed

	FileGone // Gone

	OwnerUnreadable   // Failed
	SiblingUnreadable // Failed
	ReleaseFailed     // Failed
	NotJudged         // Failed
	NoAnswer          // Failed
	EmptyView         // Failed
)

var reasons = [...]struct {
	verdict Verdict
	rule    string
	text    string
}{
	ContainerLive:     {InUse, "R3", "its container belongs to a live pod"},
	AddressClaimed:    {InUse, "R3", "a live pod has its address"},
	SiblingInUse:      {InUse, "R3", "its container holds another address, which is in use"},
	TooYoung:          {Young, "R5", "younger than the minimum age"},
	TimeInDoubt:       {Young, "R5", "its time says no age, so it counts from when it was first seen"},
	PodStarting:       {Starting, "R4", "made since a pod started that has neither address nor container yet"},
	PodStartUnknown:   {Starting, "R4", "a pod has neither address nor container yet, and when it started is unknown"},
	OtherContainer:    {Conflict, "R10", "its owner is not live, but a live pod with another container has its address"},
	TwoPods:           {Conflict, "R10", "two live pods have its address"},
	OwnerInConflict:   {Conflict, "R10", "its owner holds another address, over which there is a conflict"},
	OwnerMalformed:    {Malformed, "R7", "its file holds nothing that host-local writes"},
	Unowned:           {Leaked, "R3", "no live pod has its container or its address"},
	EmptyOwner:        {Leaked, "R3", "its file is empty, and no live pod has its address"},
	NotTried:          {Leaked, "R8", "nobody holds it, but the pass ended before its turn"},
	ReleasedLeak:      {Released, "R3", "no live pod had its container or its address"},
	ReleasedEmpty:     {Released, "R3", "its file was empty, and no live pod had its address"},
	FileChanged:       {Changed, "R6", "it is not the reservation any more that the pass listed"},
	SiblingChanged:    {Changed, "R3", "an address in use, perhaps of the same container, changed while the pass read it"},
	FileGone:          {Gone, "R12", "somebody else removed it meanwhile"},
	OwnerUnreadable:   {Failed, "R11", "its file could not be read"},
	SiblingUnreadable: {Failed, "R3", "an address in use, perhaps of the same container, could not be read"},
	ReleaseFailed:     {Failed, "R11", "its file could not be removed"},
	NotJudged:         {Failed, "R11", "not judged: the pass met an error before"},
	NoAnswer:          {Failed, "R2", "not judged: the pod source gave no answer that counts"},
	EmptyView:         {Failed, "R9", "not judged: the source reports no pod at all"},
}

// String returns the reason as half a sentence in lower case.
func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r].text
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Verdict returns the verdict that r leads to.
func (r Reason) Verdict() Verdict {
	if int(r) < len(reasons) {
		return reasons[r].verdict
	}
	return Failed
}

// Rule returns the number of the safety rule behind r, as in "R3".
func (r Reason) Rule() string {
	if int(r) < len(reasons) {
		return reasons[r].rule
	}
	return ""
}
