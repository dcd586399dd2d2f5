// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

// TestMain runs the example when a test starts this binary again.
func TestMain(m *testing.M) {
	if os.Getenv("EMBED_IS_MAIN") != "" {
		gctest.Uptime(nil, 24*time.Hour) // the machine may have just booted
		main()
		return
	}
	os.Exit(m.Run())
}

// The example runs as a program on reservations that the plugin's own code made.
func TestEmbed(t *testing.T) {
	all := []string{"10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5"}
	for _, row := range []struct {
		reason string
		script string // prints the sandboxes; $0 is a path that does not exist yet
		want   []string
		says   string
	}{
		{
			"of the two old ones one is live; the young one may be of an ADD in flight, and nerdctl's container is no sandbox",
			"echo " + sandbox("live") + " " + sandbox("another"), []string{"10.244.1.2", "10.244.1.4", "10.244.1.5"}, "released 1 of 4 addresses; ready",
		}, {
			"all are live",
			"echo " + sandbox("live") + "; echo " + sandbox("leaked") + "; echo " + sandbox("young"), all, "released 0 of 4 addresses; ready",
		}, {
			"a list that breaks off is none: the hook asks again",
			`if mkdir "$0"; then echo "` + sandbox("another") + `"; exit 1; fi; echo ` + sandbox("live") + " " + sandbox("leaked"), all, "released 0 of 4 addresses; ready",
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			dir := t.TempDir()
			reserve(t, dir, "10.244.1.2", sandbox("live"), time.Hour)
			reserve(t, dir, "10.244.1.3", sandbox("leaked"), time.Hour)
			reserve(t, dir, "10.244.1.4", sandbox("young"), 0)
			reserve(t, dir, "10.244.1.5", "default-"+sandbox("nerdctl's"), time.Hour)
			status, said := embed(t, dir, "podnet", "sh", "-c", row.script, filepath.Join(t.TempDir(), "tried"))
			if status != 0 || !bytes.Contains(said, []byte(row.says)) {
				t.Errorf("exit status %d, and it said, without %q:\n%s", status, row.says, said)
			}
			if diff := cmp.Diff(row.want, addresses(t, dir)); diff != "" {
				t.Errorf("reservations afterwards (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, row := range []struct {
		reason string
		args   []string
		says   string
	}{
		{"nothing is said", nil, "usage: embed NETWORK COMMAND"},
		{"how to list the sandboxes is not said", []string{"podnet"}, "usage: embed NETWORK COMMAND"},
		{"a network is the name of a directory", []string{"../podnet", "true"}, "../podnet"},
	} {
		if status, said := embed(t, t.TempDir(), row.args...); status != 1 || !bytes.Contains(said, []byte(row.says)) {
			t.Errorf("%s: exit status %d, and it said, without %q:\n%s", row.reason, status, row.says, said)
		}
	}
}

// sandbox makes up a sandbox ID.
func sandbox(name string) string { return gctest.ContainerID(name) }

// embed runs the example to its end.
func embed(t *testing.T, dataDir string, args ...string) (status int, said []byte) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, args...)
	c.Env = append(os.Environ(), "EMBED_IS_MAIN=1", "DATA_DIR="+dataDir)
	said, _ = c.CombinedOutput() // ProcessState has the same result
	return c.ProcessState.ExitCode(), said
}

// reserve reserves an address with the plugin's own code, and dates it back by age.
func reserve(t *testing.T, dataDir, ip, containerID string, age time.Duration) {
	t.Helper()
	plugin, err := disk.New("podnet", dataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plugin.Close() }()
	if done, err := plugin.Reserve(containerID, "eth0", net.ParseIP(ip), "0"); err != nil || !done {
		t.Fatalf("reserving %s: %v, %v", ip, done, err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(disk.GetEscapedPath(filepath.Join(dataDir, "podnet"), ip), at, at); err != nil {
		t.Fatal(err)
	}
}

// addresses returns the reserved addresses.
func addresses(t *testing.T, dataDir string) []string {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(dataDir, "podnet"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range files {
		if net.ParseIP(f.Name()) != nil {
			all = append(all, f.Name())
		}
	}
	slices.Sort(all)
	return all
}
