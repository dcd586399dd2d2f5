// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestIndex holds the index to what a map would say, over many sizes, so that
// IDs fall into each other's slots.
func TestIndex(t *testing.T) {
	for size := range 300 {
		var pods []podsource.Pod
		want := make(map[string]int32)
		for i := range size {
			p := podsource.Pod{ContainerIDs: []string{fmt.Sprint("a", i), fmt.Sprint("shared", i/3)}}
			if i%7 == 0 {
				p = podsource.Pod{HostNetwork: true}
			}
			for _, id := range p.ContainerIDs {
				if _, ok := want[id]; !ok {
					want[id] = int32(i)
				}
			}
			pods = append(pods, p)
		}
		x := newIndex(pods)
		for i := range size + 1 {
			for _, id := range []string{fmt.Sprint("a", i), fmt.Sprint("shared", i), fmt.Sprint("none", i), ""} {
				pod, found := x.pod(id)
				if wanted, ok := want[id]; found != ok || found && pod != wanted {
					t.Fatalf("%d pods: %q is of pod %d, %t; want %d, %t", size, id, pod, found, wanted, ok)
				}
				if own, ok := x.id([]byte(id)); ok != found || ok && own != id {
					t.Fatalf("%d pods: the source's string of %q is %q, %t", size, id, own, ok)
				}
			}
		}
	}
}
