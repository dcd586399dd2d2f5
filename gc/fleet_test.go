// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestFleet starts the agents of many nodes at the same time, and counts their calls of
// sources, which an API server would have to serve. All ask when they start, since a node
// should get its addresses back by then. From the first Interval on the calls are spread,
// more in each.
func TestFleet(t *testing.T) {
	const nodes, rounds, interval = 1000, 7, 10 * time.Minute
	n := newNode(t)
	n.reserve("10.0.0.9", "other", old)
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var mu sync.Mutex
		asked := make(map[time.Duration]int) // calls by second
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[time.Since(begun).Truncate(time.Second)]++
			return []podsource.Pod{other}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var agents sync.WaitGroup
		for range nodes {
			r := n.reconciler(source, Options{Interval: interval})
			agents.Go(func() { _ = r.Start(ctx) })
		}
		time.Sleep(rounds * interval)
		cancel()
		agents.Wait()

		busiest, total := make([]int, rounds+1), 0
		for second, n := range asked {
			round := int(second / interval)
			busiest[round] = max(busiest[round], n)
			total += n
		}
		t.Logf("%d nodes ask %d times in %v; calls in the busiest second of each %v: %v", nodes, total, rounds*interval, interval, busiest[:rounds])
		if busiest[0] != nodes {
			t.Errorf("%d nodes ask when they start, want all %d", busiest[0], nodes)
		}
		// The first round is spread over a tenth of ten minutes, 60 seconds.
		for round, n := range busiest[1:] {
			if n > nodes/20 {
				t.Errorf("%d of %d nodes ask in one second of round %d", n, nodes, round+1)
			}
		}
	})
}
