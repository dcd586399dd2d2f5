// SPDX-License-Identifier: Apache-2.0

// Package uptime is where package gc learns how long the node has been up, and where tests
// replace it.
package uptime

import (
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// Since returns how long the node has been up.
func Since() time.Duration {
	if since := Replaced.Load(); since != nil {
		return (*since)()
	}
	return boottime.Since()
}

// Replaced is what a test has in the place of the node's. Nil is the node's.
var Replaced atomic.Pointer[func() time.Duration]
