// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/refuse"
)

// TestMain keeps the first thread, which never ends, from entering network namespaces.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	os.Exit(m.Run())
}

// inNamespaces runs this test in mount, network and PID namespaces of its own, as on a node that is a container, and
// returns a directory for it there. It returns "" after the test has run there.
func inNamespaces(t *testing.T) (dir string) {
	t.Helper()
	if dir = os.Getenv(childEnv); dir != "" {
		mount(t, "", "/", "", syscall.MS_REC|syscall.MS_PRIVATE)
		mount(t, "proc", "/proc", "proc", 0)
		mount(t, "tmpfs", "/run", "tmpfs", 0)
		return dir
	}
	cmd := child(t, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	runtime.LockOSThread() // the child ends with the thread that started it
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		skipLoudly(t, "a process in namespaces of its own", err)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("\n%s", out)
	}
	return ""
}

// startContainer starts a container on the node, without which it does not look like one.
func startContainer(t *testing.T) {
	run(t, syscall.CLONE_NEWPID, "sh", "-c", "echo begun; exec sleep infinity")
}

func mount(t testing.TB, from, to, kind string, flags uintptr) {
	t.Helper()
	if err := syscall.Mount(from, to, kind, flags, ""); err != nil {
		t.Fatalf("mounting %s: %v", to, err)
	}
}

// unmount is umount -l.
func unmount(t testing.TB, path string) {
	t.Helper()
	if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}

// mountNS mounts a new namespace at path, as `ip netns add` and runtimes do. A thread stays in it until end is called.
func mountNS(t testing.TB, path string) (end func()) {
	t.Helper()
	write(t, path, "")
	mounted, leave := make(chan error), make(chan struct{})
	tid := 0
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		tid = syscall.Gettid()
		mounted <- errors.Join(syscall.Unshare(syscall.CLONE_NEWNET), syscall.Mount("/proc/thread-self/ns/net", path, "", syscall.MS_BIND, ""))
		<-leave
	}()
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	return func() {
		close(leave)
		for _, err := os.Lstat(fmt.Sprintf("/proc/self/task/%d", tid)); err == nil; _, err = os.Lstat(fmt.Sprintf("/proc/self/task/%d", tid)) {
			runtime.Gosched()
		}
	}
}

// run starts a program that runs until end is called. It prints a line when it has begun.
func run(t *testing.T, flags uintptr, args ...string) (end func()) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags} // it ends with this PID namespace at the latest
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(end)
	if n, err := out.Read(make([]byte, 10)); n == 0 {
		t.Fatalf("%v: %v", args, err)
	}
	return end
}

// attachedTo is an attachment of a container whose namespace is at path.
func attachedTo(containerID, ip, path string) Entry {
	e := entry(containerID, ip)
	e.NetNS.Path = path
	return e
}

// checkLive checks that exactly these containers are live, for the writer, for a reader and for Prune, which says so only.
func checkLive(t *testing.T, when string, c *Checkpoint, want ...string) {
	t.Helper()
	for who, got := range map[string][]string{"writer": ids(t, c), "reader": ids(t, reader(t, c.path, served))} {
		if !slices.Equal(got, want) {
			_, _, unknown := divide(t.Context(), c.Entries())
			t.Errorf("%s: the %s sees %v, want %v; recorded are %+v, unknown is %v", when, who, got, want, c.Entries(), unknown)
		}
	}
	blockWrites(t, c.path)
	ended := len(c.Entries()) - len(want)
	if gone, err := c.Prune(t.Context()); (err != nil) != (ended > 0) || gone != nil {
		t.Errorf("%s: the file can't be written: pruned %v, %v", when, gone, err)
	}
	if err := os.RemoveAll(c.path + ".tmp"); err != nil {
		t.Fatal(err)
	}
}

// A namespace of which the path is gone, by a real `ip netns del` at first, lives as long as something shows it. Then the agent
// starts again: the address is kept, and after the end it is released.
//
// Guard: [namespaces.readProcesses] reads all threads, and the mounts that they see.
func TestHazard92PathIsGone(t *testing.T) { pathIsGone(t, 92) }

// TestHazard50MountsAreNotVisible: likewise, where the agent does not see the mounts of the node.
func TestHazard50MountsAreNotVisible(t *testing.T) { pathIsGone(t, 50) }

func pathIsGone(t *testing.T, hazard int) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	if out, err := exec.Command("ip", "netns", "add", "web").CombinedOutput(); err != nil {
		skipLoudly(t, "ip netns add", fmt.Errorf("%w: %s", err, out))
	}
	const shell = "echo begun; exec sleep infinity"
	web, bindAt, root := filepath.Join(dir, "web"), filepath.Join(dir, "elsewhere"), filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, bindAt, "")
	bind := "mount --bind " + web + " " + bindAt + " && umount " + web + " && "
	for _, row := range []struct {
		hazard       int
		reason, path string
		hold         func(t *testing.T) (end func()) // begins to hold the namespace at the path
	}{
		{92, "a process", "/run/netns/web", func(t *testing.T) func() { return run(t, 0, "ip", "netns", "exec", "web", "sh", "-c", shell) }},
		{92, "a mount", web, func(t *testing.T) func() {
			mountNS(t, web)()
			mount(t, web, bindAt, "", syscall.MS_BIND)
			return func() { unmount(t, bindAt) }
		}},
		{50, "a mount in another mount namespace", web, func(t *testing.T) func() {
			mountNS(t, web)()
			return run(t, syscall.CLONE_NEWNS, "sh", "-c", bind+shell)
		}},
		{50, "... of which the first process has another root", web, func(t *testing.T) func() {
			mountNS(t, web)()
			return run(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, "sh", "-c",
				bind+"mount --bind / "+root+" && { sleep infinity & echo begun; exec chroot "+root+" sleep infinity; }")
		}},
		{92, "a thread that is not the first", web, func(t *testing.T) func() { return mountNS(t, web) }},
	} {
		if row.hazard != hazard {
			continue
		}
		t.Run(row.reason, func(t *testing.T) {
			end := row.hold(t)
			n := newNode(t)
			n.reserve("10.0.0.2", "a")
			n.reserve("10.0.0.3", "b")
			c := begun(t, filepath.Join(t.TempDir(), "attachments"), noLag, attachedTo("a", "10.0.0.2", row.path), entry("b", "10.0.0.3"))
			if err := c.Backfill(t.Context(), noPods, nil); err != nil {
				t.Fatal(err)
			}
			was := c.Entries()[0].NetNS
			if !was.Present() {
				t.Errorf("%+v is not at its path", was)
			}
			if row.path == web {
				unmount(t, web)
			} else if out, err := exec.Command("ip", "netns", "del", "web").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			c = opened(t, c.path, noLag)
			checkLive(t, "held", c, "a", "b")
			if err := n.hook(c); err != nil || len(n.left()) != 2 {
				t.Errorf("held: left are %v, error %v", n.left(), err)
			}
			if was.Present() {
				t.Errorf("%+v is still at its path", was)
			}
			end()
			checkLive(t, "ended", c, "b")
			gone, err := c.Prune(t.Context())
			if err != nil || len(gone) != 1 || gone[0].NetNS != was || len(c.Entries()) != 1 {
				t.Errorf("pruned %v, %v", gone, err)
			}
			if err := n.pass(c); err != nil || !slices.Equal(n.left(), []string{"10.0.0.3"}) {
				t.Errorf("left are %v, error %v", n.left(), err)
			}
		})
	}
}

// TestNetNS: an entry has ended only if its namespace is known, and is shown nowhere.
func TestNetNS(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	mountAt := func(path string) { mountNS(t, path)() }
	link := func(path string) {
		if err := os.Symlink("/proc/self/ns/net", path); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string) { _ = os.Remove(path) }
	for i, row := range []struct {
		reason string
		before func(path string) // before it is recorded
		then   func(path string)
		ended  bool
	}{
		{"it is still there", mountAt, func(string) {}, false},
		{"it is gone", mountAt, func(path string) { unmount(t, path); remove(path) }, true},
		{"it is gone, and its file is left", mountAt, func(path string) { unmount(t, path) }, true},
		{"another one is at its path", mountAt, func(path string) {
			if held, err := os.Open(path); err == nil { // so that the kernel does not use its number again
				defer held.Close()
			}
			unmount(t, path)
			mountAt(path)
		}, true},
		{"its path is a link to another one", mountAt, func(path string) { unmount(t, path); remove(path); link(path) }, true},
		{"its path had no namespace", func(path string) { write(t, path, "") }, remove, false},
		{"its path did not exist", func(string) {}, remove, false},
		{"its path was a link to that of a process, which lives", link, remove, false},
	} {
		nsPath := filepath.Join(dir, fmt.Sprint("ns", i))
		row.before(nsPath)
		b := attachedTo("b", "10.0.0.3", nsPath+"-later") // unknown, since nothing is there yet
		c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, attachedTo("a", "10.0.0.2", nsPath), b)
		mountAt(b.NetNS.Path)
		row.then(nsPath)
		if row.ended {
			checkLive(t, row.reason, c, "b")
		} else {
			checkLive(t, row.reason, c, "a", "b")
		}
	}
	if (NetNS{Path: filepath.Join(dir, "none"), Inode: 5}).Present() || (NetNS{Path: "/proc/self/ns/net"}).Present() {
		t.Error("a namespace without identity, or at a missing path, is present")
	}
	t.Chdir("/proc/self")
	for _, as := range []NetNS{{Path: "ns/net"}, {Path: "/none"}, {Path: "/proc/self/ns/net", Inode: 5}} { // relative, missing, known
		e := Entry{Key: key("a"), NetNS: as}
		if err := e.normalize(); err != nil || e.NetNS != as {
			t.Errorf("%+v is recorded as %+v, %v", as, e.NetNS, err)
		}
	}
}

// The processes of the node can't all be seen: then no namespace has ended, and the answer says why. On a node that is itself a
// container, as in kind, they can once a container runs.
//
// Guard: [namespaces.readProcesses] asks for the PID namespace of process 1.
func TestHazard92ProcessesAreNotVisible(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	nsPath := filepath.Join(dir, "ns")
	mountNS(t, nsPath)()
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), noLag, attachedTo("a", "10.0.0.2", nsPath))
	if err := c.Backfill(t.Context(), noPods, nil); err != nil {
		t.Fatal(err)
	}
	unknown := func(says string) {
		t.Helper()
		a, err := c.Pods(t.Context())
		gone, pruneErr := c.Prune(t.Context())
		if err != nil || len(a.Pods) != 1 || says == "" != (a.Note == "") || !strings.Contains(a.Note, says) || gone != nil || pruneErr != nil {
			t.Errorf("%+v, %v, want a note that says %q; pruned %v, %v", a, err, says, gone, pruneErr)
		}
	}
	unknown("")
	unmount(t, nsPath)
	unknown("hostPID")
	zombie := exec.Command("true") // has no namespaces any more
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(string(read(t, fmt.Sprintf("/proc/%d/stat", zombie.Process.Pid))), ") Z ") {
		runtime.Gosched()
	}
	unknown("hostPID")
	startContainer(t)
	run(t, 0, "sh", "-c", "echo begun; exec sleep infinity") // is read after the container
	for _, number := range []uint32{syscall.SYS_READLINKAT, syscall.SYS_GETDENTS64, syscall.SYS_READ} {
		refuse.Call(t, number, func() {
			live, ended, err := divide(t.Context(), c.Entries())
			_, threadErr := make(namespaces).readThread("/proc/self", make(map[string]bool))
			needs := threadErr != nil && strings.Contains(threadErr.Error(), "CAP_SYS_PTRACE")
			if !errors.Is(err, syscall.EIO) || len(live) != 1 || ended != nil || needs != (number == syscall.SYS_READLINKAT) {
				t.Errorf("%v, %v, %v; %v", live, ended, err, threadErr)
			}
		})
	}
	for err, want := range map[error]error{syscall.ENOENT: nil, syscall.ESRCH: nil, syscall.EINVAL: nil, syscall.EACCES: syscall.EACCES} {
		if got := unlessEnded(err); got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
	checkLive(t, "with a container", c)
	if err := zombie.Wait(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if live, ended, err := divide(ctx, c.Entries()); !errors.Is(err, context.Canceled) || len(live) != 1 || ended != nil {
		t.Errorf("after the end of the context: %v, %v, %v", live, ended, err)
	}
	if gone, err := c.Prune(ctx); !errors.Is(err, context.Canceled) || gone != nil {
		t.Errorf("pruned after the end of the context: %v, %v", gone, err)
	}
}

// Another namespace has the number of one that has ended. On kernels with namespace IDs its ID shows that, at a path or by a
// process; on others the entry counts as live.
//
// Guard: [NetNS.is] compares [NetNS.ID], which [readNetNS] reads.
func TestHazard50InodeNumberIsUsedAgain(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	nsPath, other := filepath.Join(dir, "blue"), filepath.Join(dir, "red")
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served)
	var was NetNS
	endThread := func() {}
	// The kernel uses the lowest free number again, some time after the end. If another
	// process gets it, the test tries again with a new one.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for tries := 0; tries == 0 || readNetNS(other).Inode != was.Inode; tries++ {
		if tries == 1000 {
			t.Fatal("no namespace got the number of the one before it")
		}
		if tries > 0 {
			unmount(t, other)
			endThread()
			<-again.C
		}
		if tries%10 == 0 {
			mountNS(t, nsPath)()
			if err := c.Add(attachedTo("a", "10.0.0.2", nsPath)); err != nil {
				t.Fatal(err)
			}
			was = c.Entries()[0].NetNS
			unmount(t, nsPath)
			<-again.C
		}
		endThread = mountNS(t, other)
	}
	want := []string{"a"}
	if was.ID != 0 {
		want = nil
	}
	checkLive(t, "a thread is in the other one", c, want...)
	if err := c.Add(attachedTo("b", "10.0.0.3", other)); err != nil {
		t.Fatal(err)
	}
	endThread()
	checkLive(t, "the other one is recorded", c, append(want, "b")...)
	unknown := c.Entries()[0] // as recorded on an older kernel
	unknown.NetNS.ID = 0
	if err := c.Add(unknown); err != nil {
		t.Fatal(err)
	}
	checkLive(t, "without an ID", c, "a", "b")
}

// during is a context that calls a function when it is asked whether it has ended.
type during struct {
	context.Context
	do func()
}

func (d during) Err() error {
	d.do()
	return d.Context.Err()
}

// TestPruneLeavesNew: Prune leaves entries that are recorded again while it checks namespaces, and removes the others that have ended.
func TestPruneLeavesNew(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	ended := func(id string) Entry {
		e := entry(id, "10.0.0.2")
		e.NetNS = NetNS{Path: "/run/netns/" + id, Inode: 1}
		return e
	}
	c := begun(t, filepath.Join(t.TempDir(), "attachments"), served, ended("a"), ended("b"), ended("c"), entry("d", "10.0.0.5"))
	again, once := ended("b"), false
	again.NetNS.Inode++
	ctx := during{t.Context(), func() {
		if !once {
			once = true
			if err := errors.Join(c.Remove(key("a")), c.Add(again)); err != nil {
				t.Error(err)
			}
		}
	}}
	gone, err := c.Prune(ctx)
	if err != nil || len(gone) != 1 || gone[0].Key != key("c") {
		t.Errorf("gone: %v, %v", gone, err)
	}
	if diff := cmp.Diff([]Entry{again, entry("d", "10.0.0.5")}, c.Entries(), equal); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
