// SPDX-License-Identifier: Apache-2.0

//go:build !linux

// Package boottime returns how long a node has been up.
package boottime

import "time"

// Since returns zero: the time is unknown on this platform.
func Since() time.Duration { return 0 }

// Monotonic returns zero: the clock is unknown.
func Monotonic() time.Duration { return 0 }
