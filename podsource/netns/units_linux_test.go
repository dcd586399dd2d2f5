// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

const mountinfo = `22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw
36 24 0:4 net:[4026532255] /run/netns/web rw shared:9 - nsfs nsfs rw
37 24 0:4 mnt:[4026532256] /run/snapd/ns/lxd.mnt rw - nsfs nsfs rw
38 24 0:4 net:[4026532257] /run/a\040b-123\134\011 rw shared:9 master:1 - nsfs nsfs rw
39 24 8:1 /net:[4026532258] /mnt rw - ext4 /dev/sda1 rw
`

func mountsOf(text string) ([]namespaceMount, error) { return namespaceMounts([]byte(text)) }

func TestNamespaceMounts(t *testing.T) {
	want := []namespaceMount{{4026532255, "/run/netns/web"}, {4026532257, "/run/a b-123\\\t"}}
	if got, err := mountsOf(mountinfo); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, row := range []struct{ reason, text string }{
		{"a line that ends early", "36 24 0:4 net:[1] /run/netns/web rw"},
		{"too few fields", "36 24 0:4 net:[1] - nsfs nsfs rw"},
		{"no number", "36 24 0:4 net:[x] /run/netns/web rw - nsfs nsfs rw"},
		{"a relative mount point", "36 24 0:4 net:[1] run/netns/web rw - nsfs nsfs rw"},
		{"an empty line", "\n"},
	} {
		if got, err := mountsOf(mountinfo + row.text); got != nil || err == nil {
			t.Errorf("got %v, %v, want an error: %s", got, err, row.reason)
		}
	}
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := namespaceMounts(own); err != nil {
		t.Errorf("this kernel's mountinfo: %v", err)
	}
}

// FuzzNamespaceMounts: the result is all mounts or an error, without a panic.
func FuzzNamespaceMounts(f *testing.F) {
	f.Add(mountinfo)
	f.Add(`36 24 0:4 net:[1] /\0 rw - nsfs nsfs rw`)
	f.Add(`36 24 0:4 net:[1] /\04 rw - nsfs nsfs rw`)
	f.Add(`36 24 0:4 net:[ /\999\040 rw - nsfs `)
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := mountsOf(text)
		if err != nil {
			if mounts != nil {
				t.Errorf("an error, and %d mounts beside it", len(mounts))
			}
			return
		}
		for _, m := range mounts {
			if !strings.HasPrefix(m.point, "/") {
				t.Errorf("%q is no mount point", m.point)
			}
		}
		if n := strings.Count(text, "net:["); len(mounts) > n {
			t.Errorf("got %d mounts, want at most %d", len(mounts), n)
		}
	})
}

// The first thread of a process has ended. Only its other threads show the
// environment, namespaces, root and mounts (hazard 60).
//
// Guard: [scan.anyThread] reads the other threads.
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

// The environment of a thread that ends is empty while it still has a network namespace, and before
// Linux 6.16 also later. A process without environment may have threads that start and end all the time.
//
// Guard: [scan.readEnvironment] reads another thread if an environment is empty, up to one that runs.
func TestHazard60EnvironmentOfFirstThreadIsEmpty(t *testing.T) {
	const none = "link:net:[5]"
	proc := procOf(t, map[string]string{
		"environ": "", "ns/net": none, "task/7/x": "", "task/8/environ": "CNI_COMMAND=ADD\x00CNI_CONTAINERID=outlives\x00", "task/8/ns/net": none,
		"task/1/x": "", "task/2/x": "", "task/3/x": "", "task/4/x": "", "task/5/x": "", "task/6/x": "", // ended, too
		"../9/environ": "", "../9/task/9/environ": "",
		"../10/environ": "", "../10/ns/net": none, "../10/task/11/environ": "", "../10/task/11/ns/net": "link:net:[11]",
		"../10/task/12/environ": "", "../10/task/12/ns/net": "link:net:[12]",
	})
	s := scanOf(t, proc)
	for _, pid := range []string{"7", "9", "10"} { // 9 has ended
		if s.readEnvironment(pid, proc+"/"+pid); s.err != nil {
			t.Errorf("process %s: %v", pid, s.err)
		}
	}
	if len(s.adds) != 1 || s.adds[0].containerIDs[0] != "outlives" || s.adds[0].pidNS != 0 {
		t.Errorf("got %+v, want one that is not known to be in the node's PID namespace", s.adds)
	}
	if s.withProcess[11] == s.withProcess[12] {
		t.Errorf("of a process without environment one more thread is read: got the namespaces %v", s.withProcess)
	}
}

// A process is in the claimed namespace only if everything about it can be read. Else it
// claims its container, and if it is in the node's PID namespace, it sets up a namespace that may
// lack its address. Others without address count (hazard 59). If it has ended it claims its
// container, and if it has run for too long it does not.
func TestADDs(t *testing.T) {
	const path, stat = "/run/netns/a", "7 (bridge) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 "
	in5 := map[string]string{"ns/net": "link:net:[5]", "task/7/x": ""}
	both := map[string]string{"task/7/ns/net": "link:net:[5]", "task/8/ns/net": "link:net:[6]"} // in any order
	reverse := map[string]string{"task/7/ns/net": "link:net:[6]", "task/8/ns/net": "link:net:[5]"}
	for _, row := range []struct {
		reason  string
		files   map[string]string
		pidNS   uint64
		netNS   string
		mounted []uint64
		claims  bool
		setsUp5 bool
	}{
		{"it is", in5, 2, path, []uint64{5}, false, false},
		{"... by another spelling of the path", in5, 2, "/run/netns/./a/.", []uint64{5}, false, false},
		{"its own path in procfs", nil, 2, "/proc/self/ns/net", nil, false, false},
		{"... that of its thread", nil, 2, "/proc/thread-self/ns/net", nil, false, false},
		{"its PID namespace could not be read", in5, 0, path, []uint64{5}, true, false},
		{"it is in the node's PID namespace", in5, 1, path, []uint64{5}, true, true},
		{"its threads have ended", map[string]string{"task/x": ""}, 2, path, []uint64{5}, true, false},
		{"it is in another namespace", in5, 2, path, []uint64{6}, true, false},
		{"... and in the claimed one, too", both, 2, path, []uint64{5}, true, false},
		{"... by another thread", reverse, 2, path, []uint64{5}, true, false},
		{"neither is known", map[string]string{"task/7/x": ""}, 2, path, nil, true, false},
		{"two namespaces are mounted under that name", in5, 2, path, []uint64{5, 6, 5}, true, false},
		{"... and it is in the node's PID namespace", in5, 1, path, []uint64{6, 5, 5}, true, false},
		{"it has ended since", map[string]string{"stat": "link:none"}, 2, path, nil, true, false},
		{"it has run for longer than an ADD takes", map[string]string{"stat": stat + "0"}, 1, path, nil, false, false},
		{"it can't be read, which is an error (R2)", map[string]string{"stat": "garbage"}, 1, path, nil, true, false},
		{"it claims the namespace of a process", map[string]string{"../8/ns/net": "link:net:[5]"}, 1, "/host/proc/8/ns/net/.", nil, true, true},
		{"... that has ended", in5, 2, "/proc/8/ns/net", nil, true, false},
	} {
		files := map[string]string{"stat": stat + "4711", "root": "link:/"}
		maps.Copy(files, row.files)
		for _, inode := range row.mounted {
			files["mountinfo"] += fmt.Sprintf("36 24 0:4 net:[%d] %s rw - nsfs nsfs rw\n", inode, path)
		}
		s := scanOf(t, procOf(t, files))
		s.pidNS, s.opts.LongestADD, s.unaddressed[5], s.unaddressed[6] = 1, boottime.Since(), "no address", "no address"
		for _, inode := range []uint64{5, 6} {
			s.note(inode, "elsewhere", nil, nil)
		}
		s.readMounts(s.opts.Proc + "/7")
		s.adds = []cniADD{{pid: "7", pidNS: row.pidNS, containerIDs: []string{"a", "b"}, netNS: row.netNS}}
		s.noteClaims()
		by := "process 7"
		if strings.HasPrefix(files["stat"], stat) {
			by += ` ("bridge")`
		}
		if (len(s.claims) == 2) != row.claims || row.claims && s.claims["a"] != by || (s.err != nil) != (files["stat"] == "garbage") ||
			(s.unaddressed[5] == "") != row.setsUp5 || s.unaddressed[6] == "" {
			t.Errorf("%s: the claims are %v, without address are %v, error %v", row.reason, s.claims, s.unaddressed, s.err)
		}
	}
}

// Whenever a thread ends another one starts.
func TestThreadsTakeTurns(t *testing.T) {
	s := scanOf(t, procOf(t, map[string]string{"task/7/x": "", "task/8/x": ""}))
	n := 8
	running := s.anyThread("7", s.opts.Proc+"/7", func(dir string) bool {
		n++
		if err := os.Mkdir(fmt.Sprintf("%s/7/task/%d", s.opts.Proc, n), 0o755); err != nil {
			t.Error(err)
		}
		return false
	})
	if !running || len(s.late) != 1 {
		t.Errorf("running: %t, %v", running, s.late)
	}
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
		{"its threads", map[string]string{"task": ""}, true},
		{"... or the namespace of one", map[string]string{"task/7/x": "", "task/8/ns/net": ""}, true},
		{"the PID namespace of an ADD", map[string]string{"environ": add, "ns/pid": ""}, true},
		{"an environment longer than the limit", map[string]string{"environ": strings.Repeat("x", maxEnvironment+1)}, false},
		{"a link that does not name a namespace", map[string]string{"ns/net": "link:x", "task/7/x": ""}, true},
		{"its mounts", map[string]string{"root": "link:/", "mountinfo": "garbage\n"}, true},
		{"its mounts can't be read", map[string]string{"root": "link:/", "mountinfo/x": ""}, true},
		{"its root is gone", map[string]string{"mountinfo": mountinfo}, false},
	} {
		s := scanOf(t, procOf(t, row.files))
		if s.processes(); (s.err != nil) != row.fails || s.err != nil && !strings.Contains(s.err.Error(), "reading "+s.opts.Proc+"/7/") || len(s.found) > 0 {
			t.Errorf("%s: got %v and %v", row.reason, s.err, s.found)
		}
	}
	ended := fmt.Errorf("looking: %w", unix.EACCES)
	if there := t.TempDir(); hasExited(there, ended) || !hasExited(there+"/ended", ended) || !hasExited(there, unix.ESRCH) || hasExited(there+"/ended", unix.EMFILE) {
		t.Error("an error does not show that a thread has ended, or one does that should not")
	}
}

// The mounts of processes with one root are read once. A process whose root is in another
// mount namespace sees none of the mounts below it (nsenter --root).
//
// Guard: [scan.readMounts] notes a [processRoot] only if its mount is among the mounts.
func TestHazard60RootOfAnotherMountNamespace(t *testing.T) {
	s := scanOf(t, procOf(t, map[string]string{"root": "link:/", "mountinfo": "1 1 0:30 / /data rw - tmpfs tmpfs rw\n"}))
	dir := s.opts.Proc + "/7"
	id := s.rootOf(dir)
	if id.mount == 0 {
		t.Fatalf("got %+v", id)
	}
	other := procOf(t, map[string]string{"root": "link:/", "mountinfo": fmt.Sprintf("1 1 0:30 / /data rw - tmpfs tmpfs rw\n%d 1 0:30 / / rw - tmpfs tmpfs rw\n%s", id.mount, mountinfo)}) + "/7"
	for _, inode := range []uint64{4026532255, 4026532257} {
		s.note(inode, "elsewhere", nil, nil)
	}
	for _, dir := range []string{dir, other, procOf(t, map[string]string{"root": "link:/", "mountinfo": "garbage\n"}) + "/7"} {
		if !s.readMounts(dir) || s.err != nil {
			t.Errorf("%s: %v", dir, s.err)
		}
	}
	if s.mountedAs["web"] != 4026532255 {
		t.Errorf("got the mounts %v", s.mountedAs)
	}
}

// Only the beginning of a long file is read.
func TestLongestFile(t *testing.T) {
	s := scanOf(t, t.TempDir())
	for name, limit := range map[string]int{"environ": maxEnvironment, "mountinfo": maxProcfs} { // into one buffer, in any order
		for size, want := range map[int]int{limit - 1: limit - 1, limit: limit, 3 * limit: limit} {
			proc := procOf(t, map[string]string{name: strings.Repeat("x", size)})
			if text := s.read(proc+"/7", "/"+name, limit); len(text) != want || cap(s.buf) > 2*maxProcfs {
				t.Errorf("%s, %d bytes: got %d into %d", name, size, len(text), len(s.buf))
			}
		}
	}
}
