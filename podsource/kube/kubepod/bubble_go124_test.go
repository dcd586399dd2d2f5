// SPDX-License-Identifier: Apache-2.0

//go:build !go1.25

package kubepod

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	corev1 "k8s.io/api/core/v1"
)

// verdicts needs testing/synctest, which Go 1.24 does not have.
func verdicts(t *testing.T, _, _ time.Duration, _ ...*corev1.Pod) (first, second gc.Verdict) {
	t.Skip("testing/synctest needs Go 1.25")
	return first, second
}
