// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// config is a configuration of host-local with these ranges.
func config(ranges string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"one","type":"bridge","ipam":{"type":"host-local","ranges":[%s]}}`, ranges)
}

// The capacity of a range set is the number of its addresses without the gateways.
func TestCapacity(t *testing.T) {
	for _, row := range []struct {
		reason, set string
		want        int64
	}{
		{"a subnet, whose first address is the gateway", `{"subnet":"10.9.1.0/29"}`, 5},
		{"a range without the gateway", `{"subnet":"10.9.1.0/24","rangeStart":"10.9.1.2","rangeEnd":"10.9.1.4"}`, 3},
		{"a range with the gateway", `{"subnet":"10.9.1.0/24","rangeStart":"10.9.1.2","rangeEnd":"10.9.1.4","gateway":"10.9.1.3"}`, 2},
		{"a single address", `{"subnet":"10.9.1.0/24","rangeStart":"10.9.1.2","rangeEnd":"10.9.1.2"}`, 1},
		{"two ranges", `{"subnet":"10.9.1.0/29"},{"subnet":"10.9.2.0/29"}`, 10},
	} {
		conf, _, err := allocator.LoadIPAMConfig(config("["+row.set+"]"), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := capacity(conf.Ranges[0]); got.Int64() != row.want {
			t.Errorf("%s: got %v, want %d", row.reason, got, row.want)
		}
	}
}

// Beside the delegate's error, STATUS has those of the ranges and the reservations.
func TestStatusFails(t *testing.T) {
	n := newNode(t)
	n.ownBin("cniserver", "host-local")
	if err := os.WriteFile(filepath.Join(n.bin, "bridge"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := n.newServer()
	n.reserve("one", "10.9.2.2", "a")
	for _, row := range []struct{ reason, ranges, dataDir, want string }{
		{"the ranges are invalid", `[{"subnet":"10.9.1"}]`, n.dataDir(), "reading the ranges"},
		{"the reservations can't be listed", `[{"subnet":"10.9.1.0/24"}]`, "/dev/null", "/dev/null"},
		{"the second range set has no free address", `[{"subnet":"10.9.1.0/30"}],[{"subnet":"10.9.2.0/30"}]`, n.dataDir(), "range set 1"},
	} {
		s.store = hostlocal.New(row.dataDir)
		d := &delegation{network: "one", plugin: "bridge", config: config(row.ranges)}
		if err := s.status(t.Context(), n.request("STATUS", ""), d); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want %q", row.reason, err, row.want)
		}
	}
	if err := s.status(endedContext{t.Context()}, n.request("STATUS", ""), n.delegation()); !errors.Is(err, context.Canceled) {
		t.Errorf("its time is over before the reservations are listed: %v; want %v", err, context.Canceled)
	}
}

// The delegate gets the path of the namespace for its own cleanup, unless there is none.
func TestDelegateGetsTheNamespace(t *testing.T) {
	n := newNode(t)
	n.ownBin("cniserver", "host-local")
	calls := filepath.Join(n.dir, "calls")
	script := fmt.Sprintf("#!/bin/sh\necho $CNI_COMMAND $CNI_NETNS >>%s\nexec %s/bridge\n", calls, cnitest.Bin())
	if err := os.WriteFile(filepath.Join(n.bin, "bridge"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	s := n.newServer()
	n.Make("c")
	for _, command := range []string{"ADD", "DEL"} {
		if _, err := s.handle(t.Context(), n.request(command, "c")); err != nil {
			t.Fatal(err)
		}
	}
	n.Remove("c")
	if _, err := s.handle(t.Context(), n.request("DEL", "c")); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(calls)
	path := cnitest.NetNS("c")
	if diff := cmp.Diff("ADD "+path+"\nDEL "+path+"\nDEL\n", string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	r := n.request("DEL", "c")
	r.Path = n.dir
	if err := s.detach(t.Context(), r, n.delegation()); err == nil || !strings.Contains(err.Error(), `find plugin "bridge"`) {
		t.Errorf("without the delegate: %v", err)
	}
}
