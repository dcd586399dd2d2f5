// SPDX-License-Identifier: Apache-2.0

package boottime_test

import (
	"fmt"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// The time of the boot. No network namespace from before it exists any more.
func ExampleSince() {
	up := boottime.Since()
	booted := time.Now().Add(-up)
	fmt.Println(up == 0 || booted.Before(time.Now()))
	// Output: true
}

// The clock was set forward by an hour since the first reading.
func ExampleEarliest() {
	var boot boottime.Earliest
	first := boot.Note(time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC))
	fmt.Println(first.Equal(boot.Note(first.Add(time.Hour))), boot.Note(first.Add(-time.Hour)).Equal(first))
	// Output: true false
}
