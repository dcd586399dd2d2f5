// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// machine says in a line what was measured on.
func machine() string {
	model := ""
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil { // Linux; elsewhere it stays unsaid
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = ", " + strings.TrimSpace(value)
				break
			}
		}
	}
	kernel := ""
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		version, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-") // what follows says who built it
		kernel = " " + version
	}
	return fmt.Sprintf("%s/%s%s, %d CPUs%s, %s", runtime.GOOS, runtime.GOARCH, kernel, runtime.NumCPU(), model, runtime.Version())
}

// load returns the load averages, or "" where they are not known.
func load() string {
	text, err := os.ReadFile("/proc/loadavg") // Linux
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 3 {
		return strings.Join(fields[:3], " ")
	}
	return ""
}
