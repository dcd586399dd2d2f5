// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"fmt"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// What the simulator tells is a case: each pass keeps what lives.
func TestSimulatorTellsCases(t *testing.T) {
	for seed := range uint64(10) {
		text := gc.SimulatedCase(t, seed)
		t.Run(fmt.Sprint(seed), gc.InBubble(func(t *testing.T) {
			if err := newNode(t).run(parse(t, text)[0]); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		}))
	}
}
