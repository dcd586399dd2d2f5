// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// R6: what the lock protects is compared once more under the lock.
func TestHazard09ReplacedBetweenJudgingAndDeleting(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "dead", old)
	n.reserve("10.0.0.3", "dead2", old)
	ctx := newTurnContext(t)
	source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		// From the answer on, at the first look under the lock.
		ctx.on(func() {
			if n.locked() && n.owner("10.0.0.2") == "dead" {
				n.replace("10.0.0.2", "live", old)
			}
		})
		return []podsource.Pod{other}, nil
	})
	report, err := New(n.store, source, Options{}).Reconcile(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n.check(report, map[string]Verdict{"10.0.0.2": Changed, "10.0.0.3": Released})
	if got := n.owner("10.0.0.2"); got != "live" {
		t.Errorf("10.0.0.2 is of %q now, want the new owner", got)
	}
}
