// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// versions of host-local, and the file names of the plugin and of host-local in one directory.
var versions = []struct{ version, plugin, real string }{
	{"v1.9.0", "hostlocal-gc-ipam", "host-local"}, // by type
	{"v1.0.1", "host-local", "host-local.real"},   // in place
	{"v0.8.7", "host-local", "host-local.real"},   // from before CNI 1.0.0
}

const binEnv = "HOSTLOCAL_GC_E2E_BIN" // the programs' directory, in the process that runs the tests

// TestMain runs the tests in namespaces of their own, with empty /run and /var/lib. All processes and
// mounts end with these.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "--- SKIP: ALL TESTS of this package: they make namespaces, which needs root. In CI that is a failure")
		os.Exit(map[bool]int{true: 1}[os.Getenv("CI") == "true"])
	}
	prepare, run := outside, func() int { return 0 }
	if os.Getenv(binEnv) != "" {
		prepare, run = node, m.Run
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run())
}

// outside builds the plugin, in the workspace since required versions may not be published yet, and each
// host-local, which stays in the cache. It makes a directory of both for each version, and runs this
// program again.
func outside() error {
	bin, err := os.MkdirTemp("", "hostlocal-")
	if err != nil {
		return err
	}
	run := func(cmd *exec.Cmd, env ...string) {
		cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdout, os.Stderr, append(append(os.Environ(), "CGO_ENABLED=0"), env...)
		if err == nil {
			err = cmd.Run()
		}
	}
	run(exec.Command("go", "-C", "../..", "build", "-race=false", "-o", bin, "./ipam"), "GOWORK=")
	cache, _ := filepath.Abs("../../../.cache/e2e/hostlocal")
	for _, v := range versions {
		dir, real := filepath.Join(bin, v.version), filepath.Join(cache, v.version, "host-local")
		err = errors.Join(err, os.MkdirAll(filepath.Dir(real), 0o755), cnitest.Install(filepath.Dir(real), cnitest.Tool{
			Package: cnitest.Plugins + "ipam/host-local", Module: "github.com/containernetworking/plugins", Version: v.version}))
		err = errors.Join(err, os.Mkdir(dir, 0o755), os.Link(bin+"/ipam", dir+"/"+v.plugin), os.Symlink(real, dir+"/"+v.real))
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	run(again, binEnv+"="+bin)
	return errors.Join(err, os.RemoveAll(bin))
}

// node makes the mounts, and a container with the addresses 10.1.0.0 to 10.1.0.31 and fd01:: to fd01::1f.
func node() error {
	container := exec.Command("sleep", "infinity")
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET}
	if err := errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), syscall.Mount("proc", "/proc", "proc", 0, ""),
		syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""), syscall.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""),
		syscall.Mount("tmpfs", "/mnt", "tmpfs", 0, ""), os.Setenv("TMPDIR", "/mnt"), container.Start()); err != nil {
		return err
	}
	ns, err1 := netns.GetFromPid(container.Process.Pid)
	handle, err2 := netlink.NewHandleAt(ns)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	lo, err := handle.LinkByName("lo")
	for _, first := range []string{"10.1.0.0", "fd01::"} {
		for ip, i := netip.MustParseAddr(first), 0; i < 32 && err == nil; ip, i = ip.Next(), i+1 {
			err = handle.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(ip.AsSlice())})
		}
	}
	return errors.Join(err, flag.Set("test.parallel", "16")) // an ADD that fails mostly waits for its next look
}

// TestAsHostLocal fails if a result with the plugin differs from that of host-local alone. Both get the same
// configuration and, one after the other, the same directory. No reservation can be released: each is
// young, or its address is the container's.
func TestAsHostLocal(t *testing.T) {
	for _, v := range versions {
		t.Run(v.version, func(t *testing.T) {
			for _, r := range rows {
				for change := range strings.SplitSeq(r.to, " | ") {
					t.Run(r.reason, func(t *testing.T) {
						t.Parallel()
						root, dir := filepath.Join(t.TempDir(), "root"), filepath.Join(os.Getenv(binEnv), v.version)
						if change == `"dataDir":""` {
							root = "/var/lib/cni"
						}
						stdin := strings.ReplaceAll(strings.Replace(base, r.from, change, 1), "ROOT", root)
						want := run(t, root, filepath.Join(dir, v.real), stdin, r.steps)
						if !regexp.MustCompile(r.want).MatchString(strings.Join(want, "")) {
							t.Errorf("host-local alone gives nothing that matches %s:\n%s", r.want, want)
						}
						got := run(t, root, filepath.Join(dir, v.plugin), stdin, r.steps)
						if diff := cmp.Diff(want, withoutFindings(got)); diff != "" {
							t.Errorf("%s\n(-host-local +plugin):\n%s", stdin, diff)
						}
						t.Logf("%d results compared", len(want))
					})
				}
			}
		})
		if left := files(t, "/run") + files(t, "/var/lib"); left != "" {
			t.Errorf("files outside of the data directory: %s", left)
		}
	}
}

// The documented differences (README.md of the plugin): if no address is free, or not the requested one, or
// the container has one, the plugin looks for leaks. What it found is in the error's details, and in a
// file beside the network's directory. Owner "a" is foreign, or in use while another row has an ADD of "a".
var (
	looked   = regexp.MustCompile(`no IP addresses available|duplicate allocation is not allowed|requested IP address \S+ is not available`)
	findings = regexp.MustCompile(`    "details": "hostlocal-gc-ipam: (?:all \d+ reservations in .* are in use|a pass released 0 of|` +
		`another ADD's answer|\S+ is (?:in-use|young|foreign)).*",\n(    "msg": .*\n\})\n`)
	note = regexp.MustCompile(`(?m)^-rw------- \S+/networks/\.[^/ ]+\.gc .*\n`)
	date = regexp.MustCompile(`(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d `) // of a line on stderr
)

func withoutFindings(results []string) []string {
	after := false
	for i, text := range results {
		if after = after || looked.MatchString(text); after {
			results[i] = note.ReplaceAllString(findings.ReplaceAllString(text, "$1"), "")
		}
	}
	return results
}

// run executes the steps in an empty directory, and returns the result of each, with all files.
func run(t *testing.T, root, plugin, stdin, steps string) (results []string) {
	t.Helper()
	_ = os.MkdirAll(root, 0o755) // files fails without it
	defer os.RemoveAll(root)
	for step := range strings.SplitSeq(steps, "; ") {
		command, rest, _ := strings.Cut(step, " ")
		first, more, _ := strings.Cut(rest, " ")
		if command == "PUT" {
			path := filepath.Join(root, first)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(more), 0o600)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var out, stderr bytes.Buffer
		cmd := exec.Command(plugin)
		cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = filepath.Dir(root), strings.NewReader(stdin), &out, &stderr
		cmd.Env = append([]string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + first, "CNI_NETNS=/run/netns/" + first, "CNI_IFNAME=eth0",
			"CNI_PATH=" + filepath.Dir(plugin)}, strings.Fields(more)...) // the last one of a name counts
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		said := date.ReplaceAll(stderr.Bytes(), nil)
		results = append(results, fmt.Sprintf("%s: %v\n%s\n%s\n%s", step, cmd.ProcessState, &out, said, files(t, root)))
	}
	return results
}

// files lists the files below a directory.
func files(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir || strings.HasPrefix(d.Name(), ".gc-memory") { // first sights
			return err
		}
		info, err := d.Info()
		content, _ := os.ReadFile(path) // a directory has none
		fmt.Fprintf(&all, "%v %s %q\n", info.Mode(), path, content)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all.String()
}
