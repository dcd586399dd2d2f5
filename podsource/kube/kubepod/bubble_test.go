// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package kubepod

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	corev1 "k8s.io/api/core/v1"
)

// verdicts runs two passes of one reconciler, with the given time between them.
func verdicts(t *testing.T, apart, reserved time.Duration, pods ...*corev1.Pod) (first, second gc.Verdict) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // a bubble starts in the year 2000
		pass := passes(t, reserved, pods...)
		first = pass()
		time.Sleep(apart)
		second = pass()
	})
	return first, second
}
