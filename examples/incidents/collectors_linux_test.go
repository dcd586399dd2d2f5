// SPDX-License-Identifier: Apache-2.0

package incidents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// The collectors of the table. The first four are common designs, written for this test: no product
// has this code.
const (
	floor = "floor" // removes each file whose name is no live address
	walk  = "walk"  // the same under the plugin's lock, of names that are addresses
	dels  = "DELs"  // the plugin's DEL for each owner that is no live container
	verb  = "GC"    // GC as plugins#1289 describes it, with the live containers as valid
	ours  = "hostlocal-gc"
)

// Variables of a process that runs one of the designs.
const (
	designEnv = "INCIDENTS_DESIGN"
	pluginEnv = "INCIDENTS_PLUGIN"
)

func TestMain(m *testing.M) {
	if design := os.Getenv(designEnv); design != "" {
		if err := collect(design, os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(plugintest.Main(m))
}

// collectors builds the collectors.
func collectors(t *testing.T) (all []collector) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	plugin := plugintest.Build(t)
	for _, design := range []string{floor, walk, dels, verb} {
		all = append(all, collector{design, []string{self, "{dir}", "{pods.json}"}, []string{designEnv + "=" + design, pluginEnv + "=" + plugin}})
	}
	command := filepath.Join(t.TempDir(), "hostlocal-gc")
	build := exec.Command("go", "build", "-race=false", "-o", command, "./hostlocal-gc")
	build.Dir, build.Env = "..", append(os.Environ(), "GOWORK=", "CGO_ENABLED=0") // with the workspace: required versions may not be published yet
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	return append(all, collector{name: ours, command: []string{command, "release", "--data-dir", "{dir}", "--network", network, "--source", "file:{pods.json}"}})
}

// collect runs one of the designs. It reads the list as they do, and ignores unknown fields.
func collect(design, dir, list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var pods []struct {
		IPs          []string
		ContainerIDs []string
	}
	if err := json.Unmarshal(text, &pods); err != nil {
		return err
	}
	var ips, containers []string
	for _, p := range pods {
		ips, containers = append(ips, p.IPs...), append(containers, p.ContainerIDs...)
	}
	reservations := filepath.Join(dir, network)
	if design == floor {
		return removeBut(reservations, slices.Concat(ips, []string{"lock", "last_reserved_ip.0"}))
	}
	if design == dels {
		return deleteBut(dir, containers)
	}
	lock, err := disk.NewFileLock(reservations)
	if err != nil {
		return err
	}
	if err := lock.Lock(); err != nil {
		return errors.Join(err, lock.Close())
	}
	if design == verb {
		return errors.Join(releaseBut(reservations, containers), lock.Unlock(), lock.Close())
	}
	return errors.Join(removeAddressesBut(reservations, ips), lock.Unlock(), lock.Close())
}

// releaseBut is a GC of the plugin as plugins#1289 describes it, without its code. All files but
// the lock and the last_reserved_ip files are reservations. They stay if container and interface
// are valid, or only the container if the file has no interface. With an empty list nothing is
// valid. Other details are those of the plugin's DEL, which walks subdirectories and skips what it
// can't read.
func releaseBut(dir string, containers []string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "lock" || strings.HasPrefix(d.Name(), "last_reserved_ip.") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // as the plugin does
		}
		container, ifname, _ := strings.Cut(strings.TrimSpace(string(content)), "\r\n")
		if slices.Contains(containers, container) && (ifname == "" || ifname == "eth0") {
			return nil
		}
		return os.Remove(path)
	})
}

// removeBut removes the files in a directory except those with these names.
func removeBut(dir string, names []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() && !slices.Contains(names, e.Name()) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// removeAddressesBut removes the files below a directory whose names are addresses, except these.
func removeAddressesBut(dir string, ips []string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if isAddress(d.Name()) && !slices.Contains(ips, d.Name()) {
			return os.Remove(path)
		}
		return nil
	})
}

// deleteBut calls the plugin's DEL for the owner of each reservation, except these containers.
func deleteBut(dir string, containers []string) error {
	files, err := filepath.Glob(filepath.Join(dir, network, "*"))
	if err != nil {
		return err
	}
	plugin := plugintest.Plugin{Binary: os.Getenv(pluginEnv), DataDir: dir, Network: network,
		Ranges: []plugintest.Range{{Subnet: "10.244.0.0/24"}, {Subnet: "fd00::/64"}}}
	var errs []error
	for _, file := range files {
		if !isAddress(filepath.Base(file)) {
			continue
		}
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) { // the DEL of another reservation of its owner removed it
			continue
		}
		id, _, _ := bytes.Cut(bytes.TrimSpace(content), []byte("\n"))
		owner := string(bytes.TrimSpace(id))
		if err != nil || owner == "" || slices.Contains(containers, owner) {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, plugin.Del(context.Background(), owner, "eth0"))
	}
	return errors.Join(errs...)
}

func isAddress(name string) bool { return net.ParseIP(name) != nil }
