// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

// The test binary runs as three processes, each the parent of the next: that of go test, which builds the programs;
// process 1 of the namespaces; and the tests. Process 1 ends when one of the others does, however that ended, and
// with it end all processes, mounts and network namespaces.
const (
	roleEnv   = "E2E_ROLE"
	binEnv    = "E2E_BIN"    // directory of the binaries
	debianEnv = "E2E_DEBIAN" // directory of Debian's packages; empty: none
	cgroupEnv = "E2E_CGROUP" // name of the control group of all pods

	endpointEnv = "CONTAINER_RUNTIME_ENDPOINT" // of crictl
)

func TestMain(m *testing.M) {
	run := outside
	switch os.Getenv(roleEnv) {
	case "first":
		run = first
	case "tests":
		run = func() (int, error) {
			err := os.Unsetenv(endpointEnv)     // it may be set for the machine's crictl
			gctest.Uptime(nil, 30*24*time.Hour) // the machine may be younger than the reservations
			return m.Run(), err
		}
	}
	status, err := run()
	if err != nil {
		say("%v", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "containerd: "+format+"\n", args...) }

func outside() (status int, err error) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			return 1, errors.New("the tests need root, and are not skipped since CI=true is in the environment")
		}
		say("--- SKIP: ALL TESTS of this package need root, for namespaces and mounts")
		return 0, nil
	}
	env, lock, err := programs()
	if err != nil {
		return 1, err
	}
	defer lock.Close()
	alive, keep, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	group := "hostlocal-gc-e2e-" + rand.Text()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), append(env, roleEnv+"=first", cgroupEnv+"="+group)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = alive, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
		Setsid:     true, // ^C ends this process alone
	}
	err = cmd.Run()
	runtime.KeepAlive(keep) // it closes with this process
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		status, err = exit.ExitCode(), nil
	}
	return status, errors.Join(err, removeCgroups(group)) // process 1 does that, too, unless it was killed
}

// first is process 1. It mounts over the directories to which the tests may write, starts the tests, and reaps
// orphans, such as shims: containerd waits until dead shims are reaped.
func first() (status int, err error) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the process outside does
		_ = end()                            // nobody is left to whom to tell an error
		os.Exit(1)
	}()
	if err := cover(); err != nil {
		return 1, err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = errors.Join(netlink.LinkSetUp(lo), os.Setenv(roleEnv, "tests"))
	}
	if err != nil {
		return 1, fmt.Errorf("bringing up lo: %w", err)
	}
	// Not exec.Command: its Wait and Wait4 below would reap each other's children.
	tests, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	for err == nil {
		var ended syscall.WaitStatus
		var pid int
		switch pid, err = syscall.Wait4(-1, &ended, 0, nil); {
		case errors.Is(err, syscall.EINTR):
			err = nil
		case err != nil || pid != tests.Pid:
		case ended.Exited():
			return ended.ExitStatus(), end()
		default:
			err = errors.Join(fmt.Errorf("the tests were killed by %v", ended.Signal()), end())
		}
	}
	return 1, err
}

// end kills all processes in the namespaces but process 1 and this one, and removes their control groups.
func end() error { return errors.Join(killAll(), removeCgroups(os.Getenv(cgroupEnv))) }

// cover mounts an own /proc and /run, and own CNI directories. Other changes of /etc, /opt and /var/lib are lost,
// too.
func cover() error {
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := syscall.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", kind, target, err)
		}
		return nil
	}
	if err := errors.Join(
		mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""),
		mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"),
	); err != nil {
		return err
	}
	// libcni keeps its results in /var/lib/cni, and ctr reads go-cni's default directories.
	for _, dir := range []string{"/var/lib/cni", "/etc/cni", "/opt/cni"} {
		parent := filepath.Dir(dir)
		layers := "/run/layers" + parent
		if err := errors.Join(os.MkdirAll(layers+"/upper", 0o755), os.MkdirAll(layers+"/work", 0o755),
			mount("overlay", parent, "overlay", 0, strings.NewReplacer("L", layers, "P", parent).Replace("lowerdir=P,upperdir=L/upper,workdir=L/work")),
			os.MkdirAll(dir, 0o755), mount("tmpfs", dir, "tmpfs", 0, "mode=0755")); err != nil {
			return err
		}
	}
	const security, tmp = "/sys/kernel/security", "/run/tmp"
	if _, err := os.Stat(security); err == nil { // nerdctl would load an AppArmor profile into the kernel
		if err := mount("tmpfs", security, "tmpfs", 0, "mode=0755"); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll("/etc/crictl.yaml"), // a search would find the machine's runtime
		os.Mkdir(tmp, 0o755), os.Setenv("TMPDIR", tmp))
}
