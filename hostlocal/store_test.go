// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestNetworkNames: a directory is a network if CNI allows its name. No such name leads out
// of the data directory.
func TestNetworkNames(t *testing.T) {
	for _, row := range []struct {
		reason string
		name   string
		good   bool
	}{
		{"a common name", "podnet", true},
		{"one character", "a", true},
		{"a digit first", "0net", true},
		{"all that the CNI spec allows", "Az09_.-", true},
		{"dots inside lead nowhere", "a..b", true},
		{"a dot at the end", "a.", true},
		{"the name of a plugin's file is a name", "lock", true},

		{"empty: it would be the data dir itself", "", false},
		{"this directory", ".", false},
		{"the directory above", "..", false},
		{"out of the data dir", "../etc", false},
		{"two directories", "a/b", false},
		{"out again", "a/..", false},
		{"a separator at the end", "a/", false},
		{"absolute", "/etc", false},
		{"Windows' separator", `a\b`, false},
		{"Windows' streams and drives", "c:a", false},
		{"hidden", ".hidden", false},
		{"'-' first", "-a", false},
		{"'_' first", "_a", false},
		{"white space", "a b", false},
		{"a newline at the end", "a\n", false},
		{"a NUL", "a\x00", false},
		{"letters are ASCII", "ä", false},
	} {
		if got := ValidNetwork(row.name); got != row.good {
			t.Errorf("ValidNetwork(%q) = %t, want %t: %s", row.name, got, row.good, row.reason)
		}
	}
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestNewDataDir(t *testing.T) {
	for _, row := range []struct{ reason, dataDir, want string }{
		{"nothing is the default", "", DefaultDataDir},
		{"an agent's mount", "/run/antrea/cni/networks", "/run/antrea/cni/networks"},
		{"it is cleaned, so that two spellings are one", "/run//cni/./x/../networks/", "/run/cni/networks"},
		{"it may be relative", "networks", "networks"},
	} {
		s := New(row.dataDir)
		if want := filepath.Clean(row.want); s.DataDir() != want {
			t.Errorf("New(%q) is of %q, want %q: %s", row.dataDir, s.DataDir(), want, row.reason)
		}
	}
}

func TestNetworks(t *testing.T) {
	root := t.TempDir()
	if got, err := New(filepath.Join(root, "missing")).Networks(); got != nil || err != nil {
		t.Errorf("a missing data dir: %v, %v, want no networks and no error", got, err)
	}
	for _, name := range []string{"podnet", "b-2", "Az09_.-x", ".hidden", "-odd", "white space", "_odd"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "file"), "")
	write(t, filepath.Join(root, "10.0.0.1"), "abc\r\neth0")
	before := tree(t, root)
	got, err := New(root).Networks()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"Az09_.-x", "b-2", "podnet"}, got); diff != "" {
		t.Errorf("files and odd names are no networks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, tree(t, root)); diff != "" {
		t.Errorf("Networks touched the disk (-before +after):\n%s", diff)
	}

	if runtime.GOOS == "windows" {
		return // Windows reports that a path below a file does not exist
	}
	if got, err := New(filepath.Join(root, "file")).Networks(); err == nil || !strings.Contains(err.Error(), "listing networks") {
		t.Errorf("a data dir that is a file: %v, %v, want an error with the prefix %q", got, err, "listing networks")
	}
}

func TestMissingDirectory(t *testing.T) {
	for _, row := range []struct{ reason, dataDir string }{
		{"the network was never used", "."},
		{"no network was ever used", "missing/dir"},
	} {
		root := t.TempDir()
		s := New(filepath.Join(root, row.dataDir))
		if rs, err := reservations(s.List(t.Context())); len(rs) != 0 || err != nil {
			t.Errorf("List: %v, %v: %s", rs, err, row.reason)
		}
		r := &Reservation{Network: network, IP: netip.MustParseAddr("10.0.0.1"), Owner: Owned, ContainerID: "abc"}
		if result, err := s.Release(t.Context(), r); err != nil || result.Outcomes[0] != Gone {
			t.Errorf("Release: %v, %v, want it gone: %s", result.Outcomes, err, row.reason)
		}
		if diff := cmp.Diff([]string{"."}, slices.Collect(keys(tree(t, root)))); diff != "" {
			t.Errorf("something was created (-want +got): %s\n%s", row.reason, diff)
		}
	}
}

func TestDirectoryThatIsAFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows reports that a path below a file does not exist")
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "file"), "")
	for _, row := range []struct {
		reason, dataDir, network string
		lists                    bool
	}{
		{"the data dir is a file", filepath.Join(root, "file"), network, false},
		{"the data dir is below a file", filepath.Join(root, "file", "x"), network, false},
		{"the network's directory is a file, so there is no such network", root, "file", true},
	} {
		s := New(row.dataDir)
		rs, listErr := reservations(s.List(t.Context()))
		result, releaseErr := s.Release(t.Context(), &Reservation{Network: row.network, IP: netip.MustParseAddr("10.0.0.1"), Owner: Owned})
		if len(rs) > 0 || row.lists && listErr != nil {
			t.Errorf("List: %v, %v: %s", addresses(rs), listErr, row.reason)
		}
		for what, err := range map[string]error{"List": listErr, "Release": releaseErr} {
			if what == "List" && row.lists {
				continue
			}
			if err == nil || !strings.Contains(err.Error(), s.DataDir()) || !strings.Contains(err.Error(), "not a directory") {
				t.Errorf("%s: %v, want an error that names the directory and the reason: %s", what, err, row.reason)
			}
		}
		if result.Outcomes[0] != NotTried {
			t.Errorf("%v, want it not tried: %s", result.Outcomes[0], row.reason)
		}
	}
}

func TestList(t *testing.T) {
	s := newStore(t)
	then := time.Date(2024, 2, 29, 12, 30, 0, 0, time.UTC)
	for ip, content := range map[string]string{
		"fd00::2":   "abc\r\neth0",
		"10.0.0.10": "def",
		"10.0.0.2":  "abc\r\neth0",
		"9.0.0.200": "",
		"10.0.0.3":  "one\ntwo\nthree",
		"fd00::10":  "ghi\r\nnet1\n",
	} {
		write(t, at(s, ip), content)
		if err := os.Chtimes(at(s, ip), time.Time{}, then); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dirOf(s), "lock"), "")
	write(t, filepath.Join(dirOf(s), "last_reserved_ip.0"), "10.0.0.10")
	before := tree(t, s.DataDir())

	ip := netip.MustParseAddr
	want := []Reservation{
		{Network: network, IP: ip("9.0.0.200"), Owner: Empty, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.3"), Owner: Malformed, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.10"), ContainerID: "def", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("fd00::2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("fd00::10"), ContainerID: "ghi", IfName: "net1", Owner: Owned, ReservedAt: then},
	}
	if diff := cmp.Diff(want, list(t, s), equal); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, tree(t, s.DataDir())); diff != "" {
		t.Errorf("listing touched the disk (-before +after):\n%s", diff)
	}
}

// TestListCreatesNothing: neither a lock nor a directory.
func TestListCreatesNothing(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	before := tree(t, s.DataDir())
	list(t, s)
	if done, err := s.Release(t.Context()); len(done.Outcomes) != 0 || err != nil {
		t.Errorf("releasing nothing: %v, %v", done, err)
	}
	if diff := cmp.Diff(before, tree(t, s.DataDir())); diff != "" {
		t.Errorf("something was touched (-before +after):\n%s", diff)
	}
}

// TestListAll: each reservation is listed once, in the order of the addresses. The counts
// are those around which the list grows, and one that takes several system calls to read.
func TestListAll(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 512, 513, 5120} {
		s := newStore(t)
		var want []string
		ip := netip.MustParseAddr("10.0.0.250")
		for range n {
			want = append(want, ip.String())
			ip = ip.Next()
		}
		for i, ip := range want {
			write(t, at(s, ip), fmt.Sprintf("id%d\r\neth0", i))
		}
		rs := list(t, s)
		if diff := cmp.Diff(want, addresses(rs)); diff != "" {
			t.Fatalf("%d reservations (-want +got):\n%s", n, diff)
		}
		for i, r := range rs {
			if want := fmt.Sprintf("id%d", i); r.ContainerID != want || r.IfName != "eth0" || r.Owner != Owned {
				t.Fatalf("%d reservations: the owner of %v is %q, %q, %v, want %q", n, r.IP, r.ContainerID, r.IfName, r.Owner, want)
			}
		}
	}
}

// TestListNetworks: all networks are listed, sorted, including one without reservations and
// two with the same address.
func TestListNetworks(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.2", "10.0.0.1")
	addNetwork(t, s, "none")
	for network, ips := range map[string][]string{"a": {"10.0.0.9", "fd00::1"}, "podnet-2": {"10.0.0.1"}, "Z": {"10.1.0.1"}, ".hidden": {"10.2.0.1"}} {
		path := addNetwork(t, s, network)
		for _, ip := range ips {
			write(t, filepath.Join(path, fileName(netip.MustParseAddr(ip), colon)), "abc\r\neth0")
		}
	}
	write(t, filepath.Join(s.DataDir(), "10.3.0.1"), "abc\r\neth0")
	want := []string{
		"Z 10.1.0.1", "a 10.0.0.9", "a fd00::1", "podnet 10.0.0.1", "podnet 10.0.0.2", "podnet-2 10.0.0.1",
	}
	if diff := cmp.Diff(want, files(list(t, s))); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
}

// TestListNetworkVanishes: a network that is removed while List runs is left out, and the
// others are listed.
func TestListNetworkVanishes(t *testing.T) {
	for _, row := range []struct {
		reason string
		// The directory is removed at this call of Done, or of Err.
		done, err int
	}{
		{"before its addresses are read", 1, 0},
		{"before any owner is read", 0, 1},
		{"before its owners are read", 0, 2},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1")
		for _, network := range []string{"a", "z"} {
			write(t, filepath.Join(addNetwork(t, s, network), "10.0.0.1"), "abc\r\neth0")
		}
		remove := func() {
			if err := os.RemoveAll(dirOf(s)); err != nil {
				t.Error(err)
			}
		}
		done := atCall(row.done, remove)
		rs, err := reservations(s.List(hookContext{Context: t.Context(), done: func() { _ = done() }, err: atCall(row.err, remove)}))
		if diff := cmp.Diff([]string{"a 10.0.0.1", "z 10.0.0.1"}, files(rs)); diff != "" || err != nil {
			t.Errorf("List: %v: %s (-want +got):\n%s", err, row.reason, diff)
		}
	}
}

// TestIdentity: the identity is the same while nothing happens to the file, and differs from
// those of other files of the name.
func TestIdentity(t *testing.T) {
	s := newStore(t)
	known := map[Identity]string{new(Reservation).Identity(): "a reservation that List did not return"}
	for _, row := range []struct{ reason, content string }{
		{"the first file", "abc\r\neth0"},
		{"another owner", "abcd\r\neth0"},
		{"cut short", "abc"},
	} {
		write(t, at(s, "10.0.0.1"), row.content)
		first, second := list(t, s)[0].Identity(), list(t, s)[0].Identity()
		if first != second {
			t.Errorf("the identity of an unchanged file changed: %s", row.reason)
		}
		if other, ok := known[first]; ok {
			t.Errorf("%s: the identity is that of %s", row.reason, other)
		}
		known[first] = row.reason
	}
}

// TestListEndsWithItsContext: a List that did not read everything is an error.
func TestListEndsWithItsContext(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	ended, cancel := context.WithCancel(t.Context())
	cancel()

	if rs, err := reservations(s.List(ended)); rs != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), s.DataDir()) {
		t.Errorf("List: %v, %v", rs, err)
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if rs, err := reservations(newStore(t).List(late)); rs != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("List of a network without reservations: %v, %v", rs, err)
	}
	if rs, err := reservations(s.List(hookContext{Context: ended, err: func() error { return nil }})); rs != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("List with a context that has ended and returns no error: %v, %v", rs, err)
	}
	asked := 0
	if rs, err := reservations(s.List(hookContext{Context: t.Context(), err: func() error {
		if asked++; asked > 2 {
			return context.Canceled
		}
		return nil
	}})); rs != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("List that is cut short: %v, %v, want no list", rs, err)
	}
	asked = 0
	if _, err := reservations(s.List(hookContext{Context: t.Context(), err: func() error { asked++; return nil }})); err != nil || asked != 3 {
		t.Errorf("List: %v; %d calls of the context, want one before each owner", err, asked)
	}
	write(t, filepath.Join(addNetwork(t, s, "a"), "10.0.0.1"), "abc\r\neth0")
	asked = 0
	if rs, err := reservations(s.List(hookContext{Context: t.Context(), err: func() error {
		if asked++; asked == 1 {
			return context.Canceled
		}
		return nil
	}})); rs != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("List that fails in the first of two networks: %v, %v", rs, err)
	}
}

// TestListOfTwoNetworks: each network's reservations have its name, and all are
// sorted by network, then by address.
func TestListOfTwoNetworks(t *testing.T) {
	s := newStore(t)
	other := addNetwork(t, s, "other")
	want := map[string][]string{network: nil, "other": nil}
	ip := netip.MustParseAddr("10.0.0.1")
	for i := range 12 {
		name, path := network, at(s, ip.String())
		if i%3 == 0 {
			name, path = "other", filepath.Join(other, ip.String())
		}
		write(t, path, fmt.Sprintf("container%d\r\neth%d", i, i%3))
		want[name] = append(want[name], fmt.Sprintf("%s %v container%d eth%d", name, ip, i, i%3))
		ip = ip.Next()
	}
	var got []string
	for _, r := range list(t, s) {
		got = append(got, fmt.Sprintf("%s %v %s %s", r.Network, r.IP, r.ContainerID, r.IfName))
		if r.Owner != Owned || r.ReservedAt.IsZero() {
			t.Errorf("%v is %v, reserved at %v", r.IP, r.Owner, r.ReservedAt)
		}
	}
	if diff := cmp.Diff(slices.Concat(want["other"], want[network]), got); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
}

func states(rs []Reservation) []OwnerState {
	var got []OwnerState
	for _, r := range rs {
		got = append(got, r.Owner)
	}
	return got
}
