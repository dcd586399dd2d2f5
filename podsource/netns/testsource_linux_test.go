// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"os"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// An attachment is the address of a mounted network namespace.
func TestSource(t *testing.T) {
	if !onNode(t) {
		return
	}
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		proc := t.TempDir() + "/proc"
		repair := func() { must(os.Symlink("/proc", proc)) }
		repair()
		s, err := New(Options{Proc: proc, Nested: true, Networks: []string{"podnet", "storage"}})
		must(err)
		both := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) { // in one answer, as the test takes it
			a, err := s.Pods(ctx)
			if err != nil {
				return a, err
			}
			adds, seen := parts(t, a)
			seen.SeesADDs, seen.Pods = adds.SeesADDs, append(seen.Pods, adds.Pods...)
			return seen, nil
		})
		mounts := make(map[string]bool)
		mountOf := func(at podsource.Attachment) string { return "/run/netns/" + at.ContainerID + "-" + at.IfName }
		remove := func(path string) {
			if mounts[path] {
				unmount(t, path)
				must(os.Remove(path))
				delete(mounts, path)
			}
		}
		reboot := func() {
			for path := range mounts {
				remove(path)
			}
		}
		t.Cleanup(reboot)
		return gctest.Fixture{
			Source: both, Networks: []string{"podnet", "storage"},
			Attach: func(at podsource.Attachment) {
				var ips []string
				for _, ip := range at.IPs {
					ips = append(ips, ip.String())
				}
				if path := mountOf(at); !mounts[path] {
					mountNamespace(t, path, ips...)
					mounts[path] = true
				}
			},
			Detach: func(at podsource.Attachment) { remove(mountOf(at)) },
			Break:  func() { must(os.Remove(proc)) },
			Repair: repair,
			Reboot: reboot,
		}
	})
}
