// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

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

// The kernel is asked before all other sources.
func TestRank(t *testing.T) {
	if got := podsource.Ranked(nested(t)).Rank(); got != podsource.RankADDs {
		t.Errorf("got %d, want %d", got, podsource.RankADDs)
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

	pid, stop := startPod(t, "10.0.0.2", "fd00::2", "fe80::2", "169.254.7.7")
	sees(t, "a process, dual stack, without loopback and link-local", "10.0.0.2 fd00::2")
	_, stopIdle := startPod(t)
	sees(t, "a namespace without an address is not a pod", "10.0.0.2 fd00::2")
	stopIdle()

	mountNamespace(t, "/run/netns/named", "10.0.0.3")
	sees(t, "a mounted namespace without processes", "10.0.0.2 fd00::2", "10.0.0.3")
	if err := os.MkdirAll("/run/docker/a b\\n", 0o755); err != nil {
		t.Fatal(err)
	}
	mountNamespace(t, "/run/docker/a b\\n/x", "10.0.0.4")
	sees(t, "a namespace mounted in another directory", "10.0.0.2 fd00::2", "10.0.0.3", "10.0.0.4")

	named := "/run/netns/process"
	if err := os.WriteFile(named, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", pid), named, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	sees(t, "a namespace with a process and a mount", "10.0.0.2 fd00::2", "10.0.0.3", "10.0.0.4")
	stop()
	sees(t, "the process has ended, and the mount is left", "10.0.0.2 fd00::2", "10.0.0.3", "10.0.0.4")
	unmount(t, named)
	sees(t, "the mount is gone, too; its file is left", "10.0.0.3", "10.0.0.4")

	if err := unix.Mount("over", "/run/docker", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	sees(t, "hidden under another mount, without processes", "10.0.0.3")
	if err := os.Mkdir("/run/docker/a b\\n", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo("/run/docker/a b\\n/x", 0o600); err != nil {
		t.Fatal(err)
	}
	sees(t, "a pipe at its mount point, where open(2) blocks", "10.0.0.3")
	unmount(t, "/run/docker")
	sees(t, "not hidden any more", "10.0.0.3", "10.0.0.4")
}

// A thread may be in another namespace than its process's first thread.
func TestNamespaceOfAThread(t *testing.T) {
	if !onNode(t) {
		return
	}
	entered, end, ended := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = inNewNamespace(func() error {
			entered <- configure([]string{"10.0.0.2"})
			<-end
			return nil
		})
	}()
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	sees(t, "a thread is in the namespace", "10.0.0.2")
	close(end)
	<-ended
	sees(t, "the thread has left it")
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
		for i := 0; ctx.Err() == nil; i++ {
			cmd := reexec(t, asker) // it asks, too, and gets an error without Nested
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
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

// A process may start with a PID that the scan has passed.
func TestProcessStartsDuringTheScan(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	s := nested(t)
	began := false
	s.setns = func(fd, kind int) error {
		if !began {
			began = true
			startPod(t, "10.0.0.3")
		}
		return unix.Setns(fd, kind)
	}
	got, err := s.Pods(t.Context())
	if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.3"}, answer(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, addresses := parts(t, got); !addresses.SeesAddresses {
		t.Error("the last scan found nothing new, and the answer does not declare that it has all addresses")
	}
}

// While new namespaces appear all the time, the answer does not declare that it has all
// addresses.
func TestNamespacesComeAllTheTime(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	s := nested(t)
	n := 0
	s.setns = func(fd, kind int) error {
		if n++; n > 2 && n%2 == 1 { // not on the way back, and not for the node's own
			startPod(t, fmt.Sprintf("10.0.1.%d", n))
		}
		return unix.Setns(fd, kind)
	}
	got, err := s.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if adds, got := parts(t, got); len(adds.SeesADDs) == 0 || got.SeesAddresses || !got.Supplementary || len(got.Pods) != maxScans { // each scan finds one
		t.Errorf("got %+v, %v, want the pods that were seen, without SeesAddresses", got, err)
	}
}

// A zombie is in no namespace, and is no error.
func TestZombie(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	cmd := reexec(t, asker)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, cmd.Process.Pid)
	sees(t, "a process is a zombie", "10.0.0.2")
	lives, err := nested(t).Living(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if livesSurely(lives, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), time.Now()) {
		t.Error("the namespace of a zombie exists")
	}
	_, _ = io.Copy(io.Discard, stdout)
	_ = cmd.Wait()
}

// awaitZombie returns when all threads of a process that nobody waits for have ended.
func awaitZombie(t *testing.T, pid int) {
	t.Helper()
	for dir := fmt.Sprintf("/proc/%d", pid); ; {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		if threads, err := os.ReadDir(dir + "/task"); err == nil && len(threads) == 1 && strings.Contains(string(stat), ") Z ") {
			return
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
	ask := func(change func(*syscall.SysProcAttr), env ...string) string {
		cmd := reexec(t, asker)
		cmd.Env = append(cmd.Env, env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		change(cmd.SysProcAttr)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	const isNested = "NETNS_TEST_NESTED=1"
	nobody := func(a *syscall.SysProcAttr) { a.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} }
	inUserNS := func(a *syscall.SysProcAttr) {
		a.Cloneflags = syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		a.GidMappings = a.UidMappings
	}
	if got := ask(func(*syscall.SysProcAttr) {}, isNested); got != "[\"10.0.0.2\"]\n" {
		t.Errorf("as root: got %s", got)
	}
	for _, row := range []struct{ reason, got, want string }{
		{"nobody", ask(nobody, isNested), "error: 0 pods, reading process 1: stat /proc/1/ns/pid: permission denied; this needs CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE over"},
		{"root of a user namespace", ask(inUserNS, isNested), "permission denied; this needs CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE over"},
		{"a container's own processes", ask(func(*syscall.SysProcAttr) {}), "the agent's pod needs hostPID"},
	} {
		if !strings.Contains(row.got, row.want) || !strings.HasPrefix(row.got, "error: 0 pods, ") {
			t.Errorf("%s: got %q, want an error that says %q", row.reason, row.got, row.want)
		}
	}

	// A node where process 1 may be read, and another process may not.
	if err := os.Mkdir("/run/proc", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"1": "/proc/self", "2": "/proc/1"} {
		if err := os.Symlink(target, filepath.Join("/run/proc", name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask(nobody, isNested, "NETNS_TEST_PROC=/run/proc"); !strings.HasPrefix(got, "error: 0 pods, reading process 2: ") ||
		!strings.Contains(got, "permission denied; this needs") {
		t.Errorf("one of several processes: got %q", got)
	}

	// A permission error of another file system has no hint.
	if err := os.Mkdir("/run/closed", 0o700); err != nil {
		t.Fatal(err)
	}
	if got := ask(nobody, isNested, "NETNS_TEST_PROC=/run/proc", "NETNS_TEST_HOST=/run/closed/netns"); !strings.HasSuffix(got, "/run/closed/netns: permission denied\n") {
		t.Errorf("the node's namespace may not be read: got %q", got)
	}

	if got := ask(nobody, isNested, "NETNS_TEST_PROC=/run/proc", "NETNS_TEST_HOST=/run/proc/2/ns/net"); !strings.Contains(got, "permission denied; this needs") {
		t.Errorf("... in procfs: got %q", got)
	}

	if err := unix.Mount("proc", "/proc", "proc", unix.MS_REMOUNT, "hidepid=1"); err != nil {
		t.Fatal(err)
	}
	if got := ask(nobody, isNested); !strings.Contains(got, "operation not permitted; procfs is mounted with hidepid; this needs CAP_") {
		t.Errorf("hidepid=1: got %q", got)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_REMOUNT, "hidepid=2"); err != nil {
		t.Fatal(err)
	}
	if got := ask(nobody, isNested); !strings.Contains(got, "without hidepid?") {
		t.Errorf("hidepid=2: got %q", got)
	}
}

// A failure of any step is an error of the call, and never podsource.ErrNotHere, after
// which podsource.Fallback would ask another source.
func TestErrors(t *testing.T) {
	if !onNode(t) {
		return
	}
	_, stop := startPod(t, "10.0.0.2")
	empty := t.TempDir()
	sees(t, "nothing is wrong yet", "10.0.0.2")
	const all = 1024
	limit := unix.Rlimit{Cur: all, Max: all}
	for _, row := range []struct {
		reason string
		opts   Options
		setns  func(fd, kind int) error
		says   string
	}{
		{"no procfs", Options{Proc: empty, Nested: true}, unix.Setns, "is a procfs mounted at " + empty},
		{"no such namespace", Options{HostNetNS: filepath.Join(empty, "none"), Nested: true}, unix.Setns, "reading the node's network namespace"},
		{"entering is not permitted", Options{Nested: true}, func(int, int) error { return unix.EPERM }, "entering it: operation not permitted; this needs CAP_"},
		{"entering says that the open namespace does not exist", Options{Nested: true}, func(int, int) error { return unix.ENOENT }, "entering it"},
		{"entering returns another error", Options{Nested: true}, func(int, int) error { return unix.EINVAL }, "entering it"},
		{"no descriptor is left for a socket", Options{Nested: true}, func(fd, kind int) error {
			limit.Cur = all - limit.Cur // none after entering, all after leaving
			return errors.Join(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit), unix.Setns(fd, kind))
		}, "listing its addresses: too many open files"},
	} {
		s, err := New(row.opts)
		if err != nil {
			t.Fatal(err)
		}
		s.setns = row.setns
		got, err := s.Pods(t.Context())
		if got.Source != "netns" || got.Pods != nil || got.Parts != nil || err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("got %v, %v, want an error that says %q: %s", got, err, row.says, row.reason)
		}
		if errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("%v makes podsource.Fallback ask another source: %s", err, row.reason)
		}
	}
	stop()
	mountNamespace(t, "/run/netns/named", "10.0.0.3")
	refused := nested(t)
	refused.setns = func(int, int) error { return unix.EPERM }
	if got, err := refused.Pods(t.Context()); got.Parts != nil || !errors.Is(err, unix.EPERM) {
		t.Errorf("a namespace that is only mounted: got %v, %v, want %v", got, err, unix.EPERM)
	}
	if err := unix.Mount("/proc/self/ns/uts", "/run/netns/named", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	sees(t, "it is hidden by a namespace of another kind")
	named, sc := namespaceMount{1, "/run/netns/named"}, nested(t).newScan(t.Context())
	if sc.readMountedNetNS(-1, named); sc.err != nil || len(sc.unreadable) != 1 {
		t.Errorf("it can't be opened: %d are noted, %v", len(sc.unreadable), sc.err)
	}
	limit.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	sc.readMountedNetNS(unix.AT_FDCWD, named)
	limit.Cur = all
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || !errors.Is(sc.err, unix.EMFILE) {
		t.Errorf("no descriptor is left for it: got %v, want %v (%v)", sc.err, unix.EMFILE, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := nested(t).Pods(ended); got.Pods != nil || got.Parts != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v, want %v", got, err, context.Canceled)
	}
}

// A call leaves no descriptor open, and no thread in another namespace, even if a
// thread can't return.
func TestNothingIsLeft(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	mountNamespace(t, "/run/netns/named", "10.0.0.3")
	home, err := netNSOf("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := nested(t).Pods(t.Context()); err != nil || len(answer(got)) != 2 {
		t.Fatalf("got %v, %v", got, err)
	}
	before := descriptors(t)
	stray := nested(t)
	stray.setns = func(fd, kind int) error {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			return err
		}
		here, err := netNSOf("/proc/thread-self")
		if err != nil || stat.Ino == home && here != home {
			return unix.EPERM // the thread can't return
		}
		return unix.Setns(fd, kind)
	}
	refused := nested(t)
	refused.setns = func(int, int) error { return unix.EPERM }
	for range 20 {
		if got, err := stray.Pods(t.Context()); err != nil || len(answer(got)) != 2 {
			t.Errorf("a thread can't return: got %v, %v, want its answer", got, err)
		}
		if got, err := nested(t).Pods(t.Context()); err != nil || len(answer(got)) != 2 {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err := refused.Pods(t.Context()); err == nil {
			t.Errorf("got %v, want an error", got)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, there were %d before", after, before)
	}
	// Threads that could not return end soon, and no goroutine may run on them.
	var strays []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if strays = strayThreads(t, home); len(strays) == 0 {
			return
		}
	}
	t.Errorf("these threads are still in another network namespace: %q", strays)
}

// strayThreads returns the threads of this process in other network namespaces than
// home.
func strayThreads(t *testing.T, home uint64) (strays []string) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if inode, err := netNSOf("/proc/self/task/" + thread.Name()); err == nil && inode != home {
			strays = append(strays, thread.Name())
		}
	}
	return strays
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestManyNamespaces measures a call on a node with 250 network namespaces and 1,000
// processes. It prints the figures and does not check them.
func TestManyNamespaces(t *testing.T) {
	if !onNode(t) {
		return
	}
	const namespaces, processes = 250, 1000
	sleepers := func(flags uintptr) (all []*exec.Cmd) {
		for range processes {
			cmd := exec.Command("sleep", "infinity") // it ends with process 1
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, cmd)
		}
		return all
	}
	for i := range 8 {
		dir := fmt.Sprintf("/run/volume-%d", i)
		if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mount("volume", dir, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
	}
	own := sleepers(syscall.CLONE_NEWNS) // before the namespaces are mounted: containers don't see them
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", own[0].Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range namespaces {
		ip := fmt.Sprintf("10.0.1.%d", i)
		want = append(want, ip)
		mountNamespace(t, fmt.Sprintf("/run/netns/cni-%d", i), ip)
	}
	slices.Sort(want)
	for _, row := range []struct {
		where string
		all   func() []*exec.Cmd
	}{
		{fmt.Sprintf("each in a mount namespace of its own with %d mounts", strings.Count(string(text), "\n")), func() []*exec.Cmd { return own }},
		{"all in one mount namespace", func() []*exec.Cmd { return sleepers(0) }},
	} {
		all, s := row.all(), nested(t)
		var least time.Duration
		for range 5 {
			start := processorTime(t)
			got, err := s.Pods(t.Context())
			if took := processorTime(t) - start; least == 0 || took < least {
				least = took
			}
			if diff := cmp.Diff(want, answer(got)); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
		}
		fmt.Printf("podsource/netns: a call with %d network namespaces and %d processes, %s: %v of CPU time\n",
			namespaces, processes, row.where, least.Round(time.Millisecond))
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
}

// processorTime returns the CPU time that this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
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

// A call leaves nothing behind in a caller's context, as an embedder may never end it.
func TestNothingIsLeftInAContext(t *testing.T) {
	s, err := New(Options{Proc: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx := &watched{Context: t.Context(), ended: make(chan struct{})}
	if _, err := s.Pods(ctx); err == nil || ctx.left != 0 {
		t.Errorf("got error %v of an empty procfs, and %d of its contexts are left", err, ctx.left)
	}
}
