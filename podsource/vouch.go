// SPDX-License-Identifier: Apache-2.0

package podsource

import "k8s.io/apimachinery/pkg/types"

// Vouched is for sources that can tell an empty node from a view of nothing: a
// record of this boot, or a request that says who is valid. A list of no pods
// becomes one that sees the node itself, as a pod in the node's network, which
// claims nothing; so callers take it for an answer (R9), also from behind
// [Union] and [Fallback]. Any other list is returned as it is.
func Vouched(pods []Pod) []Pod {
	if len(pods) > 0 {
		return pods
	}
	return []Pod{{NamespacedName: types.NamespacedName{Name: "the-node-itself"}, HostNetwork: true}}
}
