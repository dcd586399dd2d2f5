// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// The clock was set forward after a container had been attached. So the process in its entry of libcni's cache seems to have
// started later than the entry was written, as if it had got the PID of another one. That proves nothing.
//
// Guard: [Source.Living] is not certain where only the time says that a process is another one.
func TestHazard115ClockIsSetForward(t *testing.T) {
	if !onNode(t) {
		return
	}
	pid, _ := startPod(t)
	process, link := fmt.Sprintf("/proc/%d/ns/net", pid), "/run/netns-of-a-process"
	if err := os.Symlink(process, link); err != nil {
		t.Fatal(err)
	}
	lives, err := nested(t).Living(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{process, link} {
		if may, sure := lives(path, time.Now()); !may || !sure {
			t.Errorf("%s, of now: lives %t, sure %t", path, may, sure)
		}
		for _, at := range []time.Time{time.Now().Add(-time.Minute), time.Unix(1, 0)} {
			if _, sure := lives(path, at); sure {
				t.Errorf("%s, of %v, when there was no such process: it is sure", path, at)
			}
		}
	}
}
