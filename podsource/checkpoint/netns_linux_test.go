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
	"sync"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/refuse"
)

// childEnv is set in the child process of a test. It names the child's directory.
const childEnv = "HOSTLOCAL_GC_TEST_RECORD_DIR"

// skipLoudly skips a test that can't run on this machine. In CI it fails.
func skipLoudly(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s does not work here, and CI needs it: %v", what, err)
	}
	t.Skipf("SKIPPED, NOT TESTED: %s does not work here: %v", what, err)
}

// TestMain keeps the first thread, which never ends, from entering network namespaces.
func TestMain(m *testing.M) {
	runtime.LockOSThread()
	os.Exit(m.Run())
}

// inNamespaces runs this test in mount, network and PID namespaces of its own, as on a node that is a container, and returns a
// directory for it there. It returns "" after the test has run there.
func inNamespaces(t *testing.T) (dir string) {
	t.Helper()
	if dir = os.Getenv(childEnv); dir != "" {
		must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		must(t, syscall.Mount("proc", "/proc", "proc", 0, ""), syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""))
		return dir
	}
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), childEnv+"="+t.TempDir())
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

// unmount is umount -l.
func unmount(t testing.TB, path string) {
	t.Helper()
	must(t, syscall.Unmount(path, syscall.MNT_DETACH))
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
	must(t, <-mounted)
	return func() {
		close(leave)
		for err := error(nil); err == nil; _, err = os.Lstat(fmt.Sprintf("/proc/self/task/%d", tid)) {
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
	must(t, err, cmd.Start())
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(end)
	_, err = out.Read(make([]byte, 10))
	must(t, err)
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
	same(t, when+": by the writer", want, ids(t, c))
	same(t, when+": by a reader", want, ids(t, reader(t, c.path, served)))
	blockWrites(t, c.path)
	gone, err := c.Prune(t.Context())
	check(t, (err != nil) == (len(c.Entries()) > len(want)) && gone == nil, "%s: the file can't be written: pruned %v, %v", when, gone, err)
	must(t, os.RemoveAll(c.path+".tmp"))
}

// A namespace of which the path is gone, by a real `ip netns del` at first, lives as long as something shows it, also where the
// agent does not see the mounts of the node (hazard 50). Then the agent starts again: the address is kept, and after the end it is
// released.
//
// Guard: [namespaces.readProcesses] reads all threads, and the mounts that they see.
func TestHazard92PathIsGone(t *testing.T) {
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
	must(t, os.Mkdir(root, 0o700))
	write(t, bindAt, "")
	mountNS(t, filepath.Join(dir, "another"))() // is listed before the others
	bind := "mount --bind " + web + " " + bindAt + " && umount " + web + " && "
	for _, row := range []struct {
		reason, path string
		hold         func(t *testing.T) (end func()) // begins to hold the namespace at the path
	}{
		{"a process", "/run/netns/web", func(t *testing.T) func() { return run(t, 0, "ip", "netns", "exec", "web", "sh", "-c", shell) }},
		{"a mount", web, func(t *testing.T) func() {
			mountNS(t, web)()
			must(t, syscall.Mount(web, bindAt, "", syscall.MS_BIND, ""))
			return func() { unmount(t, bindAt) }
		}},
		{"a mount in another mount namespace", web, func(t *testing.T) func() {
			mountNS(t, web)()
			return run(t, syscall.CLONE_NEWNS, "sh", "-c", bind+shell)
		}},
		{"... of which the first process has another root", web, func(t *testing.T) func() {
			mountNS(t, web)()
			return run(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, "sh", "-c",
				bind+"mount --bind / "+root+" && { sleep infinity & echo begun; exec chroot "+root+" sleep infinity; }")
		}},
		{"a thread that is not the first", web, func(t *testing.T) func() { return mountNS(t, web) }},
	} {
		t.Run(row.reason, func(t *testing.T) {
			end := row.hold(t)
			n := newNode(t, "a", "b")
			c := begun(t, newPath(t), noLag, attachedTo("a", "10.0.0.2", row.path), entry("b", "10.0.0.3"))
			was := c.Entries()[0].NetNS
			check(t, was.Present(), "%+v is not at its path", was)
			if row.path == web {
				unmount(t, web)
			} else {
				must(t, exec.Command("ip", "netns", "del", "web").Run())
			}
			must(t, c.Close())
			c = opened(t, c.path, noLag)
			checkLive(t, "held", c, "a", "b")
			n.keeps("held", c, "10.0.0.2", "10.0.0.3")
			check(t, !was.Present(), "%+v is still at its path", was)
			end()
			checkLive(t, "ended", c, "b")
			gone, err := c.Prune(t.Context())
			check(t, err == nil && len(gone) == 1 && gone[0].NetNS == was && len(c.Entries()) == 1, "pruned %v, %v", gone, err)
			n.keeps("ended", c, "10.0.0.3")
		})
	}
}

// An entry has ended only if its namespace is known, and is shown nowhere. The kernel uses the number of a namespace again, whose
// ID shows that on kernels that have one. Prune leaves entries that are recorded again while it checks namespaces.
//
// Guard: [divide] finds no ended namespace of an unknown number, and [NetNS.is] compares [NetNS.ID], which [readNetNS] reads.
func TestHazard50Ended(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	nsPath, later, empty := filepath.Join(dir, "ns"), filepath.Join(dir, "later"), filepath.Join(dir, "empty")
	mountNS(t, nsPath)()
	c := begun(t, newPath(t), served, attachedTo("a", "10.0.0.2", nsPath), attachedTo("unknown", "10.0.0.3", later))
	mountNS(t, later)()
	held, err := os.Open(nsPath) // so that the kernel does not use its number again
	must(t, err)
	defer held.Close()
	unmount(t, nsPath)
	mountNS(t, nsPath)()
	checkLive(t, "another one is at its path", c, "unknown")
	unmount(t, nsPath)
	must(t, os.Remove(nsPath), os.Symlink("/proc/self/ns/net", nsPath))
	checkLive(t, "a link to another one is at its path", c, "unknown")

	check(t, !NetNS{Path: "/none"}.Present(), "an unknown namespace is present")
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	were := descriptors()
	check(t, readNetNS(nsPath).Inode != 0 && descriptors() == were, "a namespace that was read is still open")
	t.Chdir("/proc/self")
	write(t, empty, "")
	for _, as := range []NetNS{{Path: "ns/net"}, {Path: empty}, {Path: "/none"}, {Path: nsPath, Inode: 5}} { // relative, none, missing, known
		e := Entry{Key: key("a"), NetNS: as}
		must(t, e.normalize())
		check(t, e.NetNS == as, "%+v is recorded as %+v", as, e.NetNS)
	}

	other := filepath.Join(dir, "other")
	endThread := mountNS(t, other)
	used := readNetNS(other)
	recordedAs := func(id, path string, inode, nsID uint64) Entry {
		e := entry(id, "10.0.0.2")
		e.NetNS = NetNS{path, inode, nsID}
		return e
	}
	onOlder := recordedAs("on-an-older-kernel", "/none", used.Inode, 0)
	c = begun(t, newPath(t), served, recordedAs("a", "/none", used.Inode, used.ID+1), onOlder)
	live := []string{"a", "on-an-older-kernel"}
	if used.ID != 0 {
		live = live[1:]
	}
	checkLive(t, "a thread is in the one with its number", c, live...)
	must(t, c.Add(recordedAs("b", other, used.Inode, used.ID)))
	endThread()
	live = append(live, "b")
	slices.Sort(live)
	checkLive(t, "the one with its number is at another entry's path", c, live...)

	c = begun(t, newPath(t), served, recordedAs("a", "/none", 1, 0), recordedAs("b", "/none", 1, 0), recordedAs("c", "/none", 1, 0),
		entry("d", "10.0.0.5"))
	var once sync.Once
	ctx := during{t.Context(), func() {
		once.Do(func() { must(t, c.Remove(key("a")), c.Add(recordedAs("b", "/none", 2, 0))) })
	}}
	gone, err := c.Prune(ctx)
	check(t, err == nil && len(gone) == 1 && gone[0].Key == key("c"), "pruned: %v, %v", gone, err)
	same(t, "after Prune", []Entry{recordedAs("b", "/none", 2, 0), entry("d", "10.0.0.5")}, c.Entries())
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

// Value is what context.Cause asks for before Go 1.25.
func (d during) Value(key any) any {
	d.do()
	return d.Context.Value(key)
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
	c := begun(t, newPath(t), noLag, attachedTo("a", "10.0.0.2", nsPath))
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
	must(t, zombie.Start())
	for !strings.Contains(string(read(t, fmt.Sprintf("/proc/%d/stat", zombie.Process.Pid))), ") Z ") {
		runtime.Gosched()
	}
	unknown("hostPID")
	startContainer(t)
	run(t, 0, "sh", "-c", "echo begun; exec sleep infinity") // is read after the container
	for _, number := range []uint32{syscall.SYS_READLINKAT, syscall.SYS_GETDENTS64, syscall.SYS_READ} {
		refuse.Call(t, number, func() {
			live, ended, err := divide(t.Context(), c.Entries(), true)
			_, threadErr := make(namespaces).readThread("/proc/self", make(map[string]bool))
			needs := threadErr != nil && strings.Contains(threadErr.Error(), "CAP_SYS_PTRACE")
			if !errors.Is(err, syscall.EIO) || len(live) != 1 || ended != nil || needs != (number == syscall.SYS_READLINKAT) {
				t.Errorf("%v, %v, %v; %v", live, ended, err, threadErr)
			}
		})
	}
	for err, want := range map[error]error{syscall.ENOENT: nil, syscall.ESRCH: nil, syscall.EINVAL: nil, syscall.EACCES: syscall.EACCES} {
		check(t, unlessEnded(err) == want, "%v: got %v, want %v", err, unlessEnded(err), want)
	}
	checkLive(t, "with a container", c)
	must(t, zombie.Wait())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	live, ended, err := divide(ctx, c.Entries(), true)
	check(t, errors.Is(err, context.Canceled) && len(live) == 1 && ended == nil, "after the end of the context: %v, %v, %v", live, ended, err)
	gone, err := c.Prune(ctx)
	check(t, errors.Is(err, context.Canceled) && gone == nil, "pruned after the end of the context: %v, %v", gone, err)
}
