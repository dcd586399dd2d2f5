// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Union is live where any of the sources says so. They are asked one after the
// other, and the first error is the error of the whole (R2): one witness that
// is silent is no proof that nobody is there.
//
// What several say of one pod, known by its UID, is merged: all container IDs,
// all addresses, the earliest start. A statement that the pod has finished is
// not merged with one that it has not, so that the addresses of the first are
// no claims of the second.
func Union(sources ...Source) Source {
	return Func(func(ctx context.Context) ([]Pod, error) {
		if len(sources) == 0 {
			return nil, errors.New("union of no pod sources")
		}
		var all []Pod
		type key struct {
			uid      types.UID
			finished bool
		}
		at := make(map[key]int)
		for i, s := range sources {
			pods, err := s.Pods(ctx)
			if err != nil {
				return nil, fmt.Errorf("pod source %d of %d: %w", i+1, len(sources), err)
			}
			for _, p := range pods {
				k := key{p.UID, !p.FinishedAt.IsZero()}
				if j, ok := at[k]; ok && p.UID != "" {
					merge(&all[j], p)
					continue
				}
				at[k] = len(all)
				all = append(all, p)
			}
		}
		return all, nil
	})
}

// merge adds to p what q says of the same pod. Slices are copied before they
// grow: they belong to the sources.
func merge(p *Pod, q Pod) {
	if p.Name == "" {
		p.NamespacedName = q.NamespacedName
	}
	for _, id := range q.ContainerIDs {
		if !slices.Contains(p.ContainerIDs, id) {
			p.ContainerIDs = append(slices.Clip(p.ContainerIDs), id)
		}
	}
	for _, ip := range q.IPs {
		if !slices.Contains(p.IPs, ip) {
			p.IPs = append(slices.Clip(p.IPs), ip)
		}
	}
	p.StartedAt = earliest(p.StartedAt, q.StartedAt)
	if q.FinishedAt.After(p.FinishedAt) { // both finished: see the key in Union
		p.FinishedAt = q.FinishedAt
	}
	p.HostNetwork = p.HostNetwork || q.HostNetwork
}

// earliest returns the earlier of two times, of which zero is unknown.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Fallback asks first, and then only where first says that it does not exist
// here: errors.Is(err, fs.ErrNotExist), as a missing socket or a record that was
// never written is. Any other error of first is the answer. A source that is
// merely not ready must not be replaced by one that knows less.
func Fallback(first, then Source) Source {
	return Func(func(ctx context.Context) ([]Pod, error) {
		pods, err := first.Pods(ctx)
		if err == nil {
			return pods, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		pods, thenErr := then.Pods(ctx)
		if thenErr != nil {
			return nil, fmt.Errorf("%w; falling back, since the first choice is not there: %w", thenErr, err)
		}
		return pods, nil
	})
}

// Require is s, but refuses a list that lacks the given pod: the agent itself,
// say, which runs on this node as surely as it asks. A wrong node name, a cache
// that has not synced and the list of another node are found this way (R9). The
// error wraps [ErrIncomplete]. A pod without a name, as of an environment variable
// that is not set, is an error too: sources may well list pods without one.
func Require(s Source, pod types.NamespacedName) Source {
	return Func(func(ctx context.Context) ([]Pod, error) {
		if pod.Name == "" {
			return nil, fmt.Errorf("the required pod %q has no name; was it left unset?", pod)
		}
		pods, err := s.Pods(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(pods, func(p Pod) bool { return p.NamespacedName == pod }) {
			return nil, fmt.Errorf("%w: %d pods, and the required %s is not among them; is the node's name right?",
				ErrIncomplete, len(pods), pod)
		}
		return pods, nil
	})
}
