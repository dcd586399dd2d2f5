// SPDX-License-Identifier: Apache-2.0

// Package gctest helps to test programs that embed package gc.
package gctest

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/internal/uptime"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// Uptime makes the reconcilers of this process believe that the node has been up for d, until the
// test ends: a reservation whose file is older than the node's boot counts as young. Tests that
// call it must not run in parallel. In a TestMain t may be nil; then it lasts until the process
// ends.
func Uptime(t testing.TB, d time.Duration) {
	before, called := uptime.Since, boottime.Since()
	if t != nil {
		t.Cleanup(func() { uptime.Since = before })
	}
	uptime.Since = func() time.Duration { return d + boottime.Since() - called }
}
