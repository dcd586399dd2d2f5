// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// ask gets the source's answer. It returns when ctx ends, also when the source
// does not, and makes an error of a panic (R2, R13). A source that went on after
// its context is not asked again before it came back, so that no more than one
// call of it is ever under way.
func (r *Reconciler) ask(ctx context.Context) ([]podsource.Pod, error) {
	done := ctx.Done()
	select {
	case r.asking <- struct{}{}:
	case <-done:
		return nil, fmt.Errorf("asking the pod source, which still works on an earlier question: %w", ctx.Err())
	}
	type answer struct {
		pods []podsource.Pod
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		defer func() { <-r.asking }()
		defer func() {
			if p := recover(); p != nil {
				got <- answer{nil, fmt.Errorf("pod source panicked: %v", p)}
			}
		}()
		pods, err := r.source.Pods(ctx)
		got <- answer{pods, err}
	}()
	select {
	case a := <-got:
		if a.err == nil {
			a.err = checkPods(a.pods)
		}
		if a.err != nil {
			return nil, fmt.Errorf("asking the pod source: %w", a.err)
		}
		return a.pods, nil
	case <-done:
		return nil, fmt.Errorf("asking the pod source: %w", ctx.Err())
	}
}
