// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

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
// Guard: [namespaces.readProcesses] reads all threads, and the mounts that they see, and counts the mount namespaces whose mounts were
// seen: not those of a thread whose root was unmounted, which has the same name.
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
	web, bindAt := filepath.Join(dir, "web"), filepath.Join(dir, "elsewhere")
	root, pin := filepath.Join(dir, "root"), filepath.Join(dir, "pins/pin")
	must(t, os.Mkdir(root, 0o700), os.Mkdir(filepath.Dir(pin), 0o700))
	write(t, bindAt, "")
	write(t, pin, "")
	must(t, syscall.Mount(filepath.Dir(pin), filepath.Dir(pin), "", syscall.MS_BIND, "")) // unshared mounts alone can show a mount namespace
	must(t, syscall.Mount("", filepath.Dir(pin), "", syscall.MS_PRIVATE, ""))
	mountNS(t, filepath.Join(dir, "another"))() // is listed before the others
	bind := "mount --bind " + web + " " + bindAt + " && umount " + web + " && "
	// Process 1 changes its root, which the other one then unmounts.
	unmountRoot := func(then string) func(t *testing.T) func() {
		return func(t *testing.T) func() {
			mountNS(t, web)()
			return run(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, "sh", "-ec", bind+strings.ReplaceAll("mount --rbind / ROOT; "+
				"mount -t proc proc /proc; { until [ $(readlink /proc/1/root) = ROOT ]; do :; done; umount -l ROOT; echo begun; "+then+
				"; } & exec chroot ROOT sleep infinity", "ROOT", root))
		}
	}
	for _, row := range []struct {
		reason, path string
		hold         func(t *testing.T) (end func()) // begins to hold the namespace at the path
	}{
		{"a process", "/run/netns/web", func(t *testing.T) func() { return run(t, 0, "ip", "netns", "exec", "web", "sh", "-c", shell) }},
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
		{"... of which the only thread's root was unmounted", web, unmountRoot("exit")},
		{"... of which the first thread's root was unmounted", web, unmountRoot("exec sleep infinity")},
		{"a mount namespace that has no thread, and is kept by a mount", web, func(t *testing.T) func() {
			mountNS(t, web)()
			// Linux takes IDs of namespaces from ranges for each CPU, and refuses to mount one with a smaller ID.
			script := "for i in $(seq 1000); do unshare --mount=" + pin + " true && exit; done; exit 1"
			if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return func() { unmount(t, pin) }
		}},
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

// A version without a record detached a container and attached it again, with the same ID and in a new namespace, as nerdctl and
// podman do. The recorded attachment has ended, and the new one is kept.
//
// Guard: [Checkpoint.Backfill] replaces an entry whose namespace is not at its path.
func TestHazard51SameIDAgain(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	path := filepath.Join(dir, "ns")
	mountNS(t, path)()
	n, c := newNode(t, "left"), begun(t, newPath(t), noLag, attachedTo("c", "10.0.0.9", path))
	fill := func() {
		set(c, 0, gap{From: time.Now().Add(-2 * time.Hour), To: time.Now()}, time.Time{})
		must(t, c.Backfill(t.Context(), answers(runtimeOf("c")), by(map[string]string{"c": "10.0.0.3"})))
	}
	fill()
	same(t, "recorded while its namespace is there", []string{"10.0.0.9"}, recorded(c))
	unmount(t, path)
	n.Reserve(network1, "10.0.0.3", "c", time.Hour)
	fill()
	n.keeps("after the hook", c, "10.0.0.3")
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
	check(t, !NetNS{Path: "/none"}.Present(), "an unknown namespace is present")
	were, errWere := os.ReadDir("/proc/self/fd")
	check(t, readNetNS(nsPath).Inode != 0, "a namespace can't be read")
	are, errAre := os.ReadDir("/proc/self/fd")
	must(t, errWere, errAre)
	check(t, len(were) == len(are), "a namespace that was read is still open")
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
	next, again := *c.state.Load(), recordedAs("b", "/none", 2, 0)
	next.entries = map[Key]Entry{key("b"): again, key("c"): recordedAs("c", "/none", 1, 0), key("d"): entry("d", "10.0.0.5")}
	gone, err := c.Prune(during{context.Background(), func() { c.state.Store(&next) }})
	check(t, err == nil && len(gone) == 1 && gone[0].Key == key("c"), "pruned: %v, %v", gone, err)
	same(t, "after Prune", []Entry{again, entry("d", "10.0.0.5")}, c.Entries())
}

// The only process in a namespace starts another one after the list of processes was read, and ends.
//
// Guard: [divide] looks twice.
func TestHazard92TwoLooks(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	startContainer(t)
	path := filepath.Join(dir, "ns")
	mountNS(t, path)()
	c := begun(t, newPath(t), served, attachedTo("a", "10.0.0.2", path))
	held, err := os.Open(path) // does not count
	must(t, err)
	defer held.Close()
	enter := []string{"nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), held.Fd()), "sh", "-c", "echo begun; exec sleep infinity"}
	end := run(t, 0, enter...)
	unmount(t, path)
	next := sync.OnceFunc(func() {
		run(t, 0, enter...)
		end()
	})
	live, ended, err := divide(during{context.Background(), next}, c.Entries(), true)
	check(t, len(live) == 1 && len(ended) == 0 && err == nil, "live: %v, ended: %v, %v", live, ended, err)
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

// The processes of the node can't all be seen: then no namespace has ended, and the answer says why. On a node that is itself a
// container, as in kind, they can once a container runs.
//
// Guard: [namespaces.readProcesses] asks for the PID namespace of process 1, lets only Options.Nested say that process 1 of a container
// is a node's, and refuses hidepid.
func TestHazard92ProcessesAreNotVisible(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	nsPath := filepath.Join(dir, "ns")
	mountNS(t, nsPath)()
	c := begun(t, newPath(t), noLag, attachedTo("a", "10.0.0.2", nsPath))
	agent := begun(t, newPath(t), Options{Networks: []string{network1}}, attachedTo("a", "10.0.0.2", nsPath))
	unknown := func(c *Checkpoint, says string) {
		t.Helper()
		a, err := c.Pods(t.Context())
		gone, pruneErr := c.Prune(t.Context())
		if err != nil || len(a.Pods) != 1 || says == "" != (a.Note == "") || !strings.Contains(a.Note, says) || gone != nil || pruneErr != nil {
			t.Errorf("%+v, %v, want a note that says %q; pruned %v, %v", a, err, says, gone, pruneErr)
		}
	}
	unknown(c, "")
	unmount(t, nsPath)
	unknown(c, "hostPID")
	zombie := exec.Command("true") // has no namespaces any more
	must(t, zombie.Start())
	for !strings.Contains(string(read(t, fmt.Sprintf("/proc/%d/stat", zombie.Process.Pid))), ") Z ") {
		runtime.Gosched()
	}
	unknown(c, "hostPID")
	startContainer(t)
	run(t, 0, "sh", "-c", "echo begun; exec sleep infinity") // is read after the container
	for _, number := range []uint32{syscall.SYS_READLINKAT, syscall.SYS_GETDENTS64, syscall.SYS_READ} {
		refuse.Call(t, number, func() {
			live, ended, err := divide(t.Context(), c.Entries(), true)
			_, threadErr := make(namespaces).readThread("/proc/self", make(map[string]bool), make(map[string]bool))
			needs := threadErr != nil && strings.Contains(threadErr.Error(), "CAP_SYS_PTRACE")
			if !errors.Is(err, syscall.EIO) || len(live) != 1 || ended != nil || needs != (number == syscall.SYS_READLINKAT) ||
				errors.Is(threadErr, syscall.EIO) != (number != syscall.SYS_GETDENTS64) {
				t.Errorf("%v, %v, %v; %v", live, ended, err, threadErr)
			}
		})
	}
	for err, want := range map[error]error{syscall.ENOENT: nil, syscall.ESRCH: nil, syscall.EINVAL: nil, syscall.EACCES: syscall.EACCES} {
		check(t, unlessEnded(err) == want, "%v: got %v, want %v", err, unlessEnded(err), want)
	}
	thread := fmt.Sprintf("/proc/%d/task/%[1]d", zombie.Process.Pid)
	write(t, filepath.Join(dir, "ns"), "")
	must(t, syscall.Mount(dir, thread, "", syscall.MS_BIND, "")) // so that it can't be read
	unknown(c, "not a directory")
	unmount(t, thread)
	unknown(agent, "Nested") // without hostPID a process beside it may have a PID namespace of its own, too
	must(t, syscall.Mount("proc", "/proc", "proc", syscall.MS_REMOUNT, "hidepid=2"))
	unknown(c, "hidepid")
	must(t, syscall.Mount("proc", "/proc", "proc", syscall.MS_REMOUNT, "hidepid=0"))
	checkLive(t, "with a container", c)
	must(t, zombie.Wait())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	live, ended, err := divide(ctx, c.Entries(), true)
	check(t, errors.Is(err, context.Canceled) && len(live) == 1 && ended == nil, "after the end of the context: %v, %v, %v", live, ended, err)
	gone, err := c.Prune(ctx)
	check(t, errors.Is(err, context.Canceled) && gone == nil, "pruned after the end of the context: %v, %v", gone, err)
}

// An agent serves one ADD and one DEL in a process of its own. The last step of ADD is Checkpoint.Add, and that of DEL
// Checkpoint.Remove. A fault is injected into one of its system calls. Reservations and the record are in the same directory.
type agent struct {
	*Checkpoint
	*disk.Store
}

const newIP = "10.0.0.3"

// startAgent starts an agent on a node whose runtime lists these containers. It lists them at once, so the record has no gap.
func startAgent(dir string, listed ...string) (*agent, error) {
	c, err := Open(filepath.Join(dir, "attachments"), noLag)
	if err != nil {
		return nil, err
	}
	s, err := disk.New(network1, dir)
	if err == nil {
		ips := by(map[string]string{"a": "10.0.0.2", "new": newIP})
		err = c.Backfill(context.Background(), answers(runtimeOf(listed...)), ips)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &agent{c, s}, nil
}

// add reserves the address and records it. Like the plugin it ignores errors of the lock.
func (a *agent) add() error {
	_ = a.Lock()
	_, err := a.Reserve("new", "eth0", net.ParseIP(newIP), "0")
	_ = a.Unlock()
	if err != nil {
		return err
	}
	return a.Add(entry("new", newIP))
}

func (a *agent) del() error {
	_ = a.Lock()
	err := a.ReleaseByID("new", "eth0")
	_ = a.Unlock()
	if err != nil {
		return err
	}
	return a.Remove(key("new"))
}

// tryTwice retries a step that failed once, as a runtime does, after undoing it.
func tryTwice(t *testing.T, what string, do func() error, undo func()) {
	t.Helper()
	err := do()
	if err != nil {
		fmt.Println("failed once:", what, err)
		undo()
		err = do()
	}
	must(t, err)
	fmt.Println("done:", what)
}

func agentProcess(t *testing.T, dir string) {
	runtime.LockOSThread() // strace counts calls per thread
	var a *agent
	tryTwice(t, "start", func() (err error) { a, err = startAgent(dir, "a"); return err }, func() {})
	defer func() { fmt.Println("closed:", a.Close()) }()
	tryTwice(t, "ADD", a.add, func() {
		dirty := a.dirty
		same(t, "in memory after a failed ADD", []string{"10.0.0.2"}, recorded(a.Checkpoint))
		blockWrites(t, a.path)
		check(t, (a.del() != nil) == dirty, "DEL without a file: want an error if the file is unknown, %t", dirty)
		must(t, os.RemoveAll(a.path+".tmp"), a.del())
		same(t, "on the disk after its DEL", a.Entries(), onDisk(t, a.path).Entries)
		check(t, !a.dirty, "the next DEL would write again")
	})
	_, ok := a.Get(key("new"))
	check(t, ok, "there is no record for DEL")
	tryTwice(t, "DEL", a.del, func() {})
}

// program returns this program, for runs under strace.
func program(t *testing.T) (exe string) {
	t.Helper()
	if err := exec.Command("strace", "-f", "-e", "inject=unlinkat:error=EIO:when=1", "true").Run(); err != nil {
		skipLoudly(t, "strace", err)
	}
	exe, err := os.Executable()
	must(t, err)
	// With the race detector a start takes too long for hundreds of runs.
	if info, ok := debug.ReadBuildInfo(); !ok || slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		exe = filepath.Join(t.TempDir(), "checkpoint.test")
		must(t, exec.Command("go", "test", "-c", "-o", exe, ".").Run())
	}
	return exe
}

// strace runs the test's agent with a fault, in a directory with a record of one attachment. It returns the agent's output and the
// trace.
func strace(t *testing.T, exe, expression string) (n *node, out, trace string, err error) {
	t.Helper()
	n = newNode(t, "a")
	dir := n.Store.DataDir()
	path, network := filepath.Join(dir, "attachments"), filepath.Join(dir, network1)
	// Without ForkLock a process that another test forks would keep the record's lock
	// until it executes strace.
	syscall.ForkLock.RLock()
	err = begun(t, path, noLag, entry("a", "10.0.0.2")).Close()
	syscall.ForkLock.RUnlock()
	must(t, err)
	traceFile := filepath.Join(t.TempDir(), "trace")
	args := []string{"-f", "-y", "-o", traceFile, "-e", expression}
	reserved := []string{network, network + "/" + newIP, network + "/last_reserved_ip.0", network + "/lock"}
	for _, p := range append(reserved, dir, path, path+".tmp") {
		args = append(args, "-P", p)
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command("strace", append(args, exe, "-test.run=^"+test+"$", "-test.v")...)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	output, err := cmd.CombinedOutput()
	return n, string(output), string(read(t, traceFile)), err
}

// eachFault runs the agent of this test with a fault in each of its system calls, of those that change something or come between
// two changes, until there is none left.
func eachFault(t *testing.T, faults []string, after func(t *testing.T, n *node, out string, err error)) {
	if dir := os.Getenv(childEnv); dir != "" {
		agentProcess(t, dir)
		return
	}
	calls := []string{"openat", "flock", "write", "fsync", "/^rename", "/^unlink"}
	if testing.Short() {
		calls = calls[1:5:5] // .ci/run tries all
	}
	exe := program(t)
	for _, call := range calls {
		for _, fault := range faults {
			t.Run(call+"/"+fault, func(t *testing.T) {
				t.Parallel()
				when := 1
				for ; !t.Failed(); when++ {
					n, out, trace, err := strace(t, exe, fmt.Sprintf("inject=%s:%s:when=%d", call, fault, when))
					if !strings.Contains(trace, "(INJECTED)") && !strings.Contains(trace, "killed by SIGKILL") {
						break
					}
					after(t, n, out, err)
				}
				check(t, when >= 3, "fewer than two calls were tried")
			})
		}
	}
}

// TestHazard24KilledAtEveryCall kills the agent at every system call that it makes in its directory. After AtStartup of the next
// start, the reservations are those of the recorded attachments, and include those of all live containers. Then the request that
// did not end is repeated, as the runtime does.
//
// Guard: [replace] replaces the file atomically.
func TestHazard24KilledAtEveryCall(t *testing.T) {
	eachFault(t, []string{"signal=KILL"}, func(t *testing.T, n *node, out string, _ error) {
		added, deleted := strings.Contains(out, "done: ADD"), strings.Contains(out, "done: DEL")
		listed := []string{"a"}
		if added && !deleted {
			listed = append(listed, "new")
		}
		a, err := startAgent(n.Store.DataDir(), listed...)
		if err != nil {
			t.Fatalf("starting again: %v; its output was\n%s", err, out)
		}
		defer a.Close()
		isRecorded, isReserved := slices.Contains(recorded(a.Checkpoint), newIP), slices.Contains(n.left(), newIP)
		check(t, !added || isRecorded || !isReserved, "the ADD is not recorded; its output was\n%s", out)
		check(t, !deleted || !isRecorded, "the DEL is not recorded; its output was\n%s", out)
		leaked := func(ip string) bool { return !slices.Contains(recorded(a.Checkpoint), ip) }
		n.keeps("after AtStartup", a, slices.DeleteFunc(n.left(), leaked)...)
		if added && !deleted {
			tryTwice(t, "DEL again", a.del, func() {})
		}
		same(t, "recorded, and reserved, after AtStartup and the runtime's DEL", recorded(a.Checkpoint), n.left())
		tryTwice(t, "the next ADD", a.add, func() {})
		same(t, "recorded in the end", []string{"10.0.0.2", newIP}, recorded(a.Checkpoint))
		same(t, "reserved in the end", []string{"10.0.0.2", newIP}, n.left())
		if same(t, "left behind", []string(nil), leftovers(t, a.path)); t.Failed() {
			t.Log(out)
		}
	})
}

// TestHazard25EveryCallFailsOnce: after any step fails, the runtime's next try succeeds without a restart. If a commit fails after
// the rename, the file may have an entry whose Add returned an error. Then the next change writes the file, even if it changes
// nothing.
//
// Guard: [Checkpoint.change] stores a state after its commit, and with [Checkpoint.dirty] the next change writes the file again.
func TestHazard25EveryCallFailsOnce(t *testing.T) {
	eachFault(t, []string{"error=EIO", "error=ENOSPC"}, func(t *testing.T, n *node, out string, err error) {
		if err != nil || !strings.Contains(out, "done: DEL") {
			t.Fatalf("%v\n%s", err, out)
		}
		told := strings.Contains(out, "failed once") || !strings.Contains(out, "closed: <nil>")
		check(t, told || !strings.Contains(t.Name(), "/fsync/"), "an fsync failed, and no call\n%s", out)
		a, err := startAgent(n.Store.DataDir(), "a")
		must(t, err)
		defer a.Close()
		n.keeps("after AtStartup", a, "10.0.0.2") // the plugin ignores an unlink that fails
		if same(t, "recorded", []string{"10.0.0.2"}, recorded(a.Checkpoint)); t.Failed() {
			t.Log(out)
		}
	})
}

// The power fails during an Add, after any of its system calls. Of what was not synced, the disk has all, nothing, a part, or
// zeros, in any order. Each file that it may have then is replayed: the record has the state before the Add, or after it, and
// after it once the Add has returned.
//
// Guard: [replace] syncs the file before it renames it, and the directory before it returns.
func TestHazard24PowerLoss(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		c, err := Open(filepath.Join(dir, "attachments"), served)
		must(t, err, c.Add(entry("new", newIP)))
		return // killed, without Close
	}
	n, out, trace, err := strace(t, program(t), "trace=write,fsync,/^rename")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := n.Store.DataDir()
	path := filepath.Join(dir, "attachments")
	after := string(read(t, path))
	before := string(written(t, noLag, entry("a", "10.0.0.2")))
	data, files := []string{""}, []string{before} // what the disk may have in the new file, and at the path
	steps := 0
	for line := range strings.Lines(trace) {
		temp := strings.Contains(line, "<"+path+".tmp>") || strings.Contains(line, `"`+path+`.tmp"`)
		switch {
		case strings.Contains(line, "write(") && temp:
			half, zeros := after[:len(after)/2], strings.Repeat("\x00", len(after)/2)
			data = []string{"", half, half + zeros, zeros + zeros, after}
		case strings.Contains(line, "fsync(") && temp:
			data = []string{after}
		case strings.Contains(line, "rename") && temp:
			files = append([]string{before}, data...)
		case strings.Contains(line, "fsync(") && strings.Contains(line, "<"+dir+">"):
			files = files[1:]
		default:
			continue
		}
		steps++
		for i, content := range files {
			disk := newPath(t)
			write(t, disk, content)
			write(t, disk+".tmp", data[0]) // the old file may be there beside it
			c, err := Open(disk, served)
			must(t, err)
			got := recorded(c)
			whole := slices.Contains(got, "10.0.0.2") && (content == after) == (len(got) == 2)
			check(t, whole, "file %d of %d after %s: recorded are %v", i, len(files), line, got)
			must(t, c.Close())
		}
	}
	same(t, "what the disk may have after the Add", []string{after}, files)
	check(t, steps == 4, "there were %d steps in\n%s", steps, trace)
}

// No file that somebody removes lets a second writer open the record. If the directory is moved and another one is in its place, a
// second writer opens the record there; then no change of the first one succeeds, none of the second one is lost, and the first one
// does not answer, since it lacks the containers of the second one.
//
// Guard: [locked] locks the directory, and [held] compares it with the one at its path, for [replace] and [Checkpoint.Pods].
func TestHazard96SecondWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "record")
	path := filepath.Join(dir, "attachments")
	must(t, os.Mkdir(dir, 0o700))
	first, err := Open(path, served)
	must(t, err, first.Backfill(t.Context(), noPods, nil), first.Add(entry("a", "10.0.0.2")))
	content := string(read(t, path))
	refused := func(err error) {
		t.Helper()
		check(t, errors.Is(err, ErrLocked) && strings.Contains(err.Error(), dir), "%v, want %v", err, ErrLocked)
	}
	write(t, path, "{") // as a reader without the lock may find it
	_, err = Open(path, served)
	refused(err)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	for _, file := range files {
		must(t, os.Remove(file))
	}
	_, err = Open(path, served)
	refused(err)
	must(t, first.Add(entry("b", "10.0.0.3")))

	must(t, os.Rename(dir, dir+".aside"))
	refused(first.Remove(key("a")))
	must(t, os.Mkdir(dir, 0o700))
	write(t, path, content)
	second := opened(t, path, served)
	must(t, second.Add(entry("c", "10.0.0.4")))
	refused(first.Add(entry("lost", "10.0.0.9")))
	_, err = first.Pods(t.Context())
	refused(err)
	refused(first.Close())
	same(t, "recorded", []string{"10.0.0.2", "10.0.0.4"}, recorded(second))
	another := newPath(t)
	for _, number := range []uint32{syscall.SYS_FLOCK, syscall.SYS_OPENAT} {
		refuse.Call(t, number, func() {
			_, err = Open(another, served)
			check(t, errors.Is(err, syscall.EIO), "the kernel refuses a lock: %v", err)
		})
	}
}

// TestDiskFull: on a full disk Add and Remove return errors, and the state does not change, in memory and on the disk. After that
// both work again.
func TestDiskFull(t *testing.T) {
	dir := inNamespaces(t)
	if dir == "" {
		return
	}
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	path := filepath.Join(dir, "attachments")
	c := begun(t, path, served, entry("a", "10.0.0.2"), entry("c", "10.0.0.4"))
	filler, err := os.Create(filepath.Join(dir, "filler"))
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	before := string(read(t, path))
	for what, err := range map[string]error{
		"add": c.Add(entry("b", "10.0.0.3")), "add again": c.Add(entry("a", "10.0.0.3")), "remove": c.Remove(key("c")),
	} {
		check(t, errors.Is(err, syscall.ENOSPC), "%s: %v, want %v", what, err, syscall.ENOSPC)
	}
	must(t, c.Remove(key("b"))) // changes nothing
	same(t, "the file", before, string(read(t, path)))
	same(t, "in memory", []string{"10.0.0.2", "10.0.0.4"}, recorded(c))
	same(t, "left behind", []string(nil), leftovers(t, path))
	must(t, filler.Close(), os.Remove(filler.Name()), c.Remove(key("a")), c.Add(entry("b", "10.0.0.3")), c.Close())
	same(t, "on the disk", []string{"10.0.0.3", "10.0.0.4"}, recorded(opened(t, path, served)))
}
