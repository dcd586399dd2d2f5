// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/internal/uptime"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// The time of the node's boot ends the claims of starting pods (R4).
func TestHazard40BootIsTheKernels(t *testing.T) {
	kernels := func() time.Duration {
		content, err := os.ReadFile("/proc/uptime") // in seconds with two digits, rounded down
		must(t, err)
		first, _, _ := strings.Cut(string(content), " ")
		seconds, err := strconv.ParseFloat(first, 64)
		must(t, err)
		return time.Duration(seconds * float64(time.Second))
	}
	r, err := New(newNode(t).store, []string{network1}, podsource.Static{other}, Options{})
	must(t, err)
	defer func(replaced func() time.Duration) { uptime.Since = replaced }(uptime.Since)
	uptime.Since = boottime.Since
	before := kernels()
	boot, mono, now := boottime.Since(), boottime.Monotonic(), r.now()
	if (now.mono - mono).Abs() > 10*time.Millisecond { // all processes share it (hazard 81)
		t.Errorf("the monotonic clock shows %v, the kernel's %v", now.mono, mono)
	}
	after := kernels() + 10*time.Millisecond
	if boot < before || now.boot < boot || now.boot > after {
		t.Errorf("the node has been up for %v, and then for %v; the kernel said %v before, and %v after", boot, now.boot, before, after)
	}
}
