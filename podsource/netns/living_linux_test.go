// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLiving checks what Living reports for paths.
func TestLiving(t *testing.T) {
	if !onNode(t) {
		return
	}
	mountNamespace(t, "/run/netns/cni-1", "10.0.0.2")
	if err := os.WriteFile("/run/netns/cni-2", nil, 0o444); err != nil {
		t.Fatal(err)
	}
	pid, stop := startPod(t)
	ofPod, ofNone := fmt.Sprintf("/proc/%d/ns/net", pid), "/proc/4194303/ns/net"
	for _, dir := range []string{"/run/other/deeper", "/run/other/aside"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"/run/netns/process": ofPod, "/run/netns/ended": ofNone, "/run/netns/second": "ended", "/run/netns/third": "second", "/run/netns/twice": "process", "/run/netns/named": "../netns/./cni-1",
		"/run/netns/unnamed": "cni-2", "/run/netns/nowhere": "none", "/run/netns/circle": "circle", "/run/netns/there": "back", "/run/netns/back": "there",
		"/run/alias": "/run/other/deeper", "/run/other/aside/process": ofPod,
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	s := nested(t)
	now := time.Now()
	unclear := map[string]bool{
		"/run/netns/circle": true, "/run/netns/there": true, "/run/netns/" + strings.Repeat("x", 300): true, "/hostproc/4711/ns/net": true,
		"/hostproc/self/fd/7": true, "/proc/self/fd/7": true, "cni-3": true, "": true,
	}
	for _, row := range []struct {
		reason string
		path   string
		at     time.Time
		want   bool
	}{
		{"mounted", "/run/netns/cni-1", now.Add(-time.Hour), true},
		{"mounted, another spelling of its path", "/var/run/netns/cni-1", now, true},
		{"a file that is no mount", "/run/netns/cni-2", now, false},
		{"nothing", "/run/netns/cni-3", now, false},
		{"a process", ofPod, now, true},
		{"one of its threads", fmt.Sprintf("/proc/%d/task/%d/ns/net", pid, pid), now, true},
		{"no process", ofNone, now, false},
		{"a process, as an agent's container sees procfs", fmt.Sprintf("/host/proc/%d/ns/net", pid), now, true},
		{"mounted, a path with a dot", "/run/netns/cni-1/.", now, true},
		{"a link to a process", "/run/netns/process", now, true},
		{"... that has ended", "/run/netns/ended", now, false},
		{"... through two more links", "/run/netns/third", now, false},
		{"a link to a link to a process", "/var/run/../../run/netns/twice", now, true},
		{"a link to a mount of another name", "/run/netns/named", now, true},
		{"a link to a file that is no mount", "/run/netns/unnamed", now, false},
		{"a link to nothing", "/run/netns/nowhere", now, false},
		{"a link in a sibling of a link's target", "/run/alias/../aside/process", now, true},
		{"a path through a file", "/run/netns/cni-2/process", now, false},
		{"a link to itself", "/run/netns/circle", now, true},
		{"links in a circle", "/run/netns/there", now, true},
		{"... from before this boot", "/run/netns/there", time.Unix(1, 0), false},
		{"a path that can't be looked up", "/run/netns/" + strings.Repeat("x", 300), now, true},
		{"... from before this boot", "/run/netns/" + strings.Repeat("x", 300), time.Unix(1, 0), false},
		{"a procfs at another path", "/hostproc/4711/ns/net", now, true},
		{"an open descriptor in a procfs at another path", "/hostproc/self/fd/7", now, true},
		{"... from before this boot", "/hostproc/self/fd/7", time.Unix(1, 0), false},
		{"a path that only its writer could follow", "/proc/self/fd/7", now, true},
		{"... from before this boot", "/proc/self/fd/7", time.Unix(1, 0), false},
		{"a relative path", "cni-3", now, true},
		{"no path, of this boot", "", now, true},
		{"no path, from before this boot", "", time.Unix(1, 0), false},
	} {
		lives, err := s.Living(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, sure := lives(row.path, row.at)
		if got != row.want || sure == unclear[row.path] {
			t.Errorf("%s: got %t, sure: %t, want %t, %t", row.reason, got, sure, row.want, !unclear[row.path])
		}
	}
	// The clock is set forward by a minute while this process runs.
	entry := time.Now().Add(-time.Minute)
	stepped := nested(t)
	boot := stepped.boot.Note(stepped.boot.Read().Add(-time.Minute))
	if lives, err := stepped.Living(t.Context()); err != nil || !livesSurely(lives, ofPod, entry) {
		t.Errorf("a process that started before the step does not exist, %v", err)
	}
	early := boot.Add(-timestampTolerance)
	if lives, err := stepped.Living(t.Context()); err != nil {
		t.Error(err)
	} else if may, _ := lives("", early); !may {
		t.Error("a time before the boot, by as much as times may be apart, is not of this boot")
	} else if may, _ := lives("", early.Add(-1)); may {
		t.Error("a time before the boot, by more than times may be apart, is of this boot")
	}
	// Living uses what Pods found once.
	if _, err := s.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	failed := nested(t)
	if _, err := failed.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := failed.Pods(ended); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	unmount(t, "/run/netns/cni-1")
	if lives, err := failed.Living(t.Context()); err != nil || livesSurely(lives, "/run/netns/cni-1", now) {
		t.Errorf("unmounted after Pods failed: it exists, %v", err)
	}
	for _, want := range []bool{true, false} {
		lives, err := s.Living(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := lives("/run/netns/cni-1", now); got != want {
			t.Errorf("unmounted after Pods: got %t, want %t", got, want)
		}
	}
	stop()
	if lives, err := s.Living(t.Context()); err != nil || livesSurely(lives, ofPod, now) {
		t.Errorf("a process that has ended exists, %v", err)
	}
	hidden, err := New(Options{Proc: t.TempDir(), Nested: true})
	if err != nil {
		t.Fatal(err)
	}
	if lives, err := hidden.Living(t.Context()); err == nil || lives != nil {
		t.Error("no error for a node that can't be read")
	}
	if lives, err := nested(t).Living(ended); !errors.Is(err, context.Canceled) || lives != nil {
		t.Errorf("the context has ended: %v", err)
	}
}

// A process of which something can't be read counts as live since before that time.
func TestProcessLives(t *testing.T) {
	boot := time.Unix(1_000_000_000, 0)
	const stat = "7 (sleep) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 36000" // six minutes later
	for _, row := range []struct {
		reason string
		files  map[string]string // as of procOf
		at     time.Duration
		want   bool
	}{
		{"it had started", map[string]string{"stat": stat, "ns/net": "link:net:[5]"}, 2 * time.Hour, true},
		{"it started later", map[string]string{"stat": stat, "ns/net": "link:net:[5]"}, time.Minute, false},
		{"it started later, by as much as times may be apart", map[string]string{"stat": stat, "ns/net": "link:net:[5]"}, 6*time.Minute - timestampTolerance, true},
		{"... by more", map[string]string{"stat": stat, "ns/net": "link:net:[5]"}, 6*time.Minute - timestampTolerance - 1, false},
		{"its start can't be read", map[string]string{"stat": "garbage", "ns/net": "link:net:[5]"}, -time.Hour, true},
		{"... and it has no thread", map[string]string{"stat": "garbage"}, 2 * time.Hour, true},
		{"its namespace can't be read", map[string]string{"stat": stat, "ns/net": ""}, time.Minute, true},
		{"its threads can't be listed", map[string]string{"stat": stat, "task": ""}, 2 * time.Hour, true},
		{"it has no thread", map[string]string{"stat": stat}, 2 * time.Hour, false},
		{"it is gone", nil, 2 * time.Hour, false},
	} {
		s := scanOf(t, procOf(t, row.files))
		if got, _ := s.processLives("7", boot, boot.Add(row.at)); got != row.want {
			t.Errorf("%s: got %t, want %t", row.reason, got, row.want)
		}
	}
	later := scanOf(t, procOf(t, map[string]string{"stat": stat, "ns/net": "link:net:[5]"}))
	if _, sure := later.processLives("7", boot, boot.Add(time.Minute)); sure {
		t.Error("only its start shows that it is not that process")
	}
}

func livesSurely(lives func(string, time.Time) (bool, bool), path string, at time.Time) bool {
	may, sure := lives(path, at)
	return may && sure
}

// Links are followed from process 1's root, not from this process's own.
func TestFollow(t *testing.T) {
	proc := t.TempDir()
	root := filepath.Join(proc, "1", "root")
	for _, dir := range []string{"/private/netns", "/var"} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"/var/run": "/private", "/private/netns/x": "/proc/7/ns/net", "/private/up": "../../.."} {
		if err := os.Symlink(target, root+link); err != nil {
			t.Fatal(err)
		}
	}
	s := scanOf(t, proc)
	for _, row := range []struct{ path, want string }{
		{"/var/run/netns/x", "/private/netns/x"},
		{"/private/netns/x", "/proc/7/ns/net/"},
		{"/private/../../private//./netns/x/y", "/proc/7/ns/net/y"},
		{"/private/up/private/netns/x", "/private/../../../private/netns/x"},
	} {
		if got, err := s.follow(row.path); got != row.want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", row.path, got, err, row.want)
		}
	}
	for _, path := range []string{"/private/netns", "/", "/private/../.."} {
		if got, err := s.follow(path); got != "" || !errors.Is(err, errNoLink) {
			t.Errorf("%s: got %q, %v, want %v", path, got, err, errNoLink)
		}
	}
}
