// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import "math"

// cpuSeconds is not known here.
func cpuSeconds() float64 { return math.NaN() }
