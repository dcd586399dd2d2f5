// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// process returns the reconciler of another process on the node, which uses its memory.
func (n *node) process(source podsource.Source) *Reconciler {
	return n.reconciler(source, Options{Memory: n.memory})
}

// whenReadIn calls do after the nth reading of the clocks in a function.
func whenReadIn(r *Reconciler, function string, nth int, do func()) {
	now, calls := r.now, 0
	r.now = func() reading {
		at := now()
		if strings.Contains(string(debug.Stack()), function) {
			if calls++; calls == nth {
				do()
			}
		}
		return at
	}
}

// A step that only the reading for the memory saw counts, too: the clock was set again before the
// next pass.
func TestStepSeenByTheMemoryAlone(t *testing.T) {
	for _, writable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", time.Hour)
			r := n.process(inTurn(plain(other), plain(other, startingPod("web", n.wall()))))
			r.opts.Only = func(*hostlocal.Reservation) bool { // called after the last source
				n.step = -time.Hour
				if !writable {
					must(t, os.Symlink("/dev/full", n.memory+".new"))
				}
				return true
			}
			n.reconcile(r)
			if info, err := os.Lstat(n.memory); err == nil && !info.Mode().IsRegular() {
				t.Errorf("what could not be written replaced the memory: %v", info.Mode())
			}
			must(t, os.RemoveAll(n.memory+".new"))
			n.file("10.0.0.3", "web", -n.step) // made since the pod's start
			r.opts.Only = nil
			n.step = 24 * time.Hour
			n.reconcile(r)
			time.Sleep(DefaultMinAge)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.3": Starting})
		})
	}
}

// A memory that can't be trusted counts as none. The report says so, and the pass is none the worse.
func TestMemoryThatDoesNotCount(t *testing.T) {
	replace := func(old, by string) func(string) error {
		return func(path string) error {
			content, err := os.ReadFile(path)
			replaced := regexp.MustCompile(old).ReplaceAll(content, []byte(by))
			if bytes.Equal(replaced, content) {
				return errors.New("it is: " + string(content))
			}
			return errors.Join(err, os.WriteFile(path, replaced, 0o600))
		}
	}
	nowhere := newNode(t)
	nowhere.store = hostlocal.New(nowhere.path("none"))
	if report := nowhere.reconcile(nowhere.process(podsource.Static{other})); !strings.HasPrefix(report.Memory, "stat "+nowhere.path("none")) {
		t.Errorf("without a data directory the report says %q", report.Memory)
	}
	for _, c := range []struct {
		reason string
		change func(path string) error // nil: it counts
		note   string
	}{
		{"as it was written", nil, ""},
		{"of another boot", replace("^hostlocal-gc memory 1 ", "${0}x"), ""},
		{"of another time namespace", replace("^.*", "${0}x"), ""},
		{"of another version", replace("^hostlocal-gc memory 1", "${0}0"), "of another version"},
		{"of another data directory", replace(":[0-9]+ file ", "9$0"), ""},
		{"of another file", replace(`"10.0.0.2" `, "${0}9"), ""},
		{"from the future", replace(`(\d+) mono`, "9$0"), "from the future"},
		{"with a sight from the future", replace(`\d+ \d+:\d+ file `, "9$0"), ""},
		{"not a number", replace(" back", "x back"), "damaged"},
		{"without its end", replace("\n[0-9]+ end$", ""), "damaged"},
		{"with a hole that joins two lines", replace(" trusted\n", "        "), "damaged"},
		{"too large", func(path string) error { return os.Truncate(path, maxMemory+1) }, "larger than 64 MiB"},
		{"cut short", func(path string) error { return os.Truncate(path, 100) }, "damaged"},
		{"empty", func(path string) error { return os.Truncate(path, 0) }, "damaged"},
		{"others can write it", func(path string) error { return os.Chmod(path, 0o666) }, "others can write it"},
		{"another user can", func(path string) error { return os.Chown(path, 1, -1) }, "others can write it"},
		{"a link", func(path string) error { return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path)) }, "too many levels"},
		{"a directory, which stays", func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "file exists"},
		{"a file in the place of its directory stays", func(path string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(path)), os.WriteFile(filepath.Dir(path), nil, 0o600))
		}, "mkdir "},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.base, n.memory = time.Now().Add(-time.Hour), filepath.Join(n.memory, "in", "a", "file")
			n.reserve("10.0.0.2", "leaked", -time.Hour)
			process := func(dry bool) Report {
				r := n.process(podsource.Static{other})
				r.opts.DryRun = dry
				return n.reconcile(r)
			}
			process(true)
			if _, err := os.Stat(n.memory); !os.IsNotExist(err) {
				t.Errorf("a dry run wrote the memory: %v", err)
			}
			process(false)
			time.Sleep(DefaultMinAge)
			if c.change != nil {
				err := c.change(n.memory)
				if errors.Is(err, fs.ErrPermission) {
					t.Skip("only root can give a file away")
				}
				must(t, err)
			}
			report := process(false)
			says := strings.Contains(report.Memory, c.note) && (c.note != "" || report.Memory == "")
			if is := report.Counts()[Released] > 0; is != (c.change == nil) || !says {
				t.Errorf("released: %t, and the report says %q", is, report.Memory)
			}
			if report = process(true); !strings.Contains(c.reason, "stays") && report.Memory != "" { // it was replaced
				t.Errorf("the next process says %q", report.Memory)
			}
		}))
	}
}

func TestEarliestSightCounts(t *testing.T) {
	for _, all := range []bool{false, true} {
		const there, here, alone, future = podID("pod there"), podID("pod here"), podID("pod alone"), podID("pod future")
		c := clock{finished: map[podID]time.Duration{there: 5, here: 5}, lists: map[bool]bool{false: true}, steps: steps{Back: 5}}
		c.files = []candidate{{&hostlocal.Reservation{}, 5}}
		back := map[bool]time.Duration{false: 3, true: 7}
		m := memory{"back": back[all], "1:2 " + fileOf(c.files[0].Reservation).String(): 7, "1:2 pod there": 3, "1:2 pod here": 7,
			"1:2 pod alone": 1, "1:2 pod future": 99, "1:3 pod other": 1}
		c.recall(m, "1:2 ", reading{wall: time.Unix(0, 9), mono: 9}, all)
		want := map[podID]time.Duration{there: 3, here: 5}
		if all {
			want[alone], want[future] = 1, 9
		}
		if !maps.Equal(c.finished, want) || c.files[0].seen != 5 || c.steps.Back != max(5, back[all]) {
			t.Errorf("all %t: %v, want %v; the file %v; back by %v", all, c.finished, want, c.files, c.steps.Back)
		}
	}
}

// No content of a memory makes a sight later, or a reader fail; owners have any text and keep their sights.
func FuzzMemory(f *testing.F) {
	f.Add("hostlocal-gc memory 1 boot\n1 mono\n2 1:2 pod \"a\"\n3 1:2 file\n3 end", "eth0")
	f.Add("hostlocal-gc memory 1 boot\n-9223372036854775808 back\n9223372036854775807 wall\n9223372036854775807 1:2 pod\n3 end",
		"\n1 1:2 \xff\"")
	f.Fuzz(func(t *testing.T, content, owner string) {
		const of, dir = memoryVersion + "boot", "1:2 "
		path, now := filepath.Join(t.TempDir(), "memory"), reading{wall: time.Now(), mono: 9}
		read := func() memory {
			m, _ := readMemory(path, of, func() reading { return now })
			return m
		}
		must(t, os.WriteFile(path, []byte(content), 0o600))
		c := clock{files: []candidate{{&hostlocal.Reservation{IfName: owner}, 5}}, listed: true}
		c.recall(read(), dir, now, true)
		for pod, seen := range c.finished {
			if seen > now.mono {
				t.Errorf("%s was seen at %v, after %v", pod, seen, now.mono)
			}
		}
		want := c.files[0].seen
		m := make(memory)
		c.save(m, dir, now)
		must(t, writeMemory(path, of, m))
		c.files[0].seen = 9
		if c.recall(read(), dir, now, true); want > 5 || c.files[0].seen != want || !maps.Equal(read(), m) {
			t.Errorf("%q was seen at %v, want %v", owner, c.files[0].seen, want)
		}
	})
}

// The file system of the memory does not answer: passes release all the same, and say so.
func TestMemoryDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		r, answers := n.process(podsource.Static{other}), make(chan struct{})
		whenReadIn(r, "useMemory", 1, func() { <-answers })
		n.reconcile(r)
		n.reserve("10.0.0.2", "leaked", old)
		report := n.reconcile(r)
		n.check(report, map[string]Verdict{"10.0.0.2": Released})
		if strings.Count(report.Memory, "has not answered since") != 1 { // once, though it was read and to be written
			t.Errorf("the report says %q", report.Memory)
		}
		close(answers)
		synctest.Wait()
	})
}

// The context of a pass ends while the memory is read, a step is written, or all is written in the end.
func TestMemoryDoesNotAnswerInTime(t *testing.T) {
	for _, call := range []int{1, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			r := n.process(podsource.Static{other})
			n.reconcile(r)
			n.step = time.Hour
			ctx, cancel := context.WithCancel(t.Context())
			answers := make(chan struct{})
			whenReadIn(r, "useMemory", call, func() { cancel(); <-answers })
			begun := time.Now()
			_, _ = r.Reconcile(ctx)
			if took := time.Since(begun); took != returnTime {
				t.Errorf("the pass took %v, and the memory does not answer the clock's %dth reading", took, call)
			}
			close(answers)
			synctest.Wait()
		})
	}
}

// Commands for two data directories share a memory: a leak is released in the end.
func TestMemoryOfTwoDirectoriesKeepsSights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newNode(t)
		a.uptime, a.base = time.Minute, time.Now()
		b := newNode(t)
		b.clocks, b.memory = a.clocks, a.memory
		a.reserve("10.0.0.2", "leaked", 30*time.Hour)
		a.reconcile(a.process(podsource.Static{other}))
		b.reconcile(b.process(podsource.Static{other}))
		time.Sleep(DefaultMinAge)
		a.check(a.reconcile(a.process(podsource.Static{other})), map[string]Verdict{"10.0.0.2": Released})
	})
}

// Another process writes the memory while this one reads it.
func TestMemoryIsWrittenWhileItIsRead(t *testing.T) {
	n := newNode(t)
	first := n.process(podsource.Static{other})
	n.reconcile(first)
	n.reserve("10.0.0.2", "web", 0) // its ADD is in flight
	n.step = time.Hour
	n.reconcile(first) // sees the step
	second := n.process(podsource.Static{other})
	whenReadIn(second, "readMemory", 1, func() { n.reconcile(first) }) // between second's reading of the clock and of the file
	n.check(n.reconcile(second), map[string]Verdict{"10.0.0.2": Young})
}

// A step is in the memory before the sources are asked: the process may end meanwhile. A writing that failed is
// tried again at the next reading of the clocks.
func TestStepIsWrittenAtOnce(t *testing.T) {
	for _, how := range []string{"by this process", "by another", "after a failure"} {
		n := newNode(t)
		n.reserve("10.0.0.2", "other", old)
		var early, written bool
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			content, err := os.ReadFile(n.memory)
			early = early || err == nil
			written = err == nil && !strings.Contains(string(content), "\n-9223372036854775808 trusted\n") // the earliest: none
			return []podsource.Pod{other}, nil
		})
		r := n.process(source)
		n.reconcile(r)
		if early || r.clock.unsaved {
			t.Error("without a step the memory is written before the sources are asked, or again")
		}
		if n.step = time.Hour; how == "by another" {
			r = n.process(source)
		} else {
			must(t, os.Remove(n.memory)) // which else shows the step, too
		}
		if dir := n.memory + ".new"; how == "after a failure" {
			must(t, os.Mkdir(dir, 0o700))
			r.disk = wrappedDisk{r.disk, func(list func()) { must(t, os.Remove(dir)); list() }, directly}
		}
		if n.reconcile(r); !written || r.clock.unsaved {
			t.Errorf("the process may be killed while the sources are asked, and the memory has no step (seen %s), or again", how)
		}
	}
}

// A memory that is damaged is replaced because of a step before the pass reads it, and the report says so.
func TestStepReplacesADamagedMemory(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "other", old)
	r := n.process(podsource.Static{other})
	n.reconcile(r)
	n.step = time.Hour
	must(t, os.WriteFile(n.memory, []byte(memoryVersion), 0o600))
	if report := n.reconcile(r); strings.Count(report.Memory, "it is damaged") != 1 {
		t.Errorf("the report says %q", report.Memory)
	}
}

// A step that only a pass saw which could not list reservations is in the memory: an ADD that began
// before the step was undone is not taken for an old one.
func TestStepSeenByAFailedPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.3", "other", old)
		n.reconcile(n.process(podsource.Static{other}))
		r, link := n.process(podsource.Static{other}), filepath.Join(n.dataDir, "link")
		time.Sleep(time.Second)
		n.step = -time.Hour
		must(t, os.Symlink(n.dataDir, link))
		if _, err := r.Reconcile(t.Context()); err == nil {
			t.Error("the listing did not fail")
		}
		if content, err := os.ReadFile(n.memory); !strings.Contains(string(content), ` file "`) {
			t.Errorf("a pass that listed nothing dropped first sights: %s (error %v)", content, err)
		}
		must(t, os.Remove(link))
		n.file("10.0.0.2", "web", -n.step) // its ADD is in flight
		time.Sleep(time.Second)
		n.step = 0
		n.check(n.reconcile(n.process(podsource.Static{other})), map[string]Verdict{"10.0.0.2": Young, "10.0.0.3": InUse})
	})
}

// A step that a pass sees before it has listed is written at once, without dropping what only another process has seen.
func TestStepKeepsSightsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		agent := n.process(podsource.Static{other})
		n.reconcile(agent)
		n.reserve("10.0.0.2", "leaked", time.Second)
		n.reconcile(n.process(podsource.Static{other}))
		time.Sleep(DefaultMinAge)
		n.step = -time.Hour
		n.check(n.reconcile(agent), map[string]Verdict{"10.0.0.2": Released})
	})
}

// An agent that asks for no pods, and a command that does, share a memory: what the command has dropped
// does not come back, neither as growth nor as an old sight of a pod with the same name.
func TestFinishedSightsDoNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		agent := n.process(answers(criAnswer()))
		agent.networks = []string{"another"}
		n.reserve("10.0.0.2", hex64("db"), time.Hour)
		done := podsource.Pod{NamespacedName: named("db"), IPs: ips("10.0.0.2")}
		for _, done.Finished = range []bool{true, false, true} {
			n.check(n.reconcile(n.process(answers(kubeletAnswer(done)))), map[string]Verdict{"10.0.0.2": InUse})
			n.reconcile(agent)
			time.Sleep(time.Hour)
		}
	})
}

// A process that was stopped while it wrote the memory stops no pass of another one. The report and
// the log say so, beside what was wrong before.
func TestMemoryIsLockedByAStoppedProcess(t *testing.T) {
	for held, stuck := range map[time.Duration]bool{time.Second - 1: false, time.Second + 1: true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			must(t, os.WriteFile(n.memory, nil, 0o600))
			dir := filepath.Dir(n.memory)
			time.AfterFunc(held, flockOf(t, dir))
			logs, r := newLogs(0), n.process(podsource.Static{other})
			r.opts.Logger = logs.logger()
			report := n.reconcile(r)
			if !strings.Contains(report.Memory, "damaged") || strings.Contains(report.Memory, "; locking "+dir) != stuck ||
				logs.with("Compared reservations with live pods", "memory") != 1 {
				t.Errorf("held for %v: the report says %q; the log: %v", held, report.Memory, logs.lines)
			}
			time.Sleep(held)
		})
	}
}
