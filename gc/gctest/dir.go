// SPDX-License-Identifier: Apache-2.0

// Package gctest helps to test programs that embed package gc: it makes a data directory of host-local with reservations of any
// age, and pods that live; it compares a report with what is expected; and it tests a source of your own ([TestSource]).
package gctest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/internal/uptime"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// ContainerID returns a container ID as runtimes make them for sandboxes, 64 hexadecimal digits: always the same one for a name.
func ContainerID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// A Dir is a data directory of host-local, which is removed when the test ends.
type Dir struct {
	Store *hostlocal.Store
	t     testing.TB
}

// NewDir returns an empty data directory. From the first one on the reconcilers of this process believe that the node has been up
// for a year, unless [Uptime] was called: a reservation from before the node's boot counts as young.
func NewDir(t testing.TB) *Dir {
	uptime.Replaced.CompareAndSwap(nil, up(365*24*time.Hour))
	return &Dir{hostlocal.New(t.TempDir()), t}
}

// Reserve reserves an address as host-local does, for the interface eth0 of a container. The network's directory is made if it is
// missing. A reservation of the same address is replaced. Most passes keep what is younger than [gc.DefaultMinAge].
func (d *Dir) Reserve(network, ip, containerID string, age time.Duration) {
	d.t.Helper()
	if addr, err := netip.ParseAddr(ip); err != nil || addr.String() != ip {
		d.t.Fatalf("reserving %q: host-local would not write this address so (%v)", ip, err)
	}
	d.Write(network, ip, containerID+"\r\neth0", age)
}

// Write writes a file of any content in a network's directory, such as one that is damaged.
func (d *Dir) Write(network, name, content string, age time.Duration) {
	d.t.Helper()
	path := filepath.Join(d.Store.DataDir(), network, name)
	then := time.Now().Add(-age)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, then, then))
	if err != nil {
		d.t.Fatal(err)
	}
}

// Uptime makes the reconcilers of this process believe that the node has been up for d, until the test ends. Tests that call it
// must not run in parallel. In a TestMain t may be nil; then it lasts until the process ends.
func Uptime(t testing.TB, d time.Duration) {
	before := uptime.Replaced.Swap(up(d))
	if t != nil {
		t.Cleanup(func() { uptime.Replaced.Store(before) })
	}
}

// up returns the uptime of a node that has been up for d.
func up(d time.Duration) *func() time.Duration {
	called := boottime.Since()
	since := func() time.Duration { return d + boottime.Since() - called }
	return &since
}
