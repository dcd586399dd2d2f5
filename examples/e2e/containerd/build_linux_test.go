// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// toolsEnv names the tools to build, separated by blanks. If it is not set, all are built.
const toolsEnv = "E2E_TOOLS"

// tools are programs that only some tests need. Each takes minutes to build the first time.
var tools = map[string]cnitest.Tool{
	"nerdctl": {Package: "github.com/containerd/nerdctl/cmd/nerdctl", Module: "github.com/containerd/nerdctl", Version: "v1.7.7"},
	"runsc":   {Package: "gvisor.dev/gvisor/runsc", Module: "gvisor.dev/gvisor", Version: "v0.0.0-20260905035102-160fafc42237"},
	"multus":  cnitest.Multus,
}

func wanted(tool string) bool {
	names, some := os.LookupEnv(toolsEnv)
	return !some || slices.Contains(strings.Fields(names), tool)
}

// tool returns the path of one of the tools. The test fails if the caller did not ask for it: it may exist from
// another run, but would be missing in a fresh clone.
func (n *node) tool(name string) string {
	n.t.Helper()
	if !wanted(name) {
		n.t.Fatalf("this test needs %s, which is not in %s=%q", name, toolsEnv, os.Getenv(toolsEnv))
	}
	return bin(name)
}

// bin returns the path of a program.
func bin(name string) string { return filepath.Join(os.Getenv(binEnv), name) }

// programs builds or finds all programs of a node, and returns environment variables with their paths. They stay in
// the cache. Until the lock is closed no other run changes them.
func programs() (env []string, lock *os.File, err error) {
	cache, err := filepath.Abs("../../../.cache/e2e")
	if err != nil {
		return nil, nil, err
	}
	bin := filepath.Join(cache, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, nil, err
	}
	if lock, err = os.Create(filepath.Join(cache, "lock")); err != nil {
		return nil, nil, err
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		say("waiting for another run of these tests to end")
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			return nil, lock, fmt.Errorf("locking %s: %w", lock.Name(), err)
		}
	}
	say("building programs into %s; the first time takes minutes", bin)
	errs := []error{
		build("..", "off", bin, "-tags=no_btrfs,no_zfs,no_devmapper", "./internal/parts",
			"github.com/containerd/containerd/v2/cmd/containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			"github.com/containerd/containerd/v2/cmd/ctr", cnitest.Plugins+"ipam/host-local", cnitest.Plugins+"main/bridge",
			cnitest.Plugins+"main/host-device", cnitest.Plugins+"main/loopback"),
		build("../..", "", bin, "./hostlocal-gc", "./ipam", "./embed/node"), // in the workspace: the versions that it requires may not be published yet
	}
	for name, tool := range tools {
		if wanted(name) {
			errs = append(errs, cnitest.Install(bin, tool))
		}
	}
	debian, err := debianPackages(filepath.Join(cache, "debian"))
	if err != nil {
		say("Debian's containerd is NOT TESTED: %v", err)
		if os.Getenv("CI") == "true" {
			errs = append(errs, err)
		}
	}
	path := bin + ":" + os.Getenv("PATH") + ":" + filepath.Join(debian, "usr/sbin")
	return []string{binEnv + "=" + bin, debianEnv + "=" + debian, "PATH=" + path}, lock, errors.Join(errs...)
}

// build builds packages in a directory with the given GOWORK, each into a binary in the directory bin. It does so
// without the race detector, since that needs cgo, and binaries with cgo need libraries.
func build(dir, work, bin string, what ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-race=false", "-buildvcs=false", "-o", bin + "/"}, what...)...)
	cmd.Dir, cmd.Stderr, cmd.Env = dir, os.Stderr, append(os.Environ(), "GOWORK="+work, "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v in %s: %w", cmd.Args, dir, err)
	}
	return nil
}

// debianPackages downloads Debian's runc and containerd, and unpacks them below dir. It does not install them: a
// package's scripts would start a service.
func debianPackages(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "usr/bin/containerd")); err == nil {
		return dir, nil
	}
	script := exec.Command("sh", "-euc", `rm -rf "$0" "$0.new"; mkdir -p "$0.new"; cd "$0.new"
		apt-get download -qq runc containerd; for p in *.deb; do dpkg-deb -x "$p" .; rm "$p"; done; mv "$0.new" "$0"`, dir)
	if out, err := script.CombinedOutput(); err != nil {
		return "", fmt.Errorf("downloading runc and containerd from Debian (is `apt-get update` missing?): %w: %s", err, out)
	}
	return dir, nil
}
