// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// sees checks that the source sees exactly these namespaces, each given as a line of
// its addresses.
func sees(t *testing.T, reason string, want ...string) {
	t.Helper()
	all, err := nested(t).Pods(t.Context())
	if err != nil {
		t.Fatalf("%v: %s", err, reason)
	}
	adds, got := parts(t, all)
	if diff := cmp.Diff(podsource.Answer{Source: "netns ADDs", Supplementary: true, SeesADDs: []string{podsource.EveryNetwork}}, adds); diff != "" {
		t.Errorf("no ADD is in flight: %s (-want +got):\n%s", reason, diff)
	}
	if diff := cmp.Diff(want, answer(all)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", reason, diff)
	}
	origins := make(map[string]bool)
	for _, p := range got.Pods {
		if p.HostNetwork != strings.HasPrefix(p.Origin, "the node's own network namespace") || !p.HostNetwork && !strings.HasPrefix(p.Origin, "network namespace ") || origins[p.Origin] {
			t.Errorf("%q does not identify the namespace: %s", p.Origin, reason)
		}
		origins[p.Origin] = true
		if p.Name != "" || p.Namespace != "" || p.UID != "" || p.ContainerIDs != nil || !p.StartedAt.IsZero() {
			t.Errorf("got %+v, want only addresses and an origin", p)
		}
	}
	got.Pods = nil
	if diff := cmp.Diff(podsource.Answer{Source: "netns", Supplementary: true, SeesAddresses: true}, got); diff != "" {
		t.Errorf("declarations: %s (-want +got):\n%s", reason, diff)
	}
}

func TestNamespaces(t *testing.T) {
	if !onNode(t) {
		return
	}
	sees(t, "no pods, and process 1 is in the node's network")
	if err := configure([]string{"192.168.0.1"}); err != nil {
		t.Fatal(err)
	}
	sees(t, "the node's own address is not a pod's")

	const pod = "10.0.0.2 fd00::2"
	pid, stop := startPod(t, "10.0.0.2", "fd00::2", "fe80::2", "169.254.7.7")
	startPod(t)
	sees(t, "a process, dual stack, without loopback and link-local; a namespace without an address is not a pod", pod)
	bindNamespace(t, pid, "/run/netns/process")
	sees(t, "a namespace with a process and a mount", pod)
	onlyRoot := []syscall.SysProcIDMap{{Size: 1}}
	_, end := start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: onlyRoot,
		GidMappings: onlyRoot}, "NETNS_TEST_IPS=10.0.0.3")
	sees(t, "a tenant, as root of a user namespace of its own", pod, "10.0.0.3")
	end()
	stop()
	sees(t, "the process has ended, and the mount is left", pod)
	unmount(t, "/run/netns/process")
	sees(t, "the mount is gone, too; its file is left")

	if err := os.MkdirAll("/run/docker/a b\\n", 0o755); err != nil {
		t.Fatal(err)
	}
	mounted := []string{"10.0.1.1", "10.0.1.2"}
	mountNamespace(t, "/run/docker/a b\\n/x", mounted[0])
	mountNamespace(t, "/run/netns/cni\r\u00a0\v\f", mounted[1]) // the kernel escapes only four characters
	sees(t, "namespaces mounted in any directory, with any white space in their paths", mounted...)
	if err := unix.Mount("over", "/run/docker", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	sees(t, "one is hidden under another mount, without processes", mounted[1])
	if err := errors.Join(os.Mkdir("/run/docker/a b\\n", 0o755), unix.Mkfifo("/run/docker/a b\\n/x", 0o600)); err != nil {
		t.Fatal(err)
	}
	sees(t, "a pipe at its mount point, where open(2) blocks", mounted[1])
	unmount(t, "/run/docker")
	if err := unix.Mount("/proc/self/ns/uts", "/run/docker/a b\\n/x", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	sees(t, "a namespace of another kind at its mount point", mounted[1])
	unmount(t, "/run/docker/a b\\n/x")
	sees(t, "not hidden any more", mounted...)
}

// A thread may be in another namespace than its process's first thread. A zombie is in none,
// and is no error.
func TestThreads(t *testing.T) {
	if !onNode(t) {
		return
	}
	s := nested(t)
	if err := inNewNamespace(func() error {
		err := configure([]string{"10.0.0.2"})
		got, askErr := s.Pods(t.Context())
		if ips := answer(got); !slices.Equal(ips, []string{"10.0.0.2"}) {
			t.Errorf("a thread is in a namespace: got %q", ips)
		}
		return errors.Join(err, askErr)
	}); err != nil {
		t.Fatal(err)
	}
	sees(t, "the thread has left it")
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	sees(t, "a process is a zombie")
	if livesSurely(living(t, s), fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), time.Now()) {
		t.Error("the namespace of a zombie exists")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Processes that end while they are read are ignored, and all others are seen each
// time.
func TestProcessesComeAndGo(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			cmd := reexec(t, asker) // it asks, too, and gets an error without Nested
			cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS
			_ = cmd.Run()
		}
	}()
	s := nested(t)
	for range 100 {
		all, err := s.Pods(t.Context())
		if got := answer(all); err != nil || !slices.Equal(got, []string{"10.0.0.2"}) {
			t.Errorf("got %q, %v", got, err)
		}
	}
	cancel()
	<-ended
}

// A process may start with a PID that the scan has passed. While new namespaces appear all the
// time, the answer does not declare that it has all addresses. Those without an address, such
// as sandboxes of builds, don't count.
func TestNamespacesAppear(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	for _, row := range []struct {
		reason  string
		appears func(n int) bool // after the nth change of namespace; the node's own is the first one that is entered
		ips     []string
		pods    int
		seesAll bool
	}{
		{"one", func(n int) bool { return n == 1 }, []string{"10.0.1.1"}, 2, true},
		{"one without an address in each reading", func(int) bool { return true }, nil, 1, true},
		{"one in each reading", func(n int) bool { return n > 2 && n%2 == 1 }, []string{"10.0.1.2"}, maxScans, false},
	} {
		s, n := nested(t), 0
		var stops []func()
		s.setns = func(fd, kind int) error {
			if n++; row.appears(n) {
				_, stop := startPod(t, row.ips...)
				stops = append(stops, stop)
			}
			return unix.Setns(fd, kind)
		}
		all, err := s.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if adds, seen := parts(t, all); len(adds.SeesADDs) == 0 || seen.SeesAddresses != row.seesAll || len(seen.Pods) != row.pods {
			t.Errorf("%s: got %+v and %+v, want %d pods; all are seen: %t", row.reason, adds, seen, row.pods, row.seesAll)
		}
		for _, stop := range stops {
			stop()
		}
	}
}

// Without the privilege to read all processes the answer is an error that names the
// privilege (R2).
func TestNoPrivilege(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	// In /run/proc process 1 may be read, and another process may not.
	err := errors.Join(os.Mkdir("/run/proc", 0o755), os.Symlink("/proc/self", "/run/proc/1"), os.Symlink("/proc/1", "/run/proc/2"))
	if err != nil {
		t.Fatal(err)
	}
	const isNested, proc = "NETNS_TEST_NESTED=1", "NETNS_TEST_NESTED=1 NETNS_TEST_PROC=/run/proc"
	const needs = "this needs CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN and CAP_SYS_PTRACE over the node, .*without hidepid"
	root, nobody := &syscall.SysProcAttr{}, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	enough := &syscall.SysProcAttr{Credential: nobody.Credential,
		AmbientCaps: []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH}}
	onlyRoot := []syscall.SysProcIDMap{{Size: 1}}
	inUserNS := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: onlyRoot, GidMappings: onlyRoot}
	for _, row := range []struct {
		reason, hidepid string
		attr            *syscall.SysProcAttr
		env, says       string
	}{
		{"root", "0", root, isNested, `^\["10.0.0.2"\]\n$`},
		{"what the documentation says, as the systemd unit has it", "0", enough, isNested, `^\["10.0.0.2"\]\n$`},
		{"a container's own processes", "0", root, "", "^error: 0 pods, source does not exist on this node: .*the agent's pod needs hostPID"},
		{"root of a user namespace", "0", inUserNS, isNested, "^error: 0 pods, .*permission denied; " + needs},
		{"nobody", "0", nobody, isNested, "^error: 0 pods, reading /proc/1/ns/pid: permission denied; " + needs},
		{"one of several processes", "0", nobody, proc, "^error: 0 pods, reading /run/proc/2/.*permission denied; " + needs},
		{"processes can't be read", "1", nobody, isNested, "operation not permitted; " + needs},
		{"processes can't be seen", "2", nobody, isNested, "without hidepid\\?"},
	} {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_REMOUNT, "hidepid="+row.hidepid); err != nil {
			t.Fatal(err)
		}
		cmd := reexec(t, asker)
		cmd.SysProcAttr = row.attr
		cmd.Env = append(cmd.Env, strings.Fields(row.env)...)
		out, _ := cmd.CombinedOutput() // the text has the error, too
		if !regexp.MustCompile(row.says).Match(out) {
			t.Errorf("%s: got %q, want %q", row.reason, out, row.says)
		}
	}
}

// A failure of any step is an error of the call, and never podsource.ErrNotHere, after
// which podsource.Fallback would ask another source.
func TestErrors(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	empty := t.TempDir()
	refuse := func(why error) func(int, int) error { return func(int, int) error { return why } }
	const all = 1024
	limit := unix.Rlimit{Cur: all, Max: all}
	setLimit := func(n uint64) error {
		limit.Cur = n
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	for _, row := range []struct {
		reason string
		opts   Options
		setns  func(fd, kind int) error
		ctx    context.Context //nolint:containedctx // of the call
		says   string
	}{
		{"no procfs", Options{Proc: empty}, unix.Setns, t.Context(), "is a procfs mounted at " + empty},
		{"entering is not permitted", Options{}, refuse(unix.EPERM), t.Context(), ": operation not permitted; this needs CAP_"},
		{"entering says that the open namespace does not exist", Options{}, refuse(unix.ENOENT), t.Context(), ": no such file or directory"},
		{"no descriptor is left for a socket", Options{}, func(fd, kind int) error {
			return errors.Join(setLimit(all-limit.Cur), unix.Setns(fd, kind)) // none after entering, all after leaving
		}, t.Context(), "too many open files"},
		{"the context has ended", Options{}, unix.Setns, ended, context.Canceled.Error()},
	} {
		row.opts.Nested = true
		s, err := New(row.opts)
		if err != nil {
			t.Fatal(err)
		}
		s.setns = row.setns
		got, err := s.Pods(row.ctx)
		if got.Source != "netns" || got.Pods != nil || got.Parts != nil || err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("got %v, %v, want an error that says %q: %s", got, err, row.says, row.reason)
		}
		if errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("%v makes podsource.Fallback ask another source: %s", err, row.reason)
		}
	}
	named, sc := namespaceMount{1, "/run/netns/named"}, nested(t).newScan(t.Context())
	mountNamespace(t, named.point)
	err := setLimit(0) // a FUSE server may answer EMFILE, too
	sc.readMountedNetNS(unix.AT_FDCWD, named)
	if err := errors.Join(err, setLimit(all)); err != nil || sc.err != nil || len(sc.found) != 1 || sc.whole[1] {
		t.Errorf("it can't be opened: %v are noted, %v (%v)", sc.found, sc.err, err)
	}
}

// watched counts what package context has left behind in a context that is not its own.
type watched struct {
	context.Context
	ended chan struct{}
	left  int
}

func (c *watched) Done() <-chan struct{} { return c.ended }

func (c *watched) AfterFunc(func()) (stop func() bool) {
	c.left++
	return func() bool { c.left--; return true }
}

// A call leaves no descriptor open, no thread in another namespace, even if a thread can't
// return, and nothing in a caller's context, as an embedder may never end it.
func TestNothingIsLeft(t *testing.T) {
	if !onNode(t) {
		return
	}
	start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}, "NETNS_TEST_IPS=10.0.0.2")
	mountNamespace(t, "/run/netns/named", "10.0.0.3")
	entries := func(dir string) []string {
		d, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, entry := range d {
			names = append(names, entry.Name())
		}
		return names
	}
	home, err := netNSOf("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	isStray := func(dir string) bool {
		inode, err := netNSOf(dir)
		return err == nil && inode != home
	}
	stray, refused := nested(t), nested(t)
	n := 0
	stray.setns = func(fd, kind int) error {
		if n++; n%2 == 0 && isStray("/proc/thread-self") { // the first change of namespace enters one
			return unix.EPERM // the thread can't return
		}
		return unix.Setns(fd, kind)
	}
	refused.setns = func(int, int) error { return unix.EPERM }
	ctx := &watched{Context: t.Context(), ended: make(chan struct{})}
	before := 0
	for range 20 {
		for i, s := range []*Source{nested(t), stray, refused} {
			all, err := s.Pods(ctx)
			if got := answer(all); (err != nil) != (s == refused) || s != refused && len(got) != 2 {
				t.Errorf("source %d: got %q, %v", i, got, err)
			}
		}
		if n := len(entries("/proc/self/fd")); before == 0 {
			before = n
		} else if n != before {
			t.Fatalf("%d descriptors are open, there were %d before", n, before)
		}
	}
	if ctx.left != 0 {
		t.Errorf("%d things are left in a context", ctx.left)
	}
	// Threads that could not return end soon, and no goroutine may run on them.
	for deadline := time.Now().Add(20 * time.Second); ; {
		strays := slices.DeleteFunc(entries("/proc/self/task"), func(thread string) bool { return !isStray("/proc/self/task/" + thread) })
		if len(strays) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("these threads are still in another network namespace: %q", strays)
		}
	}
}

// TestManyNamespaces measures a call on a node with 250 network namespaces and 1,000
// processes. It prints the figures and does not check them.
func TestManyNamespaces(t *testing.T) {
	if !onNode(t) {
		return
	}
	const namespaces, processes = 250, 1000
	sleepers := func(flags uintptr) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var all []*exec.Cmd
		for range processes {
			cmd := exec.CommandContext(ctx, "sleep", "infinity")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, cmd)
		}
		return func() {
			cancel()
			for _, cmd := range all {
				_ = cmd.Wait() // it was killed
			}
		}
	}
	stop := sleepers(syscall.CLONE_NEWNS) // before the namespaces are mounted: containers don't see them
	var want []string
	for i := range namespaces {
		want = append(want, fmt.Sprintf("10.0.1.%d", i))
		mountNamespace(t, fmt.Sprintf("/run/netns/cni-%d", i), want[i])
	}
	slices.Sort(want)
	for _, where := range []string{"each in a mount namespace of its own", "all in one mount namespace"} {
		s, least := nested(t), time.Hour
		for range 5 {
			var before, after unix.Rusage
			err := unix.Getrusage(unix.RUSAGE_SELF, &before)
			got, askErr := s.Pods(t.Context())
			err = errors.Join(err, askErr, unix.Getrusage(unix.RUSAGE_SELF, &after))
			least = min(least, time.Duration(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()))
			if diff := cmp.Diff(want, answer(got)); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
		}
		fmt.Printf("podsource/netns: a call with %d network namespaces and %d processes, %s: %v of CPU time\n",
			namespaces, processes, where, least.Round(time.Millisecond))
		stop()
		stop = sleepers(0)
	}
	stop()
}

// An agent that sees only the processes of its own pod must not take the pod for a
// node: it would declare that it sees all addresses, and every address that it does
// not see would be released (hazard 79).
//
// Guard: [scan.checkNested] requires a process that shows that process 1 is a
// node's.
func TestHazard79OwnPodTakenForNode(t *testing.T) {
	if !onNode(t) {
		return
	}
	const refused = "as by unshare --pid --fork\n" // with no list of what was not read
	for _, row := range []struct{ reason, start, want string }{
		{"an agent's pod without hostPID", "container", refused},
		{"... where a shell or an init starts the agent, or directly on a node without containers", "container child", refused},
		{"... with a shared PID namespace: process 1 has mounts of its own", "beside", refused},
		{"... where process 1 adopted the agent, whose parent has ended", "container mounts", refused},
		{"... where another container started the agent", "container mounts child", refused},
		{"... in a PID namespace of its own", "container processes", "[]"},
		{"in a container with hostPID, alone on the node", "container child mounts", "[]"},
		{"... started by a shell", "container child mounts child", "[]"},
		{"on a node with a container", "child", "[]"},
		{"a plugin directly on a node without containers", "container, started", "[]"},
		{"in a container with the node's procfs and without hostPID", "child processes child", "[]"},
	} {
		cmd := reexec(t, starter)
		start, started, _ := strings.Cut(row.start, ", ")
		cmd.Env = slices.Concat(cmd.Env, []string{"NETNS_TEST_ROW=" + start, "NETNS_TEST_NESTED=" + max(started, "1")})
		out, _ := cmd.CombinedOutput() // the text has the error, too
		if got := string(out); !strings.Contains(got, row.want) || strings.HasPrefix(got, "error: ") != (row.want == refused) {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
	own := map[string]string{"../self": "link:7", "ns/pid": "link:pid:[5]", "stat": "7 (agent) S 8" + strings.Repeat(" 0", 18)}
	ofShell := maps.Clone(own)
	ofShell["ns/mnt"], ofShell["../8/ns/pid"], ofShell["../8/stat"] = "link:mnt:[1]", "link:pid:[5]", own["stat"]
	besideOne := maps.Clone(ofShell)
	besideOne["stat"], besideOne["../9/x"] = strings.Replace(own["stat"], "S 8", "S 1", 1), ""
	for _, row := range []struct{ reason, proc, want string }{
		{"no process can be listed", t.TempDir() + "/none", "listing the node's processes"},
		{"a process that ends meanwhile shows nothing", procOf(t, map[string]string{"x": ""}), "the ancestors of this process"},
		{"a process that can't be read", procOf(t, map[string]string{"ns/pid": ""}), "/7/ns/pid: "},
		{"the mount namespace of this process can't be read", procOf(t, own), "the ancestors of this process"},
		{"... nor that of its parent", procOf(t, ofShell), "the ancestors of this process"},
		{"one that can't be read in time could show it", procOf(t, besideOne), `(not read: ["process 9 can't be read in time"])`},
	} {
		s := scanOf(t, row.proc)
		s.pidNS, s.hangs["process 9"] = 5, 1
		if s.checkNested(); s.err == nil || !strings.Contains(s.err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", row.reason, s.err, row.want)
		}
	}
}

// An attachment is the address of a mounted network namespace.
func TestSource(t *testing.T) {
	if !onNode(t) {
		return
	}
	gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		proc := t.TempDir() + "/proc"
		repair := func() { must(os.Symlink("/proc", proc)) }
		repair()
		s, err := New(Options{Proc: proc, Nested: true, Networks: []string{"podnet", "storage"}})
		must(err)
		both := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) { // in one answer, as the test takes it
			a, err := s.Pods(ctx)
			if err != nil {
				return a, err
			}
			adds, seen := parts(t, a)
			seen.SeesADDs, seen.Pods = adds.SeesADDs, append(seen.Pods, adds.Pods...)
			return seen, nil
		})
		mounts := make(map[string]bool)
		mountOf := func(at podsource.Attachment) string { return "/run/netns/" + at.ContainerID + "-" + at.IfName }
		remove := func(path string) {
			if mounts[path] {
				unmount(t, path)
				must(os.Remove(path))
				delete(mounts, path)
			}
		}
		reboot := func() {
			for path := range mounts {
				remove(path)
			}
		}
		t.Cleanup(reboot)
		return gctest.Fixture{
			Source: both, Networks: []string{"podnet", "storage"},
			Attach: func(at podsource.Attachment) {
				var ips []string
				for _, ip := range at.IPs {
					ips = append(ips, ip.String())
				}
				if path := mountOf(at); !mounts[path] {
					mountNamespace(t, path, ips...)
					mounts[path] = true
				}
			},
			Detach: func(at podsource.Attachment) { remove(mountOf(at)) },
			Break:  func() { must(os.Remove(proc)) },
			Repair: repair,
			Reboot: reboot,
		}
	})
}
