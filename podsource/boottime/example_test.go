// SPDX-License-Identifier: Apache-2.0

package boottime_test

import (
	"fmt"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// What is from before the boot needs no DEL, and no namespace of then is left.
func ExampleSince() {
	up := boottime.Since()
	booted := time.Now().Add(-up)
	fmt.Println(up == 0 || booted.Before(time.Now()))
	// Output: true
}
