// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Most tests run in namespaces of their own: each runs this binary again as process 1
// of a node that has only what the test makes. All of it ends with process 1.

const (
	roleVar  = "NETNS_TEST_ROLE" // the role of this process, if a test started it
	node     = "node"            // process 1 of a node, which runs one test
	pause    = "pause"           // a pod's process
	asker    = "asker"           // asks the source and prints its answer
	mounter  = "mounter"         // mounts a namespace and enters a chroot that does not show it
	outlive  = "outlive"         // a process whose first thread has ended
	executor = "executor"        // has an address, and executes a program while it has a file of /run/file open
	starter  = "starter"         // starts the next of a row of processes, listed in NETNS_TEST_ROW
)

// Only init runs on the first thread for certain.
func init() { //nolint:gochecknoinits // main is too late
	if os.Getenv(roleVar) == outlive {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleVar)
	roles := map[string]func() error{
		node: runNode, pause: runPause, asker: runAsker, mounter: runMounter, outlive: runOutlive, executor: runExecutor, starter: runStarter,
	}
	if run, ok := roles[role]; ok {
		if err := run(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		if role != node {
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// reexec returns a command that runs this binary again with a role.
func reexec(t testing.TB, role string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = environment(role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// environment returns the environment of a process with a role. The race detector
// would make it sleep for a second when it ends.
func environment(role string) []string {
	return append(os.Environ(), roleVar+"="+role, "GORACE=atexit_sleep_ms=0")
}

// onNode reports whether the test runs on a node of its own. If not, onNode runs it
// there.
func onNode(t *testing.T) bool {
	t.Helper()
	if os.Getenv(roleVar) == node {
		return true
	}
	if os.Getuid() != 0 {
		skipUnlessCI(t, errors.New("not root"))
	}
	runtime.LockOSThread() // the node ends with the thread that started it
	defer runtime.UnlockOSThread()
	cmd := reexec(t, node, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		skipUnlessCI(t, err)
	case err != nil:
		t.Errorf("on a node of its own: %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("on a node of its own it did not pass:\n%s", out)
	default:
		t.Logf("%s", out)
	}
	return false
}

// skipUnlessCI skips a test that can't run on this machine. In CI it fails.
func skipUnlessCI(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI must be able to make namespaces: %v", why)
	}
	t.Skipf("NOT TESTED: this needs root, and namespaces of its own: %v", why)
}

// runNode sets up a node: private mounts, its own processes, an empty /run, and a
// container in the node's network namespace.
func runNode() error {
	if err := mountProc(); err != nil {
		return err
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mounting /run: %w", err)
	}
	container := exec.Command("sleep", "infinity") // it ends with process 1
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := container.Start(); err != nil {
		return err
	}
	return errors.Join(container.Process.Release(), os.Mkdir("/run/netns", 0o755))
}

// mountProc mounts the procfs of this process's PID namespace. The process has a mount
// namespace of its own.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// runStarter starts the next process of a row and waits for it. Each word of the row
// says how a process is started; the last process asks the source.
func runStarter() error {
	row := strings.Fields(os.Getenv("NETNS_TEST_ROW"))
	if os.Getenv("NETNS_TEST_MOUNT") != "" {
		if err := mountProc(); err != nil {
			return err
		}
	}
	if len(row) == 0 {
		return runAsker()
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(environment(starter), "NETNS_TEST_ROW="+strings.Join(row[1:], " "), "NETNS_TEST_MOUNT=")
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	switch row[0] {
	case "child":
	case "mounts": // with its own mount namespace
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	case "processes": // with its own PID namespace and the same procfs
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	case "container":
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
		cmd.Env = append(cmd.Env, "NETNS_TEST_MOUNT=1")
	case "beside": // in a second container, in the PID namespace of a first one
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
		cmd.Env = append(cmd.Env, "NETNS_TEST_MOUNT=1")
		first := exec.Command("sleep", "infinity")
		first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		runtime.LockOSThread() // processes that it starts after Setns are in that namespace
		if err := first.Start(); err != nil {
			return err
		}
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", first.Process.Pid))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID)
		}
		if err != nil {
			return err
		}
	}
	return cmd.Run()
}

// configure adds addresses to the interface lo of the thread's network namespace.
func configure(ips []string) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return err
	}
	for _, ip := range ips {
		a := netip.MustParseAddr(ip)
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		if a.IsLinkLocalUnicast() {
			addr.Scope = unix.RT_SCOPE_LINK
		}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return fmt.Errorf("%s: %w", ip, err)
		}
	}
	return nil
}

// runPause configures addresses, and waits for the end of stdin.
func runPause() error {
	if err := configure(strings.Fields(os.Getenv("NETNS_TEST_IPS"))); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// runExecutor opens a file, and executes a program that does nothing. This closes the file.
func runExecutor() error {
	_, err := unix.Open("/run/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err := errors.Join(err, configure([]string{"10.0.0.3"})); err != nil {
		return err
	}
	fmt.Println("ready")
	return syscall.Exec("/bin/true", []string{"true"}, nil)
}

// startPod starts a process in a network namespace of its own with these addresses.
// stop ends it.
func startPod(t testing.TB, ips ...string) (pid int, stop func()) {
	t.Helper()
	return start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "NETNS_TEST_IPS="+strings.Join(ips, " "))
}

// start starts a process with these variables that does nothing. stop ends it.
func start(t testing.TB, attr *syscall.SysProcAttr, env ...string) (pid int, stop func()) {
	t.Helper()
	return startAs(t, pause, attr, env...)
}

func startAs(t testing.TB, role string, attr *syscall.SysProcAttr, env ...string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe") // it ends with process 1
	cmd.SysProcAttr = attr
	cmd.Env = append(environment(role), env...)
	stdin, stdinErr := cmd.StdinPipe()
	stdout, stdoutErr := cmd.StdoutPipe()
	if err := errors.Join(stdinErr, stdoutErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
			t.Errorf("ending a pod's process: %v", err)
		}
	})
	t.Cleanup(stop)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("a pod's process printed %q, %v", line, err)
	}
	return cmd.Process.Pid, stop
}

// mountNamespace mounts a new network namespace without processes.
func mountNamespace(t testing.TB, path string, ips ...string) {
	t.Helper()
	if err := mountNew(path, ips...); err != nil {
		t.Fatalf("making the network namespace %s: %v", filepath.Base(path), err)
	}
}

func mountNew(path string, ips ...string) error {
	return errors.Join(os.WriteFile(path, nil, 0o444), inNewNamespace(func() error {
		return errors.Join(configure(ips), unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""))
	}))
}

// inNewNamespace calls do on a thread in a new network namespace. The thread ends with it.
func inNewNamespace(do func() error) error {
	return onThreadOf(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, do)
}

// onThreadOf calls do on a thread that has entered a namespace.
func onThreadOf(enter, do func() error) error {
	done := make(chan error, 1)
	onThread(func() {
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = enter()
		}
		if err == nil {
			err = do()
		}
		done <- errors.Join(err, unix.Setns(home, unix.CLONE_NEWNET), unix.Close(home)) // the thread may end later
	})
	return <-done
}

func unmount(t testing.TB, path string) {
	t.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatalf("unmounting %s: %v", path, err)
	}
}

// nested returns a source for the node of a test.
func nested(t testing.TB) *Source {
	t.Helper()
	s, err := New(Options{Nested: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// netNSOf returns the inode number of the network namespace of a process or thread.
func netNSOf(dir string) (uint64, error) { return inodeAt(dir + "/ns/net") }

func inodeAt(path string) (uint64, error) {
	var stat unix.Stat_t
	err := unix.Stat(path, &stat)
	return stat.Ino, err
}

// scanOf returns a scan of a procfs, which has read nothing.
func scanOf(t testing.TB, proc string) *scan {
	t.Helper()
	s, err := New(Options{Proc: proc, Nested: true})
	if err != nil {
		t.Fatal(err)
	}
	return s.newScan(t.Context())
}

// procOf makes a procfs with one process, 7, and these files. The value is a file's
// content, or "link:" and the target of a symbolic link.
func procOf(t testing.TB, files map[string]string) (proc string) {
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

// parts returns the parts of an answer with the ADDs and with the addresses.
func parts(t testing.TB, a podsource.Answer) (adds, addresses podsource.Answer) {
	t.Helper()
	if len(a.Parts) != 2 || a.Pods != nil {
		t.Fatalf("got %+v, want two parts", a)
	}
	return a.Parts[0], a.Parts[1]
}

// answer returns the addresses of an answer: one sorted line for each namespace.
func answer(a podsource.Answer) []string {
	var lines []string
	for _, p := range podsOf(a) {
		if len(p.IPs) == 0 || p.HostNetwork {
			continue
		}
		var ips []string
		for _, ip := range p.IPs {
			ips = append(ips, ip.String())
		}
		slices.Sort(ips)
		lines = append(lines, strings.Join(ips, " "))
	}
	slices.Sort(lines)
	return lines
}

func podsOf(a podsource.Answer) (pods []podsource.Pod) {
	for _, m := range a.Members() {
		pods = append(pods, m.Pods...)
	}
	return pods
}

// runAsker asks the source with the privileges of this process, and prints the answer.
func runAsker() error {
	s, err := New(Options{Proc: os.Getenv("NETNS_TEST_PROC"), Nested: os.Getenv("NETNS_TEST_NESTED") != "",
		StartedByRuntime: os.Getenv("NETNS_TEST_NESTED") == "started"})
	if err != nil {
		return err
	}
	got, err := s.Pods(context.Background())
	if err != nil {
		return fmt.Errorf("%d pods, %w", len(podsOf(got)), err)
	}
	fmt.Printf("%q\n", answer(got))
	return nil
}

// runMounter mounts a network namespace in its own mount namespace, starts a process
// that sees it, and enters a chroot that does not show it.
func runMounter() error {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), mountNew("/run/netns/hidden", "10.0.0.7"))
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = environment(pause)
	stdin, pipeErr := cmd.StdinPipe()
	if err := errors.Join(err, pipeErr); err != nil {
		return err
	}
	if err := errors.Join(cmd.Start(), unix.Chroot(os.Getenv("NETNS_TEST_ROOT"))); err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return errors.Join(stdin.Close(), cmd.Wait())
}

// runOutlive configures an address, mounts a namespace that no other process sees, and
// ends its first thread. The other threads wait for the end of stdin.
func runOutlive() error {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), configure([]string{"10.0.0.2"}))
	if err := errors.Join(err, mountNew("/run/netns/outlived", "10.0.0.3")); err != nil {
		return err
	}
	go func() {
		for ended := false; !ended; {
			text, err := os.ReadFile("/proc/self/stat")
			_, state, _ := strings.Cut(string(text), ") ")
			if ended = strings.HasPrefix(state, "Z"); err != nil {
				fmt.Println("error:", err)
				os.Exit(1)
			}
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	_, _, errno := syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // ends only this thread
	return errno
}
