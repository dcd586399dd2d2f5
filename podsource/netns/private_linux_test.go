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
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Most tests run in namespaces of their own: each begins this binary anew as
// process 1 of a node that has nothing but what the test makes. Whatever that
// is, it ends with process 1.

const (
	roleVar = "NETNS_TEST_ROLE" // what this process is, when a test began it
	node    = "node"            // process 1 of a node, which runs one test
	pause   = "pause"           // a pod's process
	asker   = "asker"           // asks the source and prints its answer
	mounter = "mounter"         // mounts a namespace where a process in a chroot does not see it
	outlive = "outlive"         // a process whose first thread has ended
	starter = "starter"         // starts the next of a row of processes, as NETNS_TEST_ROW says
)

// The first thread is at hand for the main goroutine alone, and only from here.
func init() { //nolint:gochecknoinits // in main it would be too late
	if os.Getenv(roleVar) == outlive {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		switch os.Getenv(roleVar) {
		case pause:
			err = bePause(strings.Fields(os.Getenv("NETNS_TEST_IPS")))
		case asker:
			err = beAsker()
		case mounter:
			err = beMounter()
		case outlive:
			err = beOutlive()
		case starter:
			err = beStarter(strings.Fields(os.Getenv("NETNS_TEST_ROW")))
		case node:
			if err = beNode(); err == nil {
				return m.Run()
			}
		default:
			return m.Run()
		}
		if err != nil {
			fmt.Println("error:", err)
			return 1
		}
		return 0
	}())
}

// again begins this binary anew.
func again(t testing.TB, role string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = environment(role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// environment is that of a process with a role. The race detector would have it
// sleep for a second at its end.
func environment(role string) []string {
	return append(os.Environ(), roleVar+"="+role, "GORACE=atexit_sleep_ms=0")
}

// onNode reports whether the test runs on a node of its own. If not, it has run
// there by the time onNode returns.
func onNode(t *testing.T) bool {
	t.Helper()
	if os.Getenv(roleVar) == node {
		return true
	}
	if os.Getuid() != 0 {
		unable(t, errors.New("not root"))
	}
	runtime.LockOSThread() // the node dies with the thread that began it
	defer runtime.UnlockOSThread()
	cmd := again(t, node, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		unable(t, err)
	case err != nil:
		t.Errorf("on a node of its own: %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("on a node of its own it did not pass:\n%s", out)
	default:
		t.Logf("%s", out)
	}
	return false
}

// unable skips a test that needs what this machine does not give, but not in CI.
func unable(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI must be able to make namespaces: %v", why)
	}
	t.Skipf("NOT TESTED: this needs root, and namespaces of its own: %v", why)
}

// beNode sets up a node: mounts that nobody else sees, its own processes, an empty
// /run, and a container without a network of its own.
func beNode() error {
	if err := mountProc(); err != nil {
		return err
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mounting /run: %w", err)
	}
	container := exec.Command("sleep", "infinity") // it dies with process 1
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := container.Start(); err != nil {
		return err
	}
	return errors.Join(container.Process.Release(), os.Mkdir("/run/netns", 0o755))
}

// mountProc gives a process that has mounts of its own the procfs of its PID
// namespace.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// beStarter starts the next process of a row, in which each word says how one is
// started; the last one asks. It ends when that has.
func beStarter(row []string) error {
	if os.Getenv("NETNS_TEST_MOUNT") != "" {
		if err := mountProc(); err != nil {
			return err
		}
	}
	if len(row) == 0 {
		return beAsker()
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(environment(starter), "NETNS_TEST_ROW="+strings.Join(row[1:], " "), "NETNS_TEST_MOUNT=")
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	switch row[0] {
	case "child":
	case "mounts": // of its own
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	case "processes": // of its own, under the procfs that is there
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	case "container":
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
		cmd.Env = append(cmd.Env, "NETNS_TEST_MOUNT=1")
	case "beside": // in a second container, which shares the processes of a first one
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
		cmd.Env = append(cmd.Env, "NETNS_TEST_MOUNT=1")
		first := exec.Command("sleep", "infinity")
		first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		runtime.LockOSThread() // what it starts from here on is in there
		if err := first.Start(); err != nil {
			return err
		}
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/pid", first.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Setns(fd, unix.CLONE_NEWPID); err != nil {
			return err
		}
	}
	return cmd.Run()
}

// configure gives addresses to the interface lo of the thread's namespace.
func configure(ips []string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
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

// bePause is a pod's process: it has addresses, and waits for its end.
func bePause(ips []string) error {
	if err := configure(ips); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// startPod starts a process in a network namespace of its own that has these
// addresses. The function returned ends it.
func startPod(t testing.TB, ips ...string) (pid int, stop func()) {
	t.Helper()
	return start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "NETNS_TEST_IPS="+strings.Join(ips, " "))
}

// start starts a process that waits for its end, with these variables. The
// function returned ends it.
func start(t testing.TB, attr *syscall.SysProcAttr, env ...string) (pid int, stop func()) {
	t.Helper()
	return startAs(t, pause, attr, env...)
}

func startAs(t testing.TB, role string, attr *syscall.SysProcAttr, env ...string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe") // it dies with process 1
	cmd.SysProcAttr = attr
	cmd.Env = append(environment(role), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
				t.Errorf("ending a pod's process: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("a pod's process said %q, %v", line, err)
	}
	return cmd.Process.Pid, stop
}

// mountNamespace mounts a new network namespace that nobody is in.
func mountNamespace(t testing.TB, path string, ips ...string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	err := inNewNamespace(func() error {
		if err := configure(ips); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatalf("making the network namespace %s: %v", filepath.Base(path), err)
	}
}

// inNewNamespace calls do on a thread that is in a new network namespace.
func inNewNamespace(do func() error) error {
	const none = -1
	return withNetNS(none, func(fd, kind int) error {
		if fd == none {
			return unix.Unshare(unix.CLONE_NEWNET)
		}
		return unix.Setns(fd, kind)
	}, do)
}

func unmount(t testing.TB, path string) {
	t.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatalf("unmounting %s: %v", path, err)
	}
}

// nested is a source on the node of a test, which may be slow: some tests start processes
// while it looks.
func nested(t testing.TB) *Source {
	t.Helper()
	s, err := New(Options{Nested: true, Timeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// parts returns the two parts of an answer: ADDs and addresses.
func parts(t testing.TB, a podsource.Answer) (adds, addresses podsource.Answer) {
	t.Helper()
	if len(a.Parts) != 2 || a.Pods != nil {
		t.Fatalf("got %+v, want two parts", a)
	}
	return a.Parts[0], a.Parts[1]
}

// answer makes text of the addresses of an answer: a line for each namespace,
// sorted.
func answer(a podsource.Answer) []string {
	var lines []string
	for _, p := range slices.Concat(podsOf(a)...) {
		if len(p.IPs) == 0 {
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

func podsOf(a podsource.Answer) (pods [][]podsource.Pod) {
	for _, m := range a.Members() {
		pods = append(pods, m.Pods)
	}
	return pods
}

// beAsker asks as whoever it was begun as.
func beAsker() error {
	s, err := New(Options{Proc: os.Getenv("NETNS_TEST_PROC"), HostNetNS: os.Getenv("NETNS_TEST_HOST"), Nested: os.Getenv("NETNS_TEST_NESTED") != ""})
	if err != nil {
		return err
	}
	got, err := s.Pods(context.Background())
	if err != nil {
		return fmt.Errorf("%d pods, %w", len(slices.Concat(podsOf(got)...)), err)
	}
	fmt.Printf("%q\n", answer(got))
	return nil
}

// beMounter mounts a network namespace in its own mount namespace, puts itself in a
// chroot that does not show it, and starts a process that sees it.
func beMounter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := os.WriteFile("/run/netns/hidden", nil, 0o444); err != nil {
		return err
	}
	err := inNewNamespace(func() error {
		return errors.Join(configure([]string{"10.0.0.7"}), unix.Mount("/proc/thread-self/ns/net", "/run/netns/hidden", "", unix.MS_BIND, ""))
	})
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = environment(pause)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := unix.Chroot("/run/empty"); err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return errors.Join(stdin.Close(), cmd.Wait())
}

// beOutlive has an address, mounts a namespace that no other process sees, and ends
// its first thread. The others wait for the end.
func beOutlive() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := configure([]string{"10.0.0.2"}); err != nil {
		return err
	}
	if err := os.WriteFile("/run/netns/outlived", nil, 0o444); err != nil {
		return err
	}
	err := inNewNamespace(func() error {
		return errors.Join(configure([]string{"10.0.0.3"}), unix.Mount("/proc/thread-self/ns/net", "/run/netns/outlived", "", unix.MS_BIND, ""))
	})
	if err != nil {
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
	_, _, errno := syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // of this thread alone
	return errno
}
