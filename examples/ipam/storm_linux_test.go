// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// stormSize returns the number of concurrent ADDs of a storm.
func stormSize() int {
	if testing.Short() {
		return 40 // on a busy machine more lack time, and are repeated again and again
	}
	return 200
}

// storm executes concurrent ADDs of containers that already have namespaces, and repeats each that
// lacked time, up to the given number of times. It returns the addresses of the successful ones, the
// errors of the others, and how many passes ended with the time of their ADD, which is then repeated.
func (n *testNode) storm(count, repeats int) (held map[string]netip.Addr, errs []error, cut int) {
	held = make(map[string]netip.Addr)
	for i := range count {
		n.Make(fmt.Sprint("storm", i))
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	begun := time.Now()
	for i := range count {
		all.Go(func() {
			id := fmt.Sprint("storm", i)
			add := func() (netip.Addr, error) { return n.addOnce(n.of(id), "hostlocal-gc-ipam") }
			ip, err := add()
			inPass := 0
			for try := 0; try < repeats && lackedTime(err); try++ {
				if strings.Contains(err.Error(), "releasing what leaked") { // not waiting for another's pass
					inPass++
				}
				if err = n.del(id); err == nil { // an ADD that was ended has left its interface
					ip, err = add()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			cut += inPass
			if err != nil {
				errs = append(errs, err)
				return
			}
			held[id] = ip
		})
	}
	all.Wait()
	last := n.note()
	n.t.Logf("%d ADDs took %v in %d passes; %d succeeded", count, time.Since(begun).Round(time.Millisecond), last.Passes, len(held))
	return held, errs, cut
}

// On a full network whose reservations all leaked, each of many concurrent ADDs succeeds with an
// address of its own.
func TestStormOnLeaks(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	held, errs, _ := n.storm(stormSize(), 30) // they compete for the CPU with each other
	for _, err := range errs[:min(len(errs), 3)] {
		t.Error(err)
	}
	if len(held) != stormSize() {
		t.Errorf("%d ADDs succeeded", len(held))
	}
	n.keeps(held)
	by := make(map[netip.Addr]string)
	for id, ip := range held {
		if other, ok := by[ip]; ok {
			t.Errorf("%s and %s both have %v", id, other, ip)
		}
		by[ip] = id
	}
}

// Many concurrent ADDs on a full network without a leak fail, and share their passes, which begin at
// least passPause apart, except after one that ended with the time of its ADD.
func TestStormWithoutALeak(t *testing.T) {
	n := newTestNode(t)
	for i := range addresses {
		n.reserve(address(i), "no container ID", old) // malformed, and so kept for ever
	}
	begun := sinceBoot()
	held, errs, cut := n.storm(stormSize(), maxRepeats)
	if len(held) > 0 || len(n.reserved()) != addresses {
		t.Errorf("%d ADDs succeeded, %d reservations are left", len(held), len(n.reserved()))
	}
	shared := 0
	for _, err := range errs {
		if !strings.Contains(err.Error(), noneLeft) || !strings.Contains(err.Error(), "malformed") {
			t.Error(err)
			break
		}
		if strings.Contains(err.Error(), "another ADD's answer") {
			shared++
		}
	}
	if shared == 0 {
		t.Error("no ADD used another's pass")
	}
	limit := 1 + int((sinceBoot()-begun)/passPause) + cut
	if last := n.note(); last.Passes < 1 || last.Passes > limit {
		t.Errorf("%d passes, want at most %d", last.Passes, limit)
	}
}

// After a pass that released nothing, the next pass waits for passPause.
func TestPassesAreApart(t *testing.T) {
	n := newTestNode(t)
	for i := range addresses {
		n.reserve(address(i), "no container ID", old)
	}
	passed := func(id string) note {
		n.call(call{command: "ADD", id: id})
		return n.note()
	}
	first, second := passed("a"), passed("b")
	apart, want := second.Begin-first.Begin, max(passPause, time.Second)
	if second.Passes <= first.Passes || apart < want {
		t.Errorf("the passes %d and %d began %v apart, want at least %v", first.Passes, second.Passes, apart, want)
	}
}

// lock takes the lock for passes, as another ADD does.
func (n *testNode) lock() *stormLock {
	n.t.Helper()
	if err := os.MkdirAll(n.dataDir(), 0o755); err != nil {
		n.t.Fatal(err)
	}
	lock, err := lockStorm(n.t.Context(), &config{network: network, dataDir: n.dataDir()})
	if err != nil {
		n.t.Fatal(err)
	}
	return lock
}

// An ADD that waited for another's pass uses its result, depending on when the pass began and
// ended.
func TestTakesTheResultOfAnother(t *testing.T) {
	const before, after = -time.Hour, time.Duration(0)
	for _, row := range []struct {
		reason     string
		begin, end time.Duration // of the last pass, relative to a time after the failed try
		released   int
		boot       string
		passes     int // passes of this ADD
		want       string
	}{
		{"it began after this try, and released nothing", after, after, 0, "", 0, "another ADD's answer: nothing"},
		{"it began before this try, and released nothing", before, after, 0, "", 1, "253 young"},
		{"it ended before this try", before, before, 5, "", 1, "253 young"},
		{"it released something, which is taken again", before, after, 5, "", 1, "253 young"},
		{"it belongs to another boot", after, after, 0, "another", 1, "253 young"},
		{"it is from the future", time.Hour, time.Hour, 0, "", 1, "253 young"},
	} {
		n := newTestNode(t)
		n.fill(0)
		lock := n.lock()
		ended := make(chan outcome)
		go func() { ended <- n.call(call{command: "ADD", id: "a"}) }()
		cnitest.Until(n.t, "the plugin waits for the lock", func() bool { return isAwaited(t, lock) })
		now := sinceBoot()
		last := note{BootID: lock.boot + row.boot, Begin: now + row.begin, End: now + row.end, Released: row.released, Found: "nothing"}
		if err := lock.write(&last); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		lock.unlock()
		if got := <-ended; got.code == 0 || !strings.Contains(got.out, row.want) {
			t.Errorf("%s: %s", row.reason, got.out)
		}
		n.passed(begun, row.passes)
	}
}

// A lock file that was removed while an ADD waited for it is ignored: others have made and locked a
// new one.
func TestRemovedLock(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	removed := n.lock()
	ended := make(chan outcome)
	go func() { ended <- n.call(call{command: "ADD", id: "a"}) }()
	cnitest.Until(n.t, "the plugin waits for the lock", func() bool { return isAwaited(t, removed) })
	if err := os.Remove(removed.file.Name()); err != nil {
		t.Fatal(err)
	}
	current := n.lock()
	removed.unlock()
	cnitest.Until(n.t, "the plugin waits for the new lock", func() bool { return isAwaited(t, current) })
	current.unlock()
	if got := <-ended; got.code != 0 {
		t.Error(got.out)
	}
}

// A note that was torn by a kill counts as empty, and is replaced.
func TestTornNote(t *testing.T) {
	for _, text := range []string{"", "{", `{"bootID":`, "\x00", strings.Repeat("x", 1<<20)} {
		n := newTestNode(t)
		n.fill(old)
		n.write(n.noteFile(), text, 0)
		begun := time.Now()
		if got := n.call(call{command: "ADD", id: "a"}); got.code != 0 {
			t.Errorf("%.20q: %s", text, got.out)
		}
		n.passed(begun, 1)
	}
}

// An unusable lock is an error, and nothing is released without it.
func TestLockThatIsNone(t *testing.T) {
	for _, row := range []struct {
		reason string
		put    func(path string) error
		want   string
	}{
		{"a link", func(path string) error { return os.Symlink("/run/elsewhere", path) }, "symbolic links"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o755) }, "directory"},
		{"a pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
	} {
		n := newTestNode(t)
		n.fill(old)
		if err := row.put(n.noteFile()); err != nil {
			t.Fatal(err)
		}
		got := n.call(call{command: "ADD", id: "a"})
		if got.code == 0 || !strings.Contains(errorMessage([]byte(got.out)), noneLeft) || !strings.Contains(got.out, row.want) {
			t.Errorf("%s: %s", row.reason, got.out)
		}
		if left := len(n.reserved()); left != addresses || cnitest.Exists("/run/elsewhere") {
			t.Errorf("%s: %d reservations are left", row.reason, left)
		}
	}
}

// A plugin whose parent ends while it waits does not try again: nobody would read the address.
func TestOrphan(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	lock := n.lock()
	out, err := os.Create(filepath.Join(n.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	conf := filepath.Join(n.dir, "conf")
	n.write(conf, n.config(), 0)
	cmd := n.command(call{command: "ADD", id: "a", program: "/bin/sh"})
	cmd.Args = []string{"sh", "-c", fmt.Sprintf("%s/hostlocal-gc-ipam <%s & wait", n.bin, conf)}
	cmd.Stdin, cmd.Stdout = nil, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cnitest.Until(n.t, "the plugin waits for the lock", func() bool { return isAwaited(t, lock) })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	lock.unlock()
	var said []byte
	cnitest.Until(n.t, "the plugin has said something", func() bool {
		said, err = os.ReadFile(out.Name())
		return err != nil || len(said) > 0
	})
	if err != nil || !strings.Contains(string(said), "the plugin that asked for an address has ended") {
		t.Errorf("it said %s, %v", said, err)
	}
	if left := n.reserved(); len(left) > 0 {
		t.Errorf("reserved: %v", left)
	}
}

// isAwaited reports whether a process waits for a lock.
func isAwaited(t *testing.T, lock *stormLock) bool {
	t.Helper()
	return awaited(t, lock) > 0
}

// awaited returns the number of processes that wait for a lock (proc(5), /proc/locks).
func awaited(t *testing.T, lock *stormLock) (count int) {
	t.Helper()
	info, err := lock.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	of := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, of) {
			count++
		}
	}
	return count
}
