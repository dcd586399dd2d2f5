// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gc

import "time"

// sinceBoot is unknown here.
func sinceBoot() time.Duration { return 0 }
