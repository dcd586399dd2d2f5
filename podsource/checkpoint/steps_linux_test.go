// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// The clock is set between two starts, or while the agent runs, and the agent starts again and
// again. A version without a record has reserved an address by the old clock, and its container is
// not listed yet.
//
// Guard: [record.gapUntil] moves no end of a gap backwards, and [record.Stepped] outlives the agent.
func TestHazard52ClockIsSetAndTheAgentStartsAgain(t *testing.T) {
	for _, row := range []struct {
		reason   string
		step     time.Duration // of the clock
		reserved time.Duration // ago, by the clock of now
		runs     bool          // the agent runs during the step
		backfill bool          // another source is asked by the last start
	}{
		{"back", -8 * time.Hour, -6 * time.Hour, false, false},
		{"back while the agent runs", -8 * time.Hour, -6 * time.Hour, true, false},
		{"forward, and a source does not list it yet", 8 * time.Hour, 8*time.Hour + 2*time.Minute, false, true},
	} {
		for starts := 1; starts <= 3; starts++ {
			n, path := newNode(t), newPath(t)
			n.Reserve(network1, "10.0.0.3", "x", row.reserved)
			if row.runs { // the gap of its start goes on by the old clock
				c := begun(t, path, served)
				s := *c.state.Load()
				s.gap, s.wall = gap{From: time.Now(), To: time.Now().Add(DefaultLag - row.step)}, s.wall.Add(-row.step)
				c.state.Store(&s)
				must(t, c.Add(entry("a", "10.0.0.2")), c.Close())
			} else {
				const ago = 3 * time.Minute
				r := record{Written: time.Now().Add(-ago - row.step), SinceBoot: boottime.Since() - ago, Entries: []Entry{}}
				r.Gap.From, r.Gap.Others = time.Unix(1, 0), time.Unix(1, 0)
				content, err := encode(r)
				must(t, err)
				write(t, path, string(content))
			}
			for range starts - 1 {
				c := opened(t, path, served)
				must(t, c.Add(entry("b", "10.0.0.4")), c.Close())
			}
			c := opened(t, path, served)
			if row.backfill {
				must(t, c.Backfill(t.Context(), answers(runtimeOf("other")), by(nil)))
			}
			n.keeps(fmt.Sprintf("%s, %d starts", row.reason, starts), c, "10.0.0.3")
		}
	}
}

// A writer whose lock file was removed does not answer: another writer may have recorded a live container.
//
// Guard: [Checkpoint.Pods] checks the lock.
func TestHazard96AWriterWithoutItsLockDoesNotAnswer(t *testing.T) {
	path := newPath(t)
	first, err := Open(path, noLag)
	must(t, err, first.Backfill(t.Context(), noPods, nil), os.Remove(path+".lock"))
	must(t, opened(t, path, noLag).Add(entry("x", "10.0.0.3")))
	_, err = first.Pods(t.Context())
	check(t, errors.Is(err, ErrLocked), "Pods: %v", err)
	check(t, errors.Is(first.Close(), ErrLocked), "Close: no error")
}

// A container of nerdctl is older than all that a second source, of any container, was told of.
//
// Guard: [Checkpoint.Backfill] closes the gap of containers that are no sandboxes up to where the list of such a source begins.
func TestHazard49TwoSourcesOfOtherKinds(t *testing.T) {
	n := newNode(t)
	n.allow = nil
	n.Reserve(network1, "10.0.0.4", "default-"+strings.Repeat("ed", 32), 30*time.Minute)
	c := opened(t, newPath(t), served)
	cri, store := runtimeOf(strings.Repeat("5a", 32)), runtimeOf("other")
	cri.Names, store.Gaps = podsource.SandboxContainers, []podsource.Gap{{From: time.Now().Add(-time.Hour)}}
	for _, source := range []podsource.Answer{cri, store} {
		must(t, c.Backfill(t.Context(), answers(source), by(nil)))
	}
	n.keeps("of nerdctl", c, "10.0.0.4")
}

// The mounts of a mount namespace are those that its threads see: not those of a thread whose root was unmounted, which has the
// same name. If no thread can show them, no network namespace has ended.
//
// Guard: [namespaces.readThread] and [namespaces.readProcesses] count the mount namespaces whose mounts were seen.
func TestHazard92MountNamespaces(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	web, bindAt := filepath.Join(dir, "web"), filepath.Join(dir, "elsewhere")
	root, pin := filepath.Join(dir, "root"), filepath.Join(dir, "pins/pin")
	must(t, os.Mkdir(root, 0o700), os.Mkdir(filepath.Dir(pin), 0o700))
	write(t, bindAt, "")
	write(t, pin, "")
	must(t, syscall.Mount(filepath.Dir(pin), filepath.Dir(pin), "", syscall.MS_BIND, "")) // unshared mounts alone can show a mount namespace
	must(t, syscall.Mount("", filepath.Dir(pin), "", syscall.MS_PRIVATE, ""))
	// Process 1 changes its root, which the other one then unmounts.
	unmountRoot := func(then string) func() (end func()) {
		return func() func() {
			script := strings.NewReplacer("WEB", web, "THERE", bindAt, "ROOT", root).Replace("mount --bind WEB THERE; umount WEB; mount --rbind / ROOT; " +
				"mount -t proc proc /proc; { until [ $(readlink /proc/1/root) = ROOT ]; do :; done; umount -l ROOT; echo begun; " + then +
				"; } & exec chroot ROOT sleep infinity")
			return run(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, "sh", "-ec", script)
		}
	}
	for _, row := range []struct {
		reason string
		hold   func() (end func())
	}{
		{"the only thread's root was unmounted", unmountRoot("exit")},
		{"it has no thread, and is kept by a mount", func() func() {
			// Linux takes IDs of namespaces from ranges for each CPU, and refuses to mount one with a smaller ID.
			script := "for i in $(seq 1000); do unshare --mount=" + pin + " true && exit; done; exit 1"
			if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return func() { unmount(t, pin) }
		}},
		{"the first thread's root was unmounted", unmountRoot("exec sleep infinity")},
	} {
		mountNS(t, web)()
		c := begun(t, newPath(t), noLag, attachedTo("a", "10.0.0.2", web))
		end := row.hold()
		unmount(t, web)
		checkLive(t, row.reason, c, "a")
		end()
		checkLive(t, row.reason+"; its end", c)
	}
}

// Not all processes of the node are seen: then no network namespace has ended, and the answer says why.
//
// Guard: [namespaces.readProcesses] lets only Options.Nested say that process 1 of a container is a node's, and refuses hidepid.
func TestHazard92SomeProcessesAreNotSeen(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t) // to an agent without hostPID also a process beside it that has a PID namespace of its own
	web := filepath.Join(dir, "web")
	for _, row := range []struct {
		reason, proc, says string
		nested             bool
	}{
		{"a container that is not said to be the node", "hidepid=0", "Nested", false},
		{"processes of other users are hidden", "hidepid=2", "hidepid", true},
	} {
		must(t, syscall.Mount("proc", "/proc", "proc", syscall.MS_REMOUNT, row.proc))
		mountNS(t, web)()
		opts := Options{Networks: []string{network1}, Nested: row.nested, Lag: 1}
		c := begun(t, newPath(t), opts, attachedTo("a", "10.0.0.2", web))
		unmount(t, web)
		for _, source := range []podsource.Source{c, reader(t, c.path, opts)} {
			if a, err := source.Pods(t.Context()); err != nil || len(a.Pods) != 1 || !strings.Contains(a.Note, row.says) {
				t.Errorf("%s: %+v, %v", row.reason, a, err)
			}
		}
	}
}

// A nil source lets an agent begin whose runtime is silent: what is reserved is kept, until a later call closes the gap.
//
// Guard: [backfill.ask] lets a nil source list nothing.
func TestHazard51BackfillWithoutASource(t *testing.T) {
	n := newNode(t)
	n.Reserve(network1, "10.0.0.3", "x", time.Hour)
	c := opened(t, newPath(t), noLag)
	must(t, c.Backfill(t.Context(), nil, nil), c.Add(entry("a", "10.0.0.2")))
	n.keeps("before the runtime was asked", c, "10.0.0.3")
	must(t, c.Backfill(t.Context(), noPods, nil))
	n.keeps("after", c)
}
