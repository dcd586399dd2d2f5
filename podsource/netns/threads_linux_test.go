// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The first thread of a process has ended. Only its other threads show the
// environment, namespaces, root and mounts (hazard 60).
//
// Guard: [anyThread] reads the other threads.
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
		t.Errorf("got %q, want %q: its own namespace, and a mounted one that only it sees", got, want)
	}
	adds, addresses := parts(t, all)
	if len(adds.Pods) != 1 || adds.Pods[0].ContainerIDs[0] != "outlives" || len(adds.SeesADDs) == 0 || !addresses.SeesAddresses {
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

// A process has ended when all its threads have ended.
func TestAnyThread(t *testing.T) {
	for _, row := range []struct {
		reason  string
		threads []string
		read    func(dir, tid string) error
		running bool
		fails   bool
	}{
		{"the first thread is running", nil, func(string, string) error { return nil }, true, false},
		{"the first thread can't be read", nil, func(string, string) error { return unix.EIO }, true, true},
		{"it has ended, and there is no other", []string{"7"}, func(string, string) error { return unix.ENOENT }, false, false},
		{"another one is running", []string{"7", "8", "9"}, func(_, tid string) error {
			if tid == "9" {
				return nil
			}
			return errExited
		}, true, false},
		{"another one can't be read", []string{"7", "8"}, func(_, tid string) error {
			if tid == "8" {
				return unix.EACCES
			}
			return unix.ENOENT
		}, true, true},
		{"one starts as the last one that was listed ends", []string{"7", "8"}, func(dir, tid string) error {
			switch tid {
			case "8":
				return errors.Join(os.Mkdir(filepath.Join(filepath.Dir(dir), "9"), 0o755), unix.ESRCH)
			case "9":
				return nil
			}
			return errExited
		}, true, false},
		{"one starts whenever one ends", []string{"7", "8"}, func(dir, tid string) error {
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
		read := make(map[string]bool)
		running, err := anyThread(dir, func(thread string) error {
			tid := filepath.Base(thread)
			if read[tid] {
				t.Errorf("%s: thread %s is read twice", row.reason, tid)
			}
			read[tid] = true
			return row.read(thread, tid)
		})
		if running != row.running || (err != nil) != row.fails {
			t.Errorf("got %t, %v, want %t: %s", running, err, row.running, row.reason)
		}
	}
	if running, err := anyThread(filepath.Join(t.TempDir(), "7"), func(string) error { return unix.ENOENT }); running || err != nil {
		t.Errorf("a process that does not exist: got %t, %v", running, err)
	}
}

// Before Linux 6.16 the environment of a thread that has ended is empty, and not an
// error.
//
// Guard: [scan.readEnvironment] reads the other threads if an environment is empty.
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
	for _, pid := range []string{"7", "9"} { // 9 is like a kernel thread, without environment
		if err := s.readEnvironment(pid); err != nil {
			t.Errorf("process %s: %v", pid, err)
		}
	}
	if len(s.adds) != 1 || s.adds[0].containerID != "outlives" || s.adds[0].inNodePIDNS {
		t.Errorf("got %+v, want one that is not known to be in the node's PID namespace", s.adds)
	}
}

// procOf makes a procfs with one process, 7, and these files. The value is a file's
// content, or "link:" and the target of a symbolic link.
func procOf(t *testing.T, files map[string]string) (proc string) {
	t.Helper()
	proc = t.TempDir()
	for name, content := range files {
		path := filepath.Join(proc, "7", name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if target, isLink := strings.CutPrefix(content, "link:"); isLink {
			err = errors.Join(err, os.Symlink(target, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return proc
}

// A process that exists and can't be read is an error of the call: it might run an ADD,
// or be in a namespace with an address (R2).
func TestProcessThatCannotBeRead(t *testing.T) {
	const add = "CNI_COMMAND=ADD\x00CNI_CONTAINERID=a\x00"
	for _, row := range []struct {
		reason string
		files  map[string]string
		fails  bool
	}{
		{"the process has ended", map[string]string{"x": ""}, false},
		{"its environment", map[string]string{"environ/x": ""}, true},
		{"the threads of an ADD", map[string]string{"environ": add, "task": ""}, true},
		{"the namespace of an ADD's thread", map[string]string{"environ": add, "task/8/ns/net": ""}, true},
		{"an environment longer than the limit", map[string]string{"environ": strings.Repeat("x", maxProcfs+1)}, false},
		{"its threads", map[string]string{"task": ""}, true},
		{"a link that does not name a namespace", map[string]string{"task/7/x": "", "ns/mnt": "link:x"}, true},
		{"its mounts", map[string]string{"task/7/x": "", "ns/mnt": "link:mnt:[1]", "root": "link:/", "mountinfo": "garbage"}, true},
		{"its mounts can't be read", map[string]string{"task/7/x": "", "ns/mnt": "link:mnt:[1]", "root": "link:/", "mountinfo/x": ""}, true},
		{"its root is gone", map[string]string{"task/7/x": "", "ns/mnt": "link:mnt:[1]", "mountinfo": mountinfo}, false},
	} {
		s := scan{proc: procOf(t, row.files), maxMountText: maxProcfs, readRoots: make(map[processRoot]bool), unreadable: make(map[uint64]podsource.Pod),
			mountedAt: make(map[string][]uint64)}
		if err := s.processes(t.Context()); (err != nil) != row.fails || len(s.mountedAt) > 0 {
			t.Errorf("%s: got %v, mounts %v", row.reason, err, s.mountedAt)
		}
	}
	s := scan{proc: filepath.Join(t.TempDir(), "none")}
	if err := s.processes(t.Context()); err == nil {
		t.Error("no error if processes can't be listed")
	}
	s.proc = procOf(t, map[string]string{"task": "", "ns/mnt": "link:mnt:[1]", "root": "link:/", "mountinfo": ""})
	s.maxMountText, s.readRoots = maxProcfs, make(map[processRoot]bool)
	if err := s.process("7"); err == nil {
		t.Error("no error if threads can't be listed")
	}
	s.proc, s.mountedAt = procOf(t, map[string]string{"ns/mnt": "link:mnt:[1]", "task/7/ended": "",
		"task/8/ns/mnt": "link:mnt:[1]", "task/8/root": "link:/", "task/8/mountinfo": mountinfo}), make(map[string][]uint64)
	if err := s.process("7"); err != nil || len(s.mountedAt["/run/netns/web"]) != 1 {
		t.Errorf("only its first thread has ended: got %v, %v", s.mountedAt, err)
	}
	s.proc = procOf(t, map[string]string{"x": ""})
	if err := s.processes(endsLater{t.Context(), new(int)}); !errors.Is(err, context.Canceled) {
		t.Errorf("the context ends after the environments were read: got %v", err)
	}
	for _, file := range []string{"task", "task/8/ns/net"} {
		s.proc = procOf(t, map[string]string{"environ": add, file: ""})
		if err := s.readEnvironment("7"); err == nil {
			t.Errorf("no error for an ADD whose %s can't be read", file)
		}
	}
	if err := s.readNetNSFile(s.proc+"/7/none", "of process 7"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a thread that has ended: got %v", err)
	}
}

// endsLater is a context whose Err returns an error from the second call on.
type endsLater struct {
	context.Context
	calls *int
}

func (c endsLater) Err() error {
	if *c.calls++; *c.calls > 1 {
		return context.Canceled
	}
	return nil
}

// A process is in the network namespaces of all its threads.
func TestThreadNetNS(t *testing.T) {
	s := scan{proc: procOf(t, map[string]string{"task/6/ended": "", "task/7/ns/net": "link:net:[1]", "task/8/ns/net": "link:net:[2]", "task/9/ns/net": "link:net:[2]", "task/10/ns/net": "link:net:[1]"})}
	got, err := s.threadNetNS(s.proc + "/7")
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("got %v, %v", got, err)
	}
}

// A process is in the claimed namespace only if everything about it can be read.
func TestInClaimedNetNS(t *testing.T) {
	node, its, other := map[string]string{"../1/ns/pid": "link:pid:[1]"}, map[string]string{"ns/pid": "link:pid:[2]"}, map[string]string{"../8/x": ""}
	const path = "/run/netns/a"
	for _, row := range []struct {
		reason    string
		files     []map[string]string
		netNS     string
		mountedAt []uint64
		inodes    []uint64
		want      bool
	}{
		{"it is", []map[string]string{node, its}, path, []uint64{5}, []uint64{5}, true},
		{"its own path in procfs", []map[string]string{node, its}, "/proc/self/ns/net", nil, nil, true},
		{"... that of its thread", []map[string]string{node, its}, "/proc/thread-self/ns/net", nil, nil, true},
		{"the node's PID namespace can't be read", []map[string]string{its}, path, []uint64{5}, []uint64{5}, false},
		{"... or the process's", []map[string]string{node}, path, []uint64{5}, []uint64{5}, false},
		{"it is in another namespace", []map[string]string{node, its}, path, []uint64{5}, []uint64{6}, false},
		{"... and in the claimed one, too", []map[string]string{node, its}, path, []uint64{5}, []uint64{5, 6}, false},
		{"two namespaces are mounted at that path", []map[string]string{node, its}, path, []uint64{5, 6}, []uint64{5}, false},
		{"it claims the namespace of a process that has ended", []map[string]string{node, its, other}, "/proc/8/ns/net", nil, []uint64{5}, false},
	} {
		files := make(map[string]string)
		for _, more := range row.files {
			maps.Copy(files, more)
		}
		s := scan{proc: procOf(t, files), mountedAt: map[string][]uint64{path: row.mountedAt}}
		if got := s.inClaimedNetNS(cniADD{pid: "7", netNS: row.netNS, netNSInodes: row.inodes}); got != row.want {
			t.Errorf("%s: got %t, want %t", row.reason, got, row.want)
		}
	}
}

// Only numeric entries are processes.
func TestNumericEntries(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"7", "self", "-7"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := numericEntries(dir); err != nil || !slices.Equal(got, []string{"7"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

// The first thread ends after its mount namespace was read, and before its mounts are.
//
// Guard: [scan.readMounts] notes a [processRoot] only after its mounts were read.
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
	s := scan{proc: proc, maxMountText: maxProcfs, readRoots: make(map[processRoot]bool), mountedAt: make(map[string][]uint64)}
	if err := s.process("7"); err != nil || len(s.mountedAt["/run/netns/web"]) != 1 {
		t.Errorf("got %v, %v", s.mountedAt, err)
	}
	if _, err := ended.Wait(); err != nil {
		t.Error(err)
	}
}
