// SPDX-License-Identifier: Apache-2.0

package containerdtest

import "testing"

func TestFirst(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		p := n.run("web-1")
		t.Log(p, n.sandboxes(), n.reservations(n.network))
		n.remove(p.id)
		t.Log(n.sandboxes(), n.reservations(n.network))
	})
}
