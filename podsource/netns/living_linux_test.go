// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A process in an entry of libcni's cache seems to have started later than the entry was
// written: it may have got the PID of another one, or the clock was set forward (hazard 115).
//
// Guard: [Source.Living] is not certain where only the time says that a process is another one.
func TestLiving(t *testing.T) {
	if !onNode(t) {
		return
	}
	mountNamespace(t, "/run/netns/cni-1", "10.0.0.2")
	pid, stop := startPod(t)
	ofPod, ofNone := fmt.Sprintf("/proc/%d/ns/net", pid), "/proc/4194303/ns/net"
	err := errors.Join(os.WriteFile("/run/netns/cni-2", nil, 0o444),
		os.MkdirAll("/run/other/deeper", 0o755), os.Mkdir("/run/other/aside", 0o755))
	for link, target := range map[string]string{
		"process": ofPod, "ended": ofNone, "second": "ended", "third": "second", "twice": "process",
		"named": "../netns/./cni-1", "unnamed": "cni-2", "nowhere": "none", "circle": "circle",
		"../alias": "/run/other/deeper", "../other/aside/process": ofPod,
	} {
		err = errors.Join(err, os.Symlink(target, "/run/netns/"+link))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := nested(t)
	now, earlierBoot := time.Now(), time.Unix(1, 0)
	for _, row := range []struct {
		reason      string
		path        string
		at          time.Time
		lives, sure bool
	}{
		{"mounted", "/run/netns/cni-1", now.Add(-time.Hour), true, true},
		{"mounted, another spelling of its path", "/var/run/netns/cni-1/.", now, true, true},
		{"a file that is no mount", "/run/netns/cni-2", now, false, true},
		{"nothing", "/run/netns/cni-3", now, false, true},
		{"a process", ofPod, now, true, true},
		{"115 a process that seems to have started later", ofPod, now.Add(-time.Minute), false, false},
		{"... through a link", "/run/netns/process", now.Add(-time.Minute), false, false},
		{"... from before this boot", ofPod, earlierBoot, false, false},
		{"one of its threads", fmt.Sprintf("/proc/%d/task/%d/ns/net", pid, pid), now, true, true},
		{"no process", ofNone, now, false, true},
		{"a process, as an agent's container sees procfs", "/host" + ofPod, now, true, true},
		{"a link to a process that has ended, through two more links", "/run/netns/third", now, false, true},
		{"a link to a link to a process", "/var/run/../../run/netns/twice", now, true, true},
		{"a link to a mount of another name", "/run/netns/named", now, true, true},
		{"a link to a file that is no mount", "/run/netns/unnamed", now, false, true},
		{"a link to nothing", "/run/netns/nowhere", now, false, true},
		{"a link in a sibling of a link's target", "/run/alias/../aside/process", now, true, true},
		{"a path through a file", "/run/netns/cni-2/process", now, false, true},
		{"a link to itself", "/run/netns/circle", now, true, false},
		{"a path that can't be looked up", "/run/netns/" + strings.Repeat("x", 300), now, true, false},
		{"a procfs at another path", "/hostproc/4711/ns/net", now, true, false},
		{"an open descriptor in a procfs at another path", "/hostproc/self/fd/7", now, true, false},
		{"... from before this boot", "/hostproc/self/fd/7", earlierBoot, false, false},
		{"a path that only its writer could follow", "/proc/self/fd/7", now, true, false},
		{"a relative path", "cni-3", now, true, false},
		{"no path, of this boot", "", now, true, false},
		{"... from before this boot", "", earlierBoot, false, false},
	} {
		if got, sure := living(t, s)(row.path, row.at); got != row.lives || sure != row.sure {
			t.Errorf("%s: got %t, sure: %t, want %t, %t", row.reason, got, sure, row.lives, row.sure)
		}
	}
	// The clock is set forward by a minute while this process runs.
	entry, stepped := time.Now().Add(-time.Minute), nested(t)
	boot := stepped.boot.Note(stepped.boot.Read().Add(-time.Minute))
	if !livesSurely(living(t, stepped), ofPod, entry) {
		t.Error("a process that started before the step does not exist")
	}
	for at, want := range map[time.Time]bool{boot.Add(-timestampTolerance): true, boot.Add(-timestampTolerance - 1): false} {
		if got, _ := living(t, stepped)("", at); got != want {
			t.Errorf("%v before the boot, and times may be apart by %v: got %t", boot.Sub(at), timestampTolerance, got)
		}
	}
	// Living uses what Pods found once, and nothing after Pods failed.
	failed := nested(t)
	for _, s := range []*Source{s, failed} {
		if _, err := s.Pods(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := failed.Pods(ended); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	unmount(t, "/run/netns/cni-1")
	stop()
	for i, source := range []*Source{failed, s, s} {
		want := i == 1
		lives := living(t, source)
		if got := livesSurely(lives, "/run/netns/cni-1", now); got != want {
			t.Errorf("unmounted after Pods, call %d: got %t, want %t", i, got, want)
		}
		if livesSurely(lives, ofPod, now) {
			t.Error("a process that has ended exists")
		}
	}
	if lives, err := nested(t).Living(ended); !errors.Is(err, context.Canceled) || lives != nil {
		t.Errorf("the context has ended: %v", err)
	}
}

// living returns what the source's Living returns.
func living(t *testing.T, s *Source) func(path string, at time.Time) (lives, sure bool) {
	t.Helper()
	lives, err := s.Living(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lives
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
		{"... as a field is missing", map[string]string{"stat": strings.TrimSuffix(stat, " 36000"), "ns/net": "link:net:[5]"}, -time.Hour, true},
		{"... or the name", map[string]string{"stat": strings.Replace(stat, "(sleep)", "sleep", 1), "ns/net": "link:net:[5]"}, -time.Hour, true},
		{"... or it is no number", map[string]string{"stat": strings.Replace(stat, "36000", "x", 1), "ns/net": "link:net:[5]"}, -time.Hour, true},
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
}

func livesSurely(lives func(string, time.Time) (bool, bool), path string, at time.Time) bool {
	may, sure := lives(path, at)
	return may && sure
}

// Links are followed from process 1's root, not from this process's own.
func TestFollow(t *testing.T) {
	proc := t.TempDir()
	root := filepath.Join(proc, "1", "root")
	err := errors.Join(os.MkdirAll(root+"/private/netns", 0o755), os.Mkdir(root+"/var", 0o755))
	for link, target := range map[string]string{"/var/run": "/private", "/private/netns/x": "/proc/7/ns/net", "/private/up": "../../.."} {
		err = errors.Join(err, os.Symlink(target, root+link))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := scanOf(t, proc)
	for _, row := range []struct {
		path, want string
		err        error
	}{
		{"/var/run/netns/x", "/private/netns/x", nil},
		{"/private/netns/x", "/proc/7/ns/net/", nil},
		{"/private/../../private//./netns/x/y", "/proc/7/ns/net/y", nil},
		{"/private/up/private/netns/x", "/private/../../../private/netns/x", nil},
		{"/private/netns", "", fs.ErrNotExist},
		{"/private/../..", "", fs.ErrNotExist},
	} {
		if got, err := s.follow(row.path); got != row.want || !errors.Is(err, row.err) {
			t.Errorf("%s: got %q, %v, want %q, %v", row.path, got, err, row.want, row.err)
		}
	}
}
