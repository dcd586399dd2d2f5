// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// TestAnswerNetworksWithSeveralADDs: namespaces without address at the paths of ADDs in
// flight don't count, and all others do.
func TestAnswerNetworksWithSeveralADDs(t *testing.T) {
	const why = "shows no address"
	for _, row := range []struct {
		reason      string
		unaddressed []uint64
		speaks      bool
	}{
		{"all have addresses", nil, true},
		{"those of both ADDs, two of them at one path", []uint64{1, 2, 4}, true},
		{"one that no ADD sets up", []uint64{2, 3}, false},
	} {
		s := &scan{proc: t.TempDir(), unaddressed: make(map[uint64]string), mountedAt: map[string][]uint64{"/run/netns/a": {4}, "/run/netns/b": {1, 2}},
			inFlight: []cniADD{{netNS: "/run/netns/a", inNodePIDNS: true}, {netNS: "/var/lib/../run/netns/b", inNodePIDNS: true}}}
		for _, inode := range row.unaddressed {
			s.unaddressed[inode] = why
		}
		of, note := s.answerNetworks([]string{"n", "m"})
		if speaks := len(of) == 2; speaks != row.speaks || row.speaks == strings.Contains(note, why) {
			t.Errorf("%s: speaks of %v: %q", row.reason, of, note)
		}
	}
}

// TestValidID: container IDs as CNI allows them.
func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "z": true, "A": true, "Z": true, "0": true, "9": true, "a_b": true, "a.b": true, "a-b": true,
		"": false, "_a": false, ".a": false, "-a": false, "a/b": false, "a b": false, "a{": false, "a`": false, "a[": false, "a@": false, "a:": false,
	} {
		if got := validID(id); got != want {
			t.Errorf("%q: %t, want %t", id, got, want)
		}
	}
}

// TestDumpOfSeveral: all addresses count except local ones, and an invalid address is
// an error.
func TestDumpOfSeveral(t *testing.T) {
	address := func(text string, scope int) netlink.Addr {
		return netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(text)}, Scope: scope}
	}
	for _, row := range []struct {
		reason string
		list   []netlink.Addr
		want   []string
		err    bool
	}{
		{"several, one of them twice", []netlink.Addr{address("10.0.0.3", 0), address("10.0.0.2", 0), address("10.0.0.3", 0)}, []string{"10.0.0.2", "10.0.0.3"}, false},
		{"loopback and link-local", []netlink.Addr{address("127.0.0.1", unix.RT_SCOPE_HOST), address("fe80::1", unix.RT_SCOPE_LINK)}, nil, false},
		{"link scope, and not a link-local address", []netlink.Addr{address("10.0.0.2", unix.RT_SCOPE_LINK)}, []string{"10.0.0.2"}, false},
		{"link-local, and global scope", []netlink.Addr{address("169.254.0.2", 0)}, []string{"169.254.0.2"}, false},
		{"the second lacks its address", []netlink.Addr{address("10.0.0.2", 0), {}}, nil, true},
		{"the second is invalid", []netlink.Addr{address("10.0.0.2", 0), {IPNet: &net.IPNet{IP: net.IP{1, 2, 3}}}}, nil, true},
	} {
		ips, err := dump(func(netlink.Link, int) ([]netlink.Addr, error) { return row.list, nil })
		var want []netip.Addr
		for _, text := range row.want {
			want = append(want, netip.MustParseAddr(text))
		}
		if diff := cmp.Diff(want, ips, cmpopts.EquateComparable(netip.Addr{})); diff != "" || (err != nil) != row.err {
			t.Errorf("%s: %v (-want +got):\n%s", row.reason, err, diff)
		}
	}
	times := 0
	if _, err := dump(func(netlink.Link, int) ([]netlink.Addr, error) { times++; return nil, nil }); err != nil || times != 1 {
		t.Errorf("a list that does not change was read %d times: %v", times, err)
	}
	times = 0
	_, err := dump(func(netlink.Link, int) ([]netlink.Addr, error) { times++; return nil, netlink.ErrDumpInterrupted })
	if times != 5 || !errors.Is(err, podsource.ErrIncomplete) {
		t.Errorf("a list that changes all the time was read %d times: %v", times, err)
	}
}

// TestReadStat: an invalid stat file is an error, and not a start at the node's boot.
func TestReadStat(t *testing.T) {
	const whole = "7 (a) b) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711" // the start is the 20th field after the name
	for _, row := range []struct {
		reason, text string
		ok           bool
	}{
		{"as the kernel writes it", whole, true},
		{"one field less", strings.TrimSuffix(whole, " 4711"), false},
		{"no name", strings.ReplaceAll(whole, ")", ""), false},
		{"a start that is not a number", strings.Replace(whole, "4711", "x", 1), false},
		{"nothing", "", false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		since, comm, err := startTime(dir)
		if (err == nil) != row.ok {
			t.Errorf("%s: error %v", row.reason, err)
		}
		if row.ok && (since.Milliseconds() != 47110 || comm != "a) b") {
			t.Errorf("%s: got %v and %q", row.reason, since, comm)
		}
	}
}

// TestClaims: an ADD counts if its process ended meanwhile, and does not if it has run
// for too long. A process that can't be read is an error (R2).
func TestClaims(t *testing.T) {
	up := boottime.Since()
	stat := func(started time.Duration) string {
		return fmt.Sprintf("7 (bridge) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 %d", started/(time.Second/ticks))
	}
	for _, row := range []struct {
		reason, stat string // none: the process has ended
		want         string
		err          bool
	}{
		{"ended since", "", "process 7", false},
		{"in flight", stat(up), "process 7 (bridge)", false},
		{"for longer than an ADD takes", stat(up - 2*time.Hour), "", false},
		{"can't be read", "garbage", "", true},
	} {
		s := &scan{proc: t.TempDir(), adds: []cniADD{{pid: "7", containerID: "a"}}}
		if row.stat != "" {
			if err := errors.Join(os.Mkdir(filepath.Join(s.proc, "7"), 0o755), os.WriteFile(filepath.Join(s.proc, "7", "stat"), []byte(row.stat), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		claims, err := s.claims(time.Hour)
		if claims["a"] != row.want || (err != nil) != row.err || (len(s.inFlight) == 1) != (row.want != "") {
			t.Errorf("%s: %v, %d in flight, %v", row.reason, claims, len(s.inFlight), err)
		}
	}
}

// The list of a repeated dump counts, and not the interrupted one before it, which lacks an
// address that is in use.
func TestDumpRepeated(t *testing.T) {
	address := func(text string) netlink.Addr { return netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(text)}} }
	calls := 0
	ips, err := dump(func(netlink.Link, int) ([]netlink.Addr, error) {
		if calls++; calls == 1 {
			return []netlink.Addr{address("10.0.0.2")}, netlink.ErrDumpInterrupted
		}
		return []netlink.Addr{address("10.0.0.2"), address("10.0.0.3")}, nil
	})
	if err != nil || len(ips) != 2 {
		t.Errorf("got %v, %v", ips, err)
	}
}
