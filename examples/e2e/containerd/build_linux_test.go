// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	top      = "../../.." // the root of the repository
	cacheDir = top + "/.cache/containerdtest"
)

// toolsEnv is the variable with the tools to build, separated by blanks. If it is not set, all
// are built.
const toolsEnv = "CONTAINERDTEST_TOOLS"

// tools are programs that only some tests need, and their modules. Each takes minutes to build
// the first time.
var tools = map[string]string{
	"nerdctl": "internal/tools/nerdctl",
	"runsc":   "internal/tools/gvisor",
	"multus":  top + "/examples/internal/tools/multus",
}

func wanted(tool string) bool {
	names, some := os.LookupEnv(toolsEnv)
	return !some || slices.Contains(strings.Fields(names), tool)
}

// tool returns the path of one of the tools. The test fails if the caller did not ask for it: it
// may exist from another run, but would be missing in a fresh clone.
func (n *node) tool(name string) string {
	n.t.Helper()
	if !wanted(name) {
		n.t.Fatalf("this test needs %s, which is not in %s=%q", name, toolsEnv, os.Getenv(toolsEnv))
	}
	return filepath.Join(os.Getenv(binEnv), name)
}

// binaries builds or finds all programs of a node, and returns environment variables with
// their paths. The programs stay in the cache, and the go command builds only those that are
// out of date.
func binaries() (env []string, err error) {
	if bin := os.Getenv(binEnv); bin != "" {
		return nil, nil // this suite was started by a test
	}
	cache, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(cache, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.Create(filepath.Join(cache, "lock")) // only one run may build at a time
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	more := slices.DeleteFunc(slices.Sorted(maps.Keys(tools)), func(tool string) bool { return !wanted(tool) })
	what := append([]string{"containerd", "the plugins", "hostlocal-gc"}, more...)
	say("building %s into %s; the first time takes minutes", strings.Join(what, ", "), bin)
	const tags = "-tags=no_btrfs,no_zfs,no_devmapper"
	errs := []error{
		build(".", "off", bin, tags, "tool"), // all tools of go.mod
		build("..", "off", bin, "./internal/pause", "./internal/gate", "./internal/runclite", "./internal/gocni"),
		build(top+"/examples", "", bin, "./hostlocal-gc", "./ipam"), // in the workspace: the versions that it requires may not be published yet
	}
	for _, tool := range more {
		errs = append(errs, build(tools[tool], "off", bin, "tool"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	debian, err := debianPackages(filepath.Join(cache, "debian"))
	if err != nil {
		say("Debian's containerd is NOT TESTED: %v", err)
		if os.Getenv("CI") == "true" {
			return nil, err
		}
	}
	path := bin + ":" + os.Getenv("PATH")
	if debian != "" {
		path += ":" + filepath.Join(debian, "usr/sbin")
	}
	if err := findRunc(path); err != nil {
		return nil, err
	}
	return []string{binEnv + "=" + bin, debianEnv + "=" + debian, "PATH=" + path}, nil
}

// findRunc returns an error if no directory of the search path has runc. containerd would
// report it for each pod.
func findRunc(path string) error {
	for _, dir := range filepath.SplitList(path) {
		if info, err := os.Stat(filepath.Join(dir, "runc")); err == nil && info.Mode().IsRegular() {
			return nil
		}
	}
	return errors.New("runc is not in PATH, and is downloaded on Debian only: install it")
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "containerdtest: "+format+"\n", args...)
}

// build builds packages of the module in dir with the given GOWORK, each into a binary in the
// directory bin. It does so without the race detector, since that needs cgo, and binaries with
// cgo need libraries.
func build(dir, work, bin string, what ...string) error {
	args := append([]string{"build", "-race=false", "-buildvcs=false", "-o", bin + "/"}, what...)
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK="+work, "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s in %s: %w", strings.Join(args, " "), dir, err)
	}
	return nil
}

// debianPackages downloads Debian's runc and containerd, and unpacks them below dir. It does
// not install them: a package's scripts would start a service.
func debianPackages(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "usr/bin/containerd")); err == nil {
		return dir, nil
	}
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("this is not Debian: %w", err)
		}
	}
	say("downloading Debian's runc and containerd")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	unpacked := dir + ".new"
	if err := errors.Join(os.RemoveAll(unpacked), os.MkdirAll(unpacked, 0o755)); err != nil {
		return "", err
	}
	get := exec.Command("apt-get", "download", "-qq", "runc", "containerd")
	get.Dir, get.Stderr = unpacked, os.Stderr
	if err := get.Run(); err != nil {
		return "", fmt.Errorf("apt-get download runc containerd (is `apt-get update` missing?): %w", err)
	}
	packages, err := filepath.Glob(filepath.Join(unpacked, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, p := range packages {
		if out, err := exec.Command("dpkg-deb", "-x", p, unpacked).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpacking %s: %w: %s", p, err, out)
		}
		if err := os.Remove(p); err != nil {
			return "", err
		}
	}
	return dir, os.Rename(unpacked, dir)
}
