// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// A container is a container of a client that calls libcni itself, without kubelet and the CRI.
type container struct {
	pod  // with the container ID that libcni got
	kill func()
}

func podsOf(containers []container) (pods []pod) {
	for _, c := range containers {
		pods = append(pods, c.pod)
	}
	return pods
}

// forClients prepares the node for its clients.
func (n *node) forClients() {
	n.t.Helper()
	for link, to := range map[string]string{"/etc/cni/net.d": "cni/conf", "/opt/cni/bin": "cni/bin"} { // go-cni's defaults
		n.must(os.Symlink(n.path(to), link))
		n.t.Cleanup(func() { n.must(os.Remove(link)) })
	}
	n.importImageAs(bare)
}

// runEach runs containers with every client: ctr, which has the libcni of containerd, nerdctl, and one that mounts
// its namespaces.
func (n *node) runEach(name string, count int) (all []container) {
	n.t.Helper()
	for client, run := range map[string]func(*node, string) container{
		"ctr": (*node).runByCtr, "nerdctl": (*node).runByNerdctl, "go-cni": (*node).runByGocni,
	} {
		for i := range count {
			all = append(all, run(n, fmt.Sprintf("%s-%s-%d", name, client, i)))
		}
	}
	return all
}

// runByCtr runs a container with `ctr run --cni --detach`, which never calls DEL.
func (n *node) runByCtr(name string) container {
	n.t.Helper()
	n.ctr(bare, "run", "--detach", "--null-io", "--cni", "--snapshotter", "overlayfs", "--runc-binary", n.path("runclite"),
		"--cgroup", "/"+os.Getenv(cgroupEnv)+"/"+name, pauseImage, name)
	return n.ranAs(name, bare+"-"+name, name)
}

// runByNerdctl runs a container with nerdctl. runc's hooks call ADD, and DEL when the container is deleted.
func (n *node) runByNerdctl(name string) container {
	n.t.Helper()
	c, err := n.tryRunByNerdctl(name)
	n.must(err)
	return c
}

// tryRunByNerdctl is runByNerdctl with flags of nerdctl run. It may fail.
func (n *node) tryRunByNerdctl(name string, flags ...string) (container, error) {
	n.t.Helper()
	id, err := n.nerdctl(slices.Concat([]string{"run", "--detach", "--name", name, "--net", n.network, "--pull", "never", "--runtime", n.path("runclite"),
		"--security-opt", "apparmor=unconfined", "--cgroup-parent", "/" + os.Getenv(cgroupEnv)}, flags, []string{pauseImage})...)
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

// runByGocni runs a container with the client gocni of this module, in a mounted network namespace.
func (n *node) runByGocni(name string) container {
	n.t.Helper()
	c, err := n.tryRunByGocni(name)
	n.must(err)
	return c
}

// tryRunByGocni is runByGocni for a run that may fail.
func (n *node) tryRunByGocni(name string) (container, error) {
	n.t.Helper()
	cmd := exec.Command(bin("parts"), "gocni", n.path("cni/conf"), n.path("cni/bin"), name, n.path("pause"))
	var stderr strings.Builder
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
		n.removeNetns(filepath.Join("/run/netns", name))
	}}, nil
}

// removeNetns removes a mounted network namespace.
func (n *node) removeNetns(path string) {
	n.t.Helper()
	n.must(errors.Join(syscall.Unmount(path, syscall.MNT_DETACH), os.Remove(path)))
}

// ranAs returns a container of containerd.
func (n *node) ranAs(name, cniID, id string) container {
	n.t.Helper()
	return container{n.holder(name, cniID), func() {
		n.t.Helper()
		n.killAllOf(pod{name: name, id: id})
	}}
}

// holder returns a pod with the reservations of a container ID.
func (n *node) holder(name, cniID string) pod {
	n.t.Helper()
	p := pod{name: name, id: cniID, ips: n.heldBy(cniID)}
	if len(p.ips) != 2 {
		n.t.Fatalf("container %s has the addresses %v, want dual stack", name, p.ips)
	}
	return p
}

// cacheFile returns the file of a pod in libcni's cache.
func (n *node) cacheFile(p pod) string {
	return filepath.Join(cnicache.DefaultDir, fmt.Sprintf("%s-%s-eth0", n.network, p.id))
}
