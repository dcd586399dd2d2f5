// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"math"
	"syscall"
)

// cpuSeconds is what this process has had of the CPUs so far, all its threads
// together, in user and in system mode.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return math.NaN()
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
