// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Of a process whose first thread has ended, the kernel shows environment,
// namespaces, root and mounts by its other threads only (hazard 60).
//
// Guard: [anyThread] asks the other threads.
func TestHazard60FirstThreadHasEnded(t *testing.T) {
	if !onNode(t) {
		return
	}
	pid, stop := startAs(t, outlive, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS},
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=outlives", "CNI_NETNS=/run/netns/cni-1")
	s := nested(t)
	all, err := s.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := answer(all), []string{"10.0.0.2", "10.0.0.3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: its own namespace, and the one that it alone sees mounted", got, want)
	}
	adds, addresses := parts(t, all)
	if len(adds.Pods) != 1 || adds.Pods[0].ContainerIDs[0] != "outlives" || !adds.SeesADDs || !addresses.SeesAddresses {
		t.Errorf("got %+v and %+v, want its ADD, and both declarations", adds, addresses)
	}
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	for _, want := range []bool{true, false} {
		lives, err := s.Living(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := lives(path, time.Now()); got != want {
			t.Errorf("the namespace that its threads are in: got %t, want %t", got, want)
		}
		stop()
	}
}

// A process has ended when all its threads have, and no earlier.
func TestAnyThread(t *testing.T) {
	for _, row := range []struct {
		reason   string
		threads  []string
		answers  func(dir, tid string) error
		answered bool
		fails    bool
	}{
		{"the first thread answers", nil, func(string, string) error { return nil }, true, false},
		{"the first thread may not be looked at", nil, func(string, string) error { return unix.EIO }, true, true},
		{"it has ended, and no other is left", []string{"7"}, func(string, string) error { return unix.ENOENT }, false, false},
		{"another one answers", []string{"7", "8", "9"}, func(_, tid string) error {
			if tid == "9" {
				return nil
			}
			return errExited
		}, true, false},
		{"another one may not be looked at", []string{"7", "8"}, func(_, tid string) error {
			if tid == "8" {
				return unix.EACCES
			}
			return unix.ENOENT
		}, true, true},
		{"one comes as the last one that was listed goes", []string{"7", "8"}, func(dir, tid string) error {
			switch tid {
			case "8":
				return errors.Join(os.Mkdir(filepath.Join(filepath.Dir(dir), "9"), 0o755), unix.ESRCH)
			case "9":
				return nil
			}
			return errExited
		}, true, false},
		{"one comes whenever one goes", []string{"7", "8"}, func(dir, tid string) error {
			if tid != "7" {
				return errors.Join(os.Mkdir(dir+"0", 0o755), unix.ESRCH)
			}
			return unix.ESRCH
		}, false, true},
	} {
		dir := filepath.Join(t.TempDir(), "7")
		for _, tid := range row.threads {
			if err := os.MkdirAll(filepath.Join(dir, "task", tid), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		answered, err := anyThread(dir, func(thread string) error { return row.answers(thread, filepath.Base(thread)) })
		if answered != row.answered || (err != nil) != row.fails {
			t.Errorf("got %t, %v, want %t: %s", answered, err, row.answered, row.reason)
		}
	}
	if answered, err := anyThread(filepath.Join(t.TempDir(), "7"), func(string) error { return unix.ENOENT }); answered || err != nil {
		t.Errorf("got %t, %v of a process that is gone", answered, err)
	}
}

// Before Linux 6.16 the environment of a thread that has ended is no error, but
// empty.
//
// Guard: [scan.environment] takes no empty environment for that of the process.
func TestHazard60EnvironmentOfFirstThreadIsEmpty(t *testing.T) {
	proc := t.TempDir()
	for file, text := range map[string]string{
		"7/environ": "", "7/task/7/environ": "", "7/task/8/environ": "CNI_COMMAND=ADD\x00CNI_CONTAINERID=outlives\x00",
		"9/environ": "", "9/task/9/environ": "",
	} {
		path := filepath.Join(proc, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s := scan{proc: proc}
	for _, pid := range []string{"7", "9"} { // the second is the kernel's, and has none
		if err := s.environment(pid); err != nil {
			t.Errorf("process %s: %v", pid, err)
		}
	}
	if len(s.adds) != 1 || s.adds[0].containerID != "outlives" {
		t.Errorf("got %+v", s.adds)
	}
}

// The first thread ends between two looks at it: its mount namespace is known, and
// its mounts are not.
//
// Guard: [scan.mounted] notes a [view] when its mounts were read, and not
// before.
func TestHazard60FirstThreadEndsMeanwhile(t *testing.T) {
	if !onNode(t) {
		return
	}
	ended, err := os.StartProcess("/bin/true", nil, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, ended.Pid)
	proc := t.TempDir()
	for _, thread := range []string{"7", "7/task/7", "7/task/8"} {
		dir := filepath.Join(proc, thread)
		if err := errors.Join(os.MkdirAll(dir+"/ns", 0o755), os.Symlink("mnt:[1]", dir+"/ns/mnt"), os.Symlink("/", dir+"/root")); err != nil {
			t.Fatal(err)
		}
		if thread != "7/task/8" {
			err = os.Symlink(fmt.Sprintf("/proc/%d/mountinfo", ended.Pid), dir+"/mountinfo")
		} else {
			err = os.WriteFile(dir+"/mountinfo", []byte(mountinfo), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s := scan{proc: proc, maxMountText: maxProcfs, views: make(map[view]bool), mountedAt: make(map[string][]uint64)}
	if err := s.process("7"); err != nil || len(s.mountedAt["/run/netns/web"]) != 1 {
		t.Errorf("got %v, %v", s.mountedAt, err)
	}
	if _, err := ended.Wait(); err != nil {
		t.Error(err)
	}
}
