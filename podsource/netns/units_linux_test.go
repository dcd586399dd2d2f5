// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	s := scanOf(t, proc)
	for _, pid := range []string{"7", "9"} { // 9 is like a kernel thread, without environment
		if s.readEnvironment(pid, proc+"/"+pid); s.err != nil {
			t.Errorf("process %s: %v", pid, s.err)
		}
	}
	if len(s.adds) != 1 || s.adds[0].containerID != "outlives" || s.adds[0].inNodePIDNS {
		t.Errorf("got %+v, want one that is not known to be in the node's PID namespace", s.adds)
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
		s := scanOf(t, procOf(t, files))
		s.mountedAt[path] = row.mountedAt
		if got := s.inClaimedNetNS(cniADD{pid: "7", netNS: row.netNS, netNSInodes: row.inodes, at: s.namespacesAt(row.netNS)}); got != row.want {
			t.Errorf("%s: got %t, want %t", row.reason, got, row.want)
		}
	}
}

// TestAnswerNetworksWithSeveralADDs: namespaces without address at the paths of ADDs in
// flight don't count, and all others do.
func TestAnswerNetworksWithSeveralADDs(t *testing.T) {
	const why = "shows no address"
	for _, row := range []struct {
		reason      string
		unaddressed []uint64
		speaks      bool
	}{
		{"all have addresses", nil, true},
		{"those of both ADDs, two of them at one path", []uint64{1, 2, 4}, true},
		{"one that no ADD sets up", []uint64{2, 3}, false},
	} {
		s := scanOf(t, t.TempDir())
		s.opts.Networks, s.unaddressed, s.mountedAt = []string{"n", "m"}, make(map[uint64]string), map[string][]uint64{"/run/netns/a": {4}, "/run/netns/b": {1, 2}}
		for _, path := range []string{"/run/netns/a", "/var/lib/../run/netns/b"} {
			s.adds = append(s.adds, cniADD{at: s.namespacesAt(path), inNodePIDNS: true})
		}
		for _, inode := range row.unaddressed {
			s.unaddressed[inode] = why
		}
		of, note := s.answerNetworks()
		if speaks := len(of) == 2; speaks != row.speaks || row.speaks == strings.Contains(note, why) {
			t.Errorf("%s: speaks of %v: %q", row.reason, of, note)
		}
	}
}

// TestReadStat: an invalid stat file is an error, and not a start at the node's boot.
func TestReadStat(t *testing.T) {
	const whole = "7 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711" // the start is the 20th field after the name
	for _, row := range []struct {
		reason, text string
		ok           bool
	}{
		{"as the kernel writes it", whole, true},
		{"one field less", strings.TrimSuffix(whole, " 4711"), false},
		{"no name", strings.ReplaceAll(whole, ")", ""), false},
		{"a start that is not a number", strings.Replace(whole, "4711", "x", 1), false},
		{"nothing", "", false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := scanOf(t, dir)
		since, comm, ok := s.startTime(dir)
		if ok != row.ok || (s.err == nil) != row.ok {
			t.Errorf("%s: %t, error %v", row.reason, ok, s.err)
		}
		if row.ok && (since.Milliseconds() != 47110 || comm != "a) b") {
			t.Errorf("%s: got %v and %q", row.reason, since, comm)
		}
	}
}

// TestClaims: an ADD counts if its process ended meanwhile, and does not if it has run
// for too long. A process that can't be read is an error (R2).
func TestClaims(t *testing.T) {
	up := boottime.Since()
	stat := func(started time.Duration) string {
		return fmt.Sprintf("7 (bridge) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 %d", started/(time.Second/ticks))
	}
	for _, row := range []struct {
		reason, stat string // none: the process has ended
		want         string
		err          bool
	}{
		{"ended since", "", "process 7", false},
		{"in flight", stat(up), "process 7 (bridge)", false},
		{"for longer than an ADD takes", stat(up - 2*time.Hour), "", false},
		{"can't be read", "garbage", "", true},
	} {
		s := scanOf(t, t.TempDir())
		s.adds, s.opts.LongestADD = []cniADD{{pid: "7", containerID: "a"}}, time.Hour
		if row.stat != "" {
			if err := errors.Join(os.Mkdir(filepath.Join(s.opts.Proc, "7"), 0o755), os.WriteFile(filepath.Join(s.opts.Proc, "7", "stat"), []byte(row.stat), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		err := s.noteClaims()
		if s.claims["a"] != row.want || (err != nil) != row.err || err == nil && (len(s.adds) == 1) != (row.want != "") {
			t.Errorf("%s: %v, %d in flight, %v", row.reason, s.claims, len(s.adds), err)
		}
	}
}

// A process has ended when all its threads have ended.
func TestAnyThread(t *testing.T) {
	for _, row := range []struct {
		reason string
		first  string // what its first thread's file has, and the other one's
		second string
		want   bool
	}{
		{"the first thread lives", "x", "", true},
		{"the first one has ended", "", "x", true},
		{"both have ended", "", "", false},
	} {
		s := scanOf(t, procOf(t, map[string]string{"file": row.first, "task/7/file": row.first, "task/8/file": row.second}))
		read := make(map[string]int)
		got := s.anyThread("7", s.opts.Proc+"/7", func(dir string) bool {
			read[filepath.Base(dir)]++
			text, _ := s.read(dir, "/file")
			return len(text) > 0
		})
		if got != row.want || read["7"] != 1 || read["8"] > 1 {
			t.Errorf("%s: got %t, read %v", row.reason, got, read)
		}
	}
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
		t.Errorf("one starts whenever one ends: running: %t, %v", running, s.late)
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
		{"the threads of an ADD", map[string]string{"environ": add, "task": ""}, true},
		{"... or the namespace of one", map[string]string{"environ": add, "task/7/x": "", "task/8/ns/net": ""}, true},
		{"an environment longer than the limit", map[string]string{"environ": strings.Repeat("x", maxProcfs+1)}, false},
		{"a link that does not name a namespace", map[string]string{"ns/net": "link:x", "task/7/x": ""}, true},
		{"its mounts", map[string]string{"root": "link:/", "mountinfo": "garbage"}, true},
		{"its mounts can't be read", map[string]string{"root": "link:/", "mountinfo/x": ""}, true},
		{"its root is gone", map[string]string{"mountinfo": mountinfo}, false},
	} {
		s := scanOf(t, procOf(t, row.files))
		if err := s.processes(); (err != nil) != row.fails || err != nil && !strings.Contains(err.Error(), "process 7") {
			t.Errorf("%s: got %v", row.reason, err)
		}
	}
	if err := scanOf(t, t.TempDir()+"/none").processes(); err == nil {
		t.Error("no error if processes can't be listed")
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
	for _, dir := range []string{dir, other, procOf(t, map[string]string{"root": "link:/", "mountinfo": "garbage"}) + "/7"} {
		if !s.readMounts(dir) || s.err != nil {
			t.Errorf("%s: %v", dir, s.err)
		}
	}
	if at := s.mountedAt["/run/netns/web"]; !slices.Equal(at, []uint64{4026532255}) {
		t.Errorf("got the mounts %v", s.mountedAt)
	}
}

// A file may be as long as the limit.
func TestLongestFile(t *testing.T) {
	for size, want := range map[int]bool{maxProcfs: true, maxProcfs + 1: false, 3 * maxProcfs: false} {
		s := scanOf(t, procOf(t, map[string]string{"environ": strings.Repeat("x", size)}))
		if text, whole := s.read(s.opts.Proc+"/7", "/environ"); len(text) != maxProcfs || whole != want || len(s.buf) > 3*maxProcfs {
			t.Errorf("%d bytes: got %d into %d, whole: %t", size, len(text), len(s.buf), whole)
		}
	}
}

// A hint names the privileges that this process lacks, or all of them if it has them: then
// only over a user namespace of its own. TestNoPrivilege has a process that lacks all.
func TestHintNamesWhatIsMissing(t *testing.T) {
	err := hint(fmt.Errorf("looking: %w", syscall.EACCES))
	if !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE") {
		t.Errorf("it has all of them, in its own user namespace at least, and the hint is %q", err)
	}
	if err := hint(syscall.EIO); err != syscall.EIO {
		t.Errorf("got %v", err)
	}
}
