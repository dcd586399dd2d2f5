// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func TestMain(m *testing.M) { os.Exit(plugintest.Main(m)) }

// Six addresses of each family.
var (
	six4 = plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.7"}
	six6 = plugintest.Range{Subnet: "fd00:1::/64", Start: "fd00:1::2", End: "fd00:1::7"}
)

// poolFull is part of the plugin's error when all addresses are reserved.
const poolFull = "no IP addresses available in range set"

// someone is a live pod without a reservation here. With it an answer is not empty (R9).
var someone = podsource.Pod{ContainerIDs: []string{"someone-else"}}

// reconcilerOf returns a reconciler for the plugin's network, on a node that has been up for a
// day. No owner is foreign to it, so that names can stand for IDs.
func reconcilerOf(t testing.TB, p *plugintest.Plugin, source podsource.Source, opts gc.Options) *gc.Reconciler {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	opts.AllowForeign = []string{"*"}
	r, err := gc.New(hostlocal.New(p.DataDir), []string{p.Network}, source, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// add runs ADD, which must give an address of each range.
func add(t *testing.T, p *plugintest.Plugin, containerID, ifName string) []netip.Addr {
	t.Helper()
	ips, err := p.Add(t.Context(), containerID, ifName)
	if err != nil || len(ips) != len(p.Ranges) {
		t.Fatalf("ADD of %s gave %v, %v", containerID, ips, err)
	}
	return ips
}

// reservations returns the content of the files that are reservations, by name. It does not use
// the library.
func reservations(t *testing.T, p *plugintest.Plugin) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(p.Dir(), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip") {
			m[e.Name()] = string(content)
		}
	}
	return m
}

// name returns the file name of an address.
func name(ip netip.Addr) string { return filepath.Base(disk.GetEscapedPath("", ip.String())) }

// age sets the time of reservations back to that long ago.
func age(t *testing.T, p *plugintest.Plugin, by time.Duration, ips ...netip.Addr) {
	t.Helper()
	for _, ip := range ips {
		then := time.Now().Add(-by)
		if err := os.Chtimes(p.File(ip), then, then); err != nil {
			t.Error(err)
		}
	}
}

func wantDiff(t *testing.T, what, reason string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("%s: %s (-want +got):\n%s", what, reason, diff)
	}
}

func wantError(t *testing.T, err error, part, reason string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("got error %v, want one with %q: %s", err, part, reason)
	}
}

// containerID returns a container ID in the form of a runtime's.
func containerID(n int) string { return fmt.Sprintf("%064x", n) }

// inBackground runs f, and closes the channel when f has returned. The test waits for that.
func inBackground(t *testing.T, f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	t.Cleanup(func() { <-done })
	return done
}
