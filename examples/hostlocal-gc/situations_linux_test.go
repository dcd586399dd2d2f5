// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// isNode is set in the environment of this binary where it is process 1 of a node.
const isNode = "IS_HOSTLOCAL_GC_NODE"

// onNode reports whether the test runs on a node of its own, with empty /run, /etc and /var/lib. If not,
// it runs the test there. All of it ends with process 1.
func onNode(t *testing.T) bool {
	t.Helper()
	if os.Getenv(isNode) != "" {
		return true
	}
	runtime.LockOSThread() // the node ends with the thread that started it
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), isNode+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit) && os.Getenv("CI") != "true":
		t.Skipf("NOT TESTED: this needs root, and namespaces of its own: %v", err)
	case err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Errorf("on a node of its own: %v\n%s", err, out)
	}
	return false
}

// A bed is a node of its own, which is made anew for each situation.
type bed struct {
	t            *testing.T
	runtime      criRuntime
	args, uptime string
	serves       bool // its runtime
}

// newBed empties the node.
func newBed(t *testing.T) *bed {
	t.Helper()
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for _, dir := range []string{"/run", "/etc", "/var"} {
		must(t, unix.Mount("none", dir, "tmpfs", 0, ""))
	}
	must(t, unix.Mount("proc", "/proc", "proc", 0, ""))
	return &bed{t: t}
}

// put writes a file, two hours old.
func (b *bed) put(path, text string) {
	b.t.Helper()
	cnitest.Write(b.t, path, text, 2*time.Hour)
}

// conf writes a network's configuration with these fields of ipam.
func (b *bed) conf(file, name, plugin, fields string) {
	b.t.Helper()
	b.put("/etc/cni/net.d/"+file, fmt.Sprintf(`{"cniVersion": "1.0.0", %s "plugins": [{"type": %q, "ipam": {"type": "host-local"%s}}]}`, name, plugin, fields))
}

const (
	podnet = `"name": "podnet",`
	subnet = `, "ranges": [[{"subnet": "10.244.1.0/24"}]]`
	dir    = "/var/lib/cni/networks/"
)

// podnet writes the usual configuration.
func (b *bed) podnet() { b.conf("10-podnet.conflist", podnet, "bridge", subnet) }

func (b *bed) flannel() {
	b.conf("10-flannel.conflist", `"name": "cbr0",`, "flannel", "")
	b.put("/run/flannel/subnet.env", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
}

// reserve makes n reservations in a directory, the first ones of sandboxes that are ready.
func (b *bed) reserve(dir string, n, ready int) {
	b.t.Helper()
	for i := range n {
		b.put(filepath.Join(dir, fmt.Sprintf("10.244.1.%d", i+2)), sandbox(fmt.Sprint(i))+"\r\neth0")
		if i < ready {
			b.runtime.ready = append(b.runtime.ready, sandbox(fmt.Sprint(i)))
		}
	}
}

// space makes a network namespace with some addresses, from that of reservation first on. It has a name
// and no process or, without a name, a process and no name.
func (b *bed) space(name string, first, n int) {
	b.t.Helper()
	var addresses strings.Builder
	for i := range n {
		fmt.Fprintf(&addresses, "addr add 10.244.1.%d/32 dev lo\n", first+i+2)
	}
	in := "--net=/run/netns/" + name
	if name == "" {
		in = fmt.Sprintf("--net=/proc/%d/ns/net", b.process(syscall.CLONE_NEWNET))
	} else if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command("nsenter", in, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(addresses.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %v: %s", cmd, err, out)
	}
}

// process starts a process in new namespaces, which ends with the test.
func (b *bed) process(flags uintptr) (pid int) {
	b.t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	must(b.t, cmd.Start())
	b.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd.Process.Pid
}

// kernel lets check ask the kernel, too, on a node that is itself a container.
func (b *bed) kernel() {
	b.process(syscall.CLONE_NEWPID) // a container, without which this might be one
	b.args = "--source cri --source netns:nested"
}

func readOnly(t *testing.T, dir string) {
	must(t, errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")))
}

func (b *bed) check() outcome { b.t.Helper(); return b.run("check") }

// run runs a command.
func (b *bed) run(name string) outcome {
	b.t.Helper()
	if must(b.t, os.MkdirAll("/run/containerd", 0o755)); !b.serves {
		serve(b.t, "/run/containerd/containerd.sock", b.runtime)
		b.serves = true
	}
	cmd := command(b.t, "/", append([]string{name}, strings.Fields(b.args)...)...)
	cmd.Env = append(cmd.Env, nodeUp+"="+b.uptime)
	return finish(b.t, cmd, cmd.Run)
}

// The first line of check is the true cause. Beside it, the same node without the fault is OK. Nothing is
// given but what a row says: it finds configurations, ranges, data directories and runtime as on any node.
func TestSituations(t *testing.T) {
	if !onNode(t) {
		return
	}
	well := func(b *bed) { b.podnet(); b.reserve(dir+"podnet", 14, 14) }
	leaky := func(b *bed) { b.podnet(); b.reserve(dir+"podnet", 253, 14) }
	flannel := func(b *bed) { b.flannel(); b.reserve(dir+"cbr0", 14, 14) }
	for _, row := range []struct {
		reason     string
		fault, not func(*bed)
		status     int
		first      string
		says       []string
	}{
		{"flannel: all files are there, few sandboxes live", func(b *bed) { b.flannel(); b.reserve(dir+"cbr0", 253, 14) }, flannel, 3,
			"FULL: cbr0: 253 of 253 addresses reserved, 239 leaked, 14 in use", []string{"hostlocal-gc release --network cbr0", "Risk: no --source netns"}},
		{"flannel: all in use (hazard 101)", func(b *bed) { b.flannel(); b.reserve(dir+"cbr0", 253, 253) }, flannel, 3,
			"FULL: cbr0: 253 of 253 addresses reserved, all in use: the range is too small for what runs here", nil},
		{"all in use but for one that is young; leaks of another family, and outside of the range", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", `, "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00::/64"}]]`)
			b.reserve(dir+"podnet", 253, 252)
			must(t, os.Chtimes(dir+"podnet/10.244.1.254", time.Now(), time.Now()))
			b.put(dir+"podnet/fd00::2", sandbox("x")+"\r\neth0")
			b.put(dir+"podnet/10.9.0.2", sandbox("y")+"\r\neth0")
		}, well, 3, "FULL: podnet: 253 of 253 addresses reserved, and 1 outside of the range, 252 in use, 1 young: the range is too small",
			[]string{"\nLEAKED: podnet: 2 leaked in another range set than the one that is full\n  hostlocal-gc release --network podnet\n"}},
		{"flannel's daemon has not written its range; what its plugin passed on has it (hazard 101)", func(b *bed) {
			b.flannel()
			b.reserve(dir+"cbr0", 253, 14)
			must(t, os.Remove("/run/flannel/subnet.env"))
			b.put("/var/lib/cni/flannel/"+sandbox("0"), `{"name": "cbr0", "type": "bridge", "cniVersion": "1.0.0", "ipam": {"type": "host-local"`+subnet+`}}`)
		}, flannel, 3, `CONFIG: /etc/cni/net.d/10-flannel.conflist: network "cbr0", plugin "flannel": the range of flannel: `, []string{"\nFULL: cbr0: 253 of 253"}},
		{"a range that is set at run time (hazard 101)", func(b *bed) {
			b.conf("10-calico.conflist", podnet, "calico", `, "subnet": "usePodCidr"`)
			b.reserve(dir+"podnet", 14, 14)
		}, func(b *bed) {
			b.conf("10-calico.conflist", podnet, "calico", `, "subnet": "usePodCidr"`)
			b.reserve(dir+"podnet", 14, 14)
			b.args = "--network podnet --range 10.244.1.0/24"
		}, 1, "UNKNOWN: podnet: 14 reservations, all in use; its range is set at run time and not known", []string{"--range SUBNET"}},
		{"a cluster that was shut down and started: API list and runtime", func(b *bed) {
			leaky(b)
			b.uptime, b.args = "2m", "--source file:/run/pods.json --source cri"
			b.runtime.ready = []string{sandbox("new")}
			var pods []string
			for i := range 60 {
				pods = append(pods, fmt.Sprintf(`{"name": "starting-%d", "startedAt": %q}`, i, time.Now().Add(-time.Minute).Format(time.RFC3339)))
			}
			must(t, os.WriteFile("/run/pods.json", []byte("["+strings.Join(pods, ",")+"]"), 0o600))
		}, func(b *bed) { well(b); b.uptime = "2m" }, 3,
			"FULL: podnet: 253 of 253 addresses reserved, all from before the boot",
			[]string{"a second release, frees what leaked, in 7m", "--source netns --source cnicache may free it at once"}},
		{"Antrea's list, and its own data directory", func(b *bed) {
			b.conf("10-antrea.conflist", `"name": "antrea",`, "antrea", "")
			b.reserve("/run/antrea/cni/networks/antrea", 20, 14)
		}, func(b *bed) {
			b.conf("10-antrea.conflist", `"name": "antrea",`, "antrea", "")
			b.reserve("/run/antrea/cni/networks/antrea", 14, 14)
			b.args = "--network antrea --range 10.244.1.0/24"
		}, 3, "LEAKED: antrea: 20 reservations in /run/antrea/cni/networks, 6 leaked, 14 in use",
			[]string{"hostlocal-gc release --data-dir /run/antrea/cni/networks --network antrea"}},
		{"host-local without ranges", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", "")
			b.runtime.ready = []string{sandbox("0")}
		}, well, 3,
			`CONFIG: /etc/cni/net.d/10-podnet.conflist: network "podnet", plugin "bridge": no IP ranges specified`, nil},
		{"no configuration at all, and a runtime that runs", func(b *bed) { b.runtime.ready = []string{sandbox("0")} }, well, 3,
			"CONFIG: no network configuration in /etc/cni/net.d, so the runtime can start no pod", nil},
		{"two range sets that overlap", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", `, "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "10.244.1.0/25"}]]`)
			b.reserve(dir+"podnet", 14, 14)
		}, well, 3, `CONFIG: /etc/cni/net.d/10-podnet.conflist: network "podnet", plugin "bridge": range set 0 overlaps with 1`, nil},
		{"a configuration that can't be read, before the others", func(b *bed) { well(b); b.put("/etc/cni/net.d/05-x.conf", "{") }, well, 3,
			"CONFIG: /etc/cni/net.d/05-x.conf: unexpected end of JSON input", nil},
		{"one that no runtime uses is on the second line", func(b *bed) { well(b); b.put("/etc/cni/net.d/99-x.conf", "{") }, well, 0,
			"OK: podnet: 14 of 253 addresses reserved, all in use\nNot read: /etc/cni/net.d/99-x.conf: unexpected end of JSON input", nil},
		{"a network without a name", func(b *bed) { b.conf("10-podnet.conflist", "", "bridge", subnet); b.reserve(dir, 253, 14) }, well, 3,
			"LEAKED: networks: 253 reservations in /var/lib/cni, 239 leaked, 14 in use", []string{"hostlocal-gc release --data-dir /var/lib/cni --network networks\n"}},
		{"a data directory that no configuration names, while pods run", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", subnet+`, "dataDir": "/run/cni-state"`)
			b.reserve(dir+"podnet", 14, 14)
		}, func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", subnet+`, "dataDir": "/run/cni-state"`)
			b.reserve("/run/cni-state/podnet", 14, 14)
			b.put(dir+"other/10.9.0.2", sandbox("0")+"\r\neth0") // nobody asks for it
			b.args = "--network podnet"
		}, 3, "CONFIG: podnet: 14 addresses in use of its range are reserved in /var/lib/cni/networks/podnet",
			[]string{"\nUNKNOWN: podnet: 14 reservations, all in use; its range is not known: no configuration in /etc/cni/net.d has it in /var"}},
		{"a container that nobody speaks for",
			func(b *bed) { well(b); b.put(dir+"podnet/10.244.1.99", "default-"+sandbox("x")+"\r\neth0") }, well, 1,
			"UNKNOWN: podnet: 15 of 253 addresses reserved, 14 in use, 1 of owners that no source here knows", []string{"--source netns"}},
		{"a cache of libcni that proves nothing, so nobody speaks of the network", func(b *bed) {
			b.kernel()
			well(b)
			must(t, os.MkdirAll("/var/lib/cni/results", 0o755))
			b.args = "--source netns:nested --source cnicache"
		}, well, 1, "UNKNOWN: podnet: 14 of 253 addresses reserved, all of owners that no source here knows",
			[]string{"Ask who lists all containers: --source cri"}},
		{"a later file has the network with a smaller range", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", `, "subnet": "10.244.1.0/28"`)
			b.reserve(dir+"podnet", 13, 13)
			b.conf("99-old.conflist", podnet, "bridge", subnet)
		}, func(b *bed) { well(b); b.conf("99-old.conflist", podnet, "bridge", `, "subnet": "10.244.1.0/28"`) }, 3,
			"FULL: podnet: 13 of 13 addresses", nil},
		{"two --range of a family are one set", func(b *bed) {
			b.reserve(dir+"podnet", 13, 13)
			b.args = "--network podnet --range 10.244.1.0/28"
		}, func(b *bed) {
			b.reserve(dir+"podnet", 13, 13)
			b.args = "--network podnet --range 10.244.1.0/28 --range 10.244.2.0/24"
		}, 3, "FULL: podnet: 13 of 13 addresses", nil},
		{"no sandbox after a reboot", func(b *bed) { b.podnet(); b.reserve(dir+"podnet", 253, 0) }, well, 1,
			"UNKNOWN: the live pods can't be determined: cri: no container runtime with a sandbox was found: --source cri:SOCKET --allow-empty if the", nil},
		{"a network without a name in a directory whose name is no network's", func(b *bed) {
			b.conf("20-b.conflist", `"name": "b",`, "bridge", subnet+`, "dataDir": "/run/_cni"`)
			b.reserve("/run/_cni", 253, 14)
		}, well, 1, "UNKNOWN: not all reservations can be read: /run/_cni is the directory of a network without a name", nil},
		{"a file in a network's place", func(b *bed) { b.podnet(); b.put(dir+"podnet", ""); b.runtime.ready = []string{sandbox("0")} }, well, 1,
			"UNKNOWN: podnet: not all reservations can be read: /var/lib/cni/networks/podnet is a regular file", nil},
		{"what a release left of a network", well, func(b *bed) { well(b); must(t, os.Mkdir(dir+"oldnet", 0o755)) }, 0, "OK: ", nil},
		{"files of NUL bytes after a power loss", func(b *bed) {
			well(b)
			for i := range 12 {
				b.put(fmt.Sprintf(dir+"podnet/10.244.1.%d", 100+i), strings.Repeat("\x00", 70))
			}
		}, well, 3, "CONFLICT: podnet: 12 files name no owner, and are kept: 12 of NUL bytes, as a power loss leaves them",
			[]string{"hostlocal-gc remove-malformed --network podnet"}},
		{"the data directory is mounted read-only, with leaks", func(b *bed) { leaky(b); readOnly(t, dir) }, well, 3,
			"READ-ONLY: /var/lib/cni/networks is mounted read-only, so nothing can be released: 239 leaked", []string{"\nFULL: podnet"}},
		{"the same, and all are in use", func(b *bed) { b.podnet(); b.reserve(dir+"podnet", 253, 253); readOnly(t, dir) }, well, 3,
			"FULL: podnet: 253 of 253", []string{"\nREAD-ONLY: "}},
		{"a full disk", func(b *bed) {
			must(t, errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("none", dir, "tmpfs", 0, "size=64k")))
			b.podnet()
			b.reserve(dir+"podnet", 9, 9)
			_ = os.WriteFile(dir+"fill", make([]byte, 1<<17), 0o600)
		}, well, 3, "READ-ONLY: the file system of /var/lib/cni/networks is full", nil},
		{"configurations that can't be listed", func(b *bed) {
			b.reserve(dir+"podnet", 14, 14)
			must(t, errors.Join(os.MkdirAll("/etc/cni", 0o755), os.Symlink("net.d", "/etc/cni/net.d")))
		}, well, 1, "UNKNOWN: reading CNI configurations: open /etc/cni/net.d: too many levels", nil},
		{"k3s", func(b *bed) {
			b.put("/run/flannel/subnet.env", "FLANNEL_SUBNET=10.244.1.1/24")
			b.reserve(dir+"cbr0", 253, 253)
			b.put("/var/lib/rancher/k3s/agent/etc/cni/net.d/10-flannel.conflist", `{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "flannel"}]}`)
		}, flannel, 3, "FULL: cbr0: 253 of 253 addresses reserved, all in use", nil},
		{"sandboxes that are not ready (hazard 102)", func(b *bed) {
			b.podnet()
			b.reserve(dir+"podnet", 253, 253)
			b.runtime.ready, b.runtime.notReady = b.runtime.ready[:13], b.runtime.ready[13:]
		}, well, 3, "FULL: podnet: 253 of 253 addresses reserved, 240 by sandboxes that are not ready, 13 in use",
			[]string{"\n  hostlocal-gc check --network podnet -o json | jq -r '.findings[] | select(.word == \"FULL\") | .items[]?' | xargs -n1 crictl rmp\n"}},
		{"namespaces without a process (hazard 102)", func(b *bed) {
			b.kernel()
			b.podnet()
			b.reserve(dir+"podnet", 253, 243)
			b.space("cni-a", 243, 5)
			b.space("cni-b", 248, 3)
			b.space("c; reboot", 251, 2) // a command would run it
			b.runtime.ready = b.runtime.ready[:243]
		}, func(b *bed) { b.kernel(); well(b) }, 3, "FULL: podnet: 253 of 253 addresses reserved, 243 in use, 10 by namespaces without a process",
			[]string{"ip netns delete cni-a && ip netns delete cni-b\n"}},
		{"a namespace whose pause container is to come", func(b *bed) {
			b.kernel()
			b.podnet()
			b.reserve(dir+"podnet", 253, 248)
			b.space("cni-a", 248, 5)
			for i := range 5 {
				must(t, os.Chtimes(fmt.Sprintf("%spodnet/10.244.1.%d", dir, 250+i), time.Now(), time.Now()))
			}
		}, func(b *bed) { b.kernel(); well(b) }, 3, "FULL: podnet: 253 of 253 addresses reserved, 248 in use, 5 starting", nil},
		{"one process's namespace holds most (hazard 100)", func(b *bed) {
			b.kernel()
			b.podnet()
			b.reserve(dir+"podnet", 253, 53)
			b.space("", 53, 200)
		}, func(b *bed) { b.kernel(); well(b) }, 3, "FULL: podnet: 253 of 253 addresses reserved, 200 in one namespace of process ", []string{"53 in use"}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			b := newBed(t)
			row.fault(b)
			got := b.check()
			for _, text := range row.says {
				if !strings.Contains(got.stdout, text) {
					t.Errorf("without %q", text)
				}
			}
			if got.status != row.status || !strings.HasPrefix(got.stdout, row.first) {
				t.Errorf("exit status %d, want %d with %q", got.status, row.status, row.first)
			}
			b.args += " -o json"
			checkSchema(t, "check", b.check().stdout)
			if t.Failed() {
				t.Logf("\n%s%s", got.stdout, got.stderr)
			}
		})
		t.Run(row.reason+": without the fault", func(t *testing.T) {
			b := newBed(t)
			row.not(b)
			if got := b.check(); got.status != statusDone || !strings.HasPrefix(got.stdout, "OK: ") {
				t.Errorf("exit status %d:\n%s%s", got.status, got.stdout, got.stderr)
			}
		})
	}
}
