// SPDX-License-Identifier: Apache-2.0

package boottime

import (
	"sync"
	"time"
)

// An Earliest is the earliest time of the node's boot that this process read. After the wall
// clock is set forward the boot seems to be later than files that were made since. The zero
// value has read nothing.
type Earliest struct {
	mu sync.Mutex // guards at
	at time.Time
}

// Read reads the time of the boot, and returns the earliest one: zero if it is unknown.
func (e *Earliest) Read() time.Time {
	up := Since()
	if up == 0 {
		return time.Time{}
	}
	return e.Note(time.Now().Add(-up).Round(0))
}

// Note records what a clock showed as the time of the boot, and returns the earliest one.
func (e *Earliest) Note(at time.Time) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() || at.Before(e.at) {
		e.at = at
	}
	return e.at
}
