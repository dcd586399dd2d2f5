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
