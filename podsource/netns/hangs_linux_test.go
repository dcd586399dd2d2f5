// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mountHanging mounts a FUSE file system at path. Its server answers the initialisation and
// the opening of a file if it has one, and nothing else. release ends it.
func mountHanging(t *testing.T, path string, mode uint32) (release func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		skipUnlessCI(t, err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0", fd, mode)
	if err := unix.Mount("hanging", path, "fuse", 0, options); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		sizes := map[uint32]int{26: 64, 14: 16} // FUSE_INIT and FUSE_OPEN, with the sizes of their answers (linux/fuse.h)
		request := make([]byte, 1<<17)
		for mode == unix.S_IFREG && len(sizes) > 0 {
			if _, err := unix.Read(fd, request); err != nil {
				served <- err
				return
			}
			code := binary.NativeEndian.Uint32(request[4:])
			answer := make([]byte, 16+sizes[code])
			binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
			copy(answer[8:16], request[8:16]) // its number
			if code == 26 {
				binary.NativeEndian.PutUint32(answer[16:], 7)
				binary.NativeEndian.PutUint32(answer[20:], 31)
			}
			delete(sizes, code)
			if _, err := unix.Write(fd, answer); err != nil {
				served <- err
				return
			}
		}
		served <- nil
	}()
	released := false
	release = func() {
		if !released {
			released = true
			if err := errors.Join(<-served, unix.Unmount(path, unix.MNT_DETACH|unix.MNT_FORCE), unix.Close(fd)); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(release)
	return release
}

// hanging returns how many readings of a source hang.
func hanging(s *Source) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hangs)
}

// eventually fails unless the condition holds soon.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// waitsForFUSE reports whether a thread of this process waits for an answer of FUSE.
func waitsForFUSE(t *testing.T) bool {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(threads, func(thread os.DirEntry) bool {
		text, _ := os.ReadFile("/proc/self/task/" + thread.Name() + "/stack") // it may have ended
		return strings.Contains(string(text), "fuse_")
	})
}

// partly checks an answer that names what can't be read in time.
func partly(t *testing.T, s *Source, process string, want ...string) {
	t.Helper()
	all, err := s.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	adds, addresses := parts(t, all)
	if adds.SeesADDs != nil || addresses.SeesAddresses || addresses.Networks != nil || !strings.Contains(adds.Note, process) || !strings.Contains(addresses.Note, process) {
		t.Errorf("got %+v and %+v, want no declaration, and notes that name %s", adds, addresses, process)
	}
	if got := answer(all); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A process executes a program while it has a file of a file system that hangs: its
// environment can't be opened, nor can its namespaces (Linux 6.18). What else is found counts,
// and one thread hangs, however often the source is asked.
//
// Guard: [scan.watch] gives up a thread that hangs, and [scan.within] does not repeat what hangs.
// [scan.open] leaves it to its caller to close what it has opened in the end.
func TestHazard91EnvironmentThatHangs(t *testing.T) {
	if !onNode(t) {
		return
	}
	if err := os.WriteFile("/run/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	release := mountHanging(t, "/run/file", unix.S_IFREG)
	startPod(t, "10.0.0.2")
	startADD(t, "ADD", "ee3b0f0c", "/run/netns/cni-1")
	s, before := nested(t), descriptors(t)
	s.opts.Patience, s.opts.Networks = 500*time.Millisecond, []string{"podnet"}
	pid, stop := startAs(t, executor, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
	t.Cleanup(release) // before the process is waited for
	process := fmt.Sprintf("process %d can't be read in time", pid)
	eventually(t, process, func() bool {
		_, err := s.Pods(t.Context())
		return err != nil || hanging(s) > 0
	})
	for range 3 {
		partly(t, s, process, "10.0.0.2")
	}
	if ids := addsInFlight(t, t.Context(), s); !slices.Equal(ids, []string{"ee3b0f0c"}) || hanging(s) != 1 {
		t.Errorf("got the ADDs %q, and %d readings hang, want one", ids, hanging(s))
	}
	for _, s := range []*Source{s, nested(t)} { // another one does not know yet that it hangs
		lives, err := s.Living(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if lives, _ := lives(fmt.Sprintf("/proc/%d/ns/net", pid), time.Now()); !lives || hanging(s) != 1 {
			t.Errorf("lives: %t, and %d readings hang; want true and one", lives, hanging(s))
		}
		if lives, sure := lives("/run/netns/none", time.Now()); !lives || sure {
			t.Errorf("it may be mounted where that process sees it: got %t, sure: %t", lives, sure)
		}
	}
	two := nested(t)
	two.hangs["process 1"] = 1 // as after a reading of its environment alone
	partly(t, two, "process 1 can't be read in time", "10.0.0.2")
	two.hangs["the namespaces of process 1"] = 1
	if _, err := two.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "process 1 can't be read in time") {
		t.Errorf("got %v; is it a node?", err)
	}
	release()
	stop()
	eventually(t, "the reading returns", func() bool { return hanging(s) == 0 })
	eventually(t, "all are closed, that of the file system too", func() bool { return descriptors(t) < before })
	seesSome(t, s, "it has ended", true, "10.0.0.2")
}

// descriptors returns how many descriptors of this process are open.
func descriptors(t *testing.T) int {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// The path to a mounted namespace leads through a file system that never answers. The
// context may end before that is noticed.
//
// Guard: [scan.watch] gives up a thread that hangs, also when the context ends.
func TestHazard91MountThatHangs(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	if err := os.MkdirAll("/run/deep/down", 0o755); err != nil {
		t.Fatal(err)
	}
	for i, path := range []string{"/run/deep/down/cni-1", "/run/netns/cni-2"} {
		mountNamespace(t, path, fmt.Sprintf("10.0.0.%d", 3+i))
	}
	release := mountHanging(t, "/run/deep", unix.S_IFDIR)
	s := nested(t)
	s.opts.Patience = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		// Only a thread of this process asks that file system, and it waits for the first answer (proc(5), wchan).
		eventually(t, "a thread hangs", func() bool { return waitsForFUSE(t) })
		cancel()
	}()
	if _, err := s.Pods(ctx); !errors.Is(err, context.Canceled) || hanging(s) != 1 {
		t.Errorf("the context has ended: got %v, and %d readings hang, want %v and one", err, hanging(s), context.Canceled)
	}
	s.opts.Patience = 500 * time.Millisecond // on a busy machine something else could take shorter ones
	for range 3 {
		partly(t, s, `mounted at "/run/deep/down/cni-1", can't be read in time`, "10.0.0.2", "10.0.0.4")
	}
	if n := hanging(s); n != 1 {
		t.Errorf("%d readings hang, want one", n)
	}
	release()
	eventually(t, "the reading returns", func() bool { return hanging(s) == 0 })
	seesSome(t, s, "the file system is gone", true, "10.0.0.2", "10.0.0.3", "10.0.0.4")
}

// Many processes are in one slow network namespace, which is given up once in a call, and returns.
//
// Guard: [scan.readNetNS] is about the namespace, and [scan.within] does not repeat what the call
// gave up.
func TestHazard91NamespaceThatHangs(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	pid, _ := startPod(t, "10.0.0.3")
	enter(t, pid, &syscall.SysProcAttr{})
	enter(t, pid, &syscall.SysProcAttr{})
	slow, _ := netNSOf(fmt.Sprintf("/proc/%d", pid))
	s := nested(t)
	s.opts.Patience = 500 * time.Millisecond
	var entered atomic.Int32
	s.setns = func(fd, kind int) error {
		if inode, _ := inodeAt(fmt.Sprintf("/proc/self/fd/%d", fd)); inode != slow {
			return unix.Setns(fd, kind)
		}
		if entered.Add(1) < 3 {
			eventually(t, "it is given up", func() bool { return hanging(s) > 0 })
		}
		return unix.EPERM
	}
	partly(t, s, fmt.Sprintf("network namespace %d can't be read in time", slow), "10.0.0.2")
	if n := entered.Load(); n != 1 {
		t.Errorf("it was entered %d times, want once", n)
	}
}

// Many processes see the same mounts, which take long to read: they are given up once.
func TestMountsThatHang(t *testing.T) {
	proc := procOf(t, map[string]string{"root": "link:/", "../8/root": "link:/", "task/7/x": "", "../8/task/8/x": ""})
	pipe := proc + "/7/mountinfo"
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Link(pipe, proc+"/8/mountinfo")); err != nil {
		t.Fatal(err)
	}
	s := scanOf(t, proc).Source
	for i := range 2 {
		sc := s.newScan(t.Context())
		hangs, err := sc.watch(t.Context(), 500*time.Millisecond, func() error { sc.processes(); return sc.err })
		if hangs != (i == 0) || err != nil || hanging(s) != 1 || !hangs && len(sc.late) != 1 {
			t.Errorf("reading %d: hangs: %t, %v, and %d readings hang, want one", i, hangs, err, hanging(s))
		}
	}
	if err := os.WriteFile(pipe, nil, 0o600); err != nil { // its reader ends
		t.Error(err)
	}
	eventually(t, "the reading returns", func() bool { return hanging(s) == 0 })
}

// Two callers hang at one process. It is read again when both have returned, also if one panics.
// A thread that goes on is not given up, also if it reads the same thing.
func TestTwoReadingsHang(t *testing.T) {
	s, release, given := nested(t), make(chan bool), make(chan bool)
	for range 2 {
		go func() {
			sc := s.newScan(t.Context())
			hangs, _ := sc.watch(t.Context(), 20*time.Millisecond, func() error {
				sc.within("process 7", func() {
					if <-release {
						panic("netlink")
					}
				})
				t.Error("it goes on after it was given up")
				return nil
			})
			given <- hangs
		}()
	}
	for range 2 {
		if !<-given {
			t.Error("it is not given up")
		}
	}
	for want := 2; want >= 0; want-- {
		eventually(t, "the other returns", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.hangs["process 7"] == want
		})
		if want > 0 {
			release <- want == 2
		}
	}
	sc, steps, hangs := s.newScan(t.Context()), 0, false
	for range 3 {
		sc.step("process 8")
		if steps, hangs = sc.giveUp(steps); hangs {
			t.Error("it goes on, and is given up")
		}
	}
	if _, hangs = sc.giveUp(steps); !hangs || hanging(s) != 1 {
		t.Error("it does not go on, and is not given up")
	}
}
