// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"hash/maphash"
	"math/bits"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An index finds live pods by their containers' IDs. It is a hash table that says
// where in the source's answer an ID stands: a map of strings would be the
// largest thing of a pass after the reservations.
type index struct {
	pods  []podsource.Pod
	seed  maphash.Seed
	slots []slot // a third of them empty, and at least one, so that every search ends
}

// A slot is the place of an ID: pods[pod-1].ContainerIDs[nth]. The zero slot is
// empty.
type slot struct{ pod, nth int32 }

func newIndex(pods []podsource.Pod) index {
	ids := 0
	for i := range pods {
		ids += len(pods[i].ContainerIDs)
	}
	x := index{pods: pods, seed: maphash.MakeSeed(), slots: make([]slot, ids+ids/2+1)}
	for i := range pods {
		for nth, id := range pods[i].ContainerIDs {
			if s, _, found := search(&x, maphash.String(x.seed, id), id); !found { // else named twice: the first counts
				*s = slot{int32(i) + 1, int32(nth)}
			}
		}
	}
	return x
}

// pod returns the first pod that has a container of that ID.
func (x *index) pod(containerID string) (pod int32, found bool) {
	s, _, found := search(x, maphash.String(x.seed, containerID), containerID)
	return s.pod - 1, found
}

// id returns a live container's ID as the string that the source gave.
func (x *index) id(containerID []byte) (id string, found bool) {
	_, id, found = search(x, maphash.Bytes(x.seed, containerID), containerID)
	return id, found
}

// search returns the slot of an ID and the source's string, or else the slot
// that the ID would get.
func search[T string | []byte](x *index, hash uint64, containerID T) (s *slot, id string, found bool) {
	at, _ := bits.Mul64(hash, uint64(len(x.slots))) // spreads hashes over any number of slots, without a division
	for ; ; at++ {
		if at == uint64(len(x.slots)) {
			at = 0
		}
		s = &x.slots[at]
		if s.pod == 0 {
			return s, "", false
		}
		if id = x.pods[s.pod-1].ContainerIDs[s.nth]; id == string(containerID) {
			return s, id, true
		}
	}
}
