// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// live makes pods of the entries that are not surely dead, one a container, and
// vouches for them: what is not here was not recorded, or not in this boot.
func live(ctx context.Context, entries []Entry) ([]podsource.Pod, error) {
	var pods []podsource.Pod
	at := make(map[string]int)
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if e.NetNS.gone() {
			continue
		}
		i, ok := at[e.ContainerID]
		if !ok {
			i = len(pods)
			at[e.ContainerID] = i
			pods = append(pods, podsource.Pod{ContainerIDs: []string{e.ContainerID}})
		}
		p := &pods[i]
		p.NamespacedName = cmp.Or(p.NamespacedName, e.Pod)
		p.UID = cmp.Or(p.UID, e.UID)
		p.IPs = append(slices.Clip(p.IPs), e.IPs...)
	}
	return podsource.Vouched(pods), nil
}
