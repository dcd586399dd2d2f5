// SPDX-License-Identifier: Apache-2.0

package gctest

import (
	"context"
	"slices"
	"sync"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A Source is a fake source of pods, which a test changes between passes. The zero value lists no
// pod, which is an error of a pass (R9). Its methods may be called from several goroutines.
type Source struct {
	// Declares is what its answers declare, without Pods, Parts and Err. The zero value is that of [podsource.Static].
	Declares podsource.Answer

	mu   sync.Mutex // guards what follows
	pods []podsource.Pod
	err  error
}

// Set makes the source list these pods, and no longer fail.
func (s *Source) Set(pods ...podsource.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods, s.err = slices.Clone(pods), nil
}

// Fail makes the source return an error instead of an answer, until Set is called.
func (s *Source) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Pods implements [podsource.Source].
func (s *Source) Pods(context.Context) (podsource.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.Declares
	if a.Networks == nil && !a.Supplementary {
		a.Networks = []string{podsource.EveryNetwork}
	}
	a.Pods = slices.Clone(s.pods)
	return a, s.err
}
