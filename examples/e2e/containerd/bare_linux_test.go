// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// A client runs containers without kubelet and the CRI, and calls libcni itself.
type client struct {
	name   string
	run    func(n *node, name string) container
	netns  string // prefix of the namespace's path in its entries of libcni's cache; empty: no path
	result string // prefix of the path in the result of the plugins
	oci    bool   // whether it can run containers in gVisor
}

// clients returns the clients of a node without Kubernetes. Only ctr has the version of
// containerd.
func (n *node) clients() []client {
	ctr := client{name: "ctr", run: (*node).runByCtr, netns: "/proc/", oci: true}
	if n.name != current().name {
		ctr.netns, ctr.result = "", "/proc/" // libcni 1.1
	}
	return []client{
		ctr,
		{name: "nerdctl", run: (*node).runByNerdctl, result: "/proc/", oci: true}, // 1.7 has libcni 1.1
		{name: "go-cni", run: (*node).runByGocni, netns: "/run/netns/"},
	}
}

// A container is a container of such a client.
type container struct {
	pod  // with the container ID that libcni got
	kill func()
}

// bare is the containerd namespace of containers without the CRI.
const bare = "bare"

// forClients prepares the node for its clients.
func (n *node) forClients() {
	n.t.Helper()
	for link, to := range map[string]string{"/etc/cni/net.d": "cni/conf", "/opt/cni/bin": "cni/bin"} { // go-cni's defaults
		n.must(os.Symlink(n.path(to), link))
		n.t.Cleanup(func() { n.must(os.Remove(link)) })
	}
	n.importImageAs(bare)
}

// command runs a client's command, and returns its output.
func (n *node) command(name string, args ...string) string {
	n.t.Helper()
	said, err := n.tryCommand(name, args...)
	n.must(err)
	return said
}

// tryCommand is command for one that may fail.
func (n *node) tryCommand(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(n.t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "PATH="+n.bin+":"+os.Getenv("PATH"), "TMPDIR="+nodeDir, "NERDCTL_TOML="+n.path("none.toml"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %v: %w: %s", name, args, err, &stderr)
	}
	return strings.TrimSpace(stdout.String()), nil
}

// runByCtr runs a container with `ctr run --cni --detach`, which never calls DEL.
func (n *node) runByCtr(name string) container {
	n.t.Helper()
	n.command(filepath.Join(n.bin, "ctr"), "--address", n.socket(), "--namespace", bare, "run", "--detach", "--null-io", "--cni",
		"--snapshotter", "overlayfs", "--runc-binary", n.ociRuntime(name), "--cgroup", "/"+os.Getenv(cgroupEnv)+"/"+name, n.image, name)
	return n.ranAs(name, bare+"-"+name, name)
}

// runByNerdctl runs a container with nerdctl. runc's hooks call ADD, and DEL when the
// container is deleted.
func (n *node) runByNerdctl(name string) container {
	n.t.Helper()
	c, err := n.tryRunByNerdctl(name)
	n.must(err)
	return c
}

// tryRunByNerdctl is runByNerdctl with flags of nerdctl run. It may fail.
func (n *node) tryRunByNerdctl(name string, flags ...string) (container, error) {
	n.t.Helper()
	id, err := n.nerdctl(slices.Concat([]string{"run", "--detach", "--name", name, "--net", n.network, "--pull", "never",
		"--runtime", n.ociRuntime(name), "--security-opt", "apparmor=unconfined", "--cgroup-parent", "/" + os.Getenv(cgroupEnv)},
		flags, []string{n.image})...)
	if err != nil {
		return container{}, err
	}
	return n.ranAs(name, bare+"-"+id, id), nil
}

// nerdctl runs a command of nerdctl.
func (n *node) nerdctl(args ...string) (string, error) {
	n.t.Helper()
	return n.tryCommand(n.tool("nerdctl"), append([]string{"--address", n.socket(), "--namespace", bare, "--snapshotter", "overlayfs",
		"--data-root", n.path("nerdctl"), "--cgroup-manager", "cgroupfs",
		"--cni-path", n.path("cni/bin"), "--cni-netconfpath", n.path("cni/conf")}, args...)...)
}

// runByGocni runs a container with the client of this module, in a mounted network namespace.
func (n *node) runByGocni(name string) container {
	n.t.Helper()
	c, err := n.tryRunByGocni(name)
	n.must(err)
	return c
}

// tryRunByGocni is runByGocni for a run that may fail.
func (n *node) tryRunByGocni(name string) (container, error) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(binEnv), "gocni"),
		n.path("cni/conf"), n.path("cni/bin"), name, filepath.Join(os.Getenv(binEnv), "pause"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	n.must(err)
	n.must(cmd.Start())
	end := func() {
		_ = cmd.Process.Kill() // it may have ended in a power loss
		_ = cmd.Wait()         // it was killed
	}
	n.t.Cleanup(end)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		end()
		return container{}, fmt.Errorf("gocni: %q, %w: %s", line, err, &stderr)
	}
	return container{n.holder(name, name), func() {
		end()
		path := filepath.Join("/run/netns", name)
		n.must(errors.Join(syscall.Unmount(path, syscall.MNT_DETACH), os.Remove(path)))
	}}, nil
}

// ranAs returns a container of containerd. Its kill also kills the shim and all processes that
// the shim started, so that no DEL is called.
func (n *node) ranAs(name, cniID, id string) container {
	n.t.Helper()
	p := n.holder(name, cniID)
	return container{p, func() {
		n.t.Helper()
		pids := n.processesOf(pod{name: name, id: id})
		if len(pids) < 2 {
			n.t.Fatalf("container %s has the processes %v, want a shim and a program", name, pids)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) { // it may have ended with another process
				n.must(err)
			}
		}
		n.awaitGone(pids)
	}}
}

// holder returns a pod with the reservations of a container ID.
func (n *node) holder(name, cniID string) pod {
	n.t.Helper()
	p := pod{name: name, id: cniID, ips: n.heldBy(n.network, cniID)}
	if len(p.ips) != 2 {
		n.t.Fatalf("container %s has the addresses %v, want dual stack", name, p.ips)
	}
	return p
}

// awaitGone waits until the processes have ended.
func (n *node) awaitGone(pids []int) {
	n.t.Helper()
	timeout := time.After(maxWait)
	for tick := time.Tick(10 * time.Millisecond); ; {
		left, err := others()
		n.must(err)
		left = slices.DeleteFunc(left, func(pid int) bool { return !slices.Contains(pids, pid) })
		if len(left) == 0 {
			return
		}
		select {
		case <-timeout:
			n.t.Fatalf("processes %v can't be killed", left)
		case <-tick:
		}
	}
}

// A cached is an entry of libcni's cache.
type cached struct {
	Netns  string
	Result struct {
		Interfaces []struct{ Sandbox string }
	}
}

// sandboxes returns the paths of network namespaces in the result.
func (c cached) sandboxes() (paths []string) {
	for _, i := range c.Result.Interfaces {
		if i.Sandbox != "" {
			paths = append(paths, i.Sandbox)
		}
	}
	return paths
}

// cachedOf returns the entry of a container, and its file.
func (n *node) cachedOf(p pod) (c cached, file string) {
	n.t.Helper()
	file = filepath.Join(cnicache.DefaultDir, fmt.Sprintf("%s-%s-eth0", n.network, p.id))
	text, err := os.ReadFile(file)
	n.must(err)
	n.must(json.Unmarshal(text, &c))
	return c, file
}

// proves checks that the path of the network namespace is in the expected part of the
// container's entry, and returns the entry and its file.
func (c client) proves(n *node, p pod) (entry cached, file string) {
	n.t.Helper()
	entry, file = n.cachedOf(p)
	result := strings.Join(entry.sandboxes(), " ")
	hasNot := c.netns == "" && entry.Netns != ""
	if hasNot || !strings.HasPrefix(entry.Netns, c.netns) || !strings.HasPrefix(result, c.result) {
		n.t.Fatalf("%s writes %q and %q as paths, want the prefixes %q and %q", c.name, entry.Netns, result, c.netns, c.result)
	}
	return entry, file
}

// pidsIn returns the process IDs in the entries of containers, and makes these entries older
// than processes that are started later.
func (n *node) pidsIn(containers []container) (numbers []int) {
	n.t.Helper()
	then := time.Now().Add(-10 * time.Second)
	for _, c := range containers {
		entry, file := n.cachedOf(c.pod)
		n.must(os.Chtimes(file, then, then))
		for _, path := range append(entry.sandboxes(), entry.Netns) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/ns/net", &pid); err == nil && !slices.Contains(numbers, pid) {
				numbers = append(numbers, pid)
			}
		}
	}
	if len(numbers) == 0 {
		n.t.Fatal("no entry has a process ID")
	}
	return numbers
}

// reusePIDs starts processes with these process IDs, as after a boot, when the kernel starts
// from 1 again.
func (n *node) reusePIDs(numbers []int) {
	n.t.Helper()
	for _, pid := range numbers {
		n.await(fmt.Sprintf("the process ID %d to be used again", pid), func(context.Context) error {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				return nil // a process has it
			}
			if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, pid-1), 0o600); err != nil {
				return err
			}
			cmd := exec.Command(filepath.Join(os.Getenv(binEnv), "pause"))
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			if err := cmd.Start(); err != nil {
				return err
			}
			n.t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // it was killed
			})
			if cmd.Process.Pid != pid {
				return fmt.Errorf("another process took it: got %d", cmd.Process.Pid)
			}
			return nil
		})
	}
}
