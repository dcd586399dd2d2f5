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
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

func TestNew(t *testing.T) {
	dataDir := t.TempDir()
	for _, row := range []struct {
		reason  string
		network string
		good    bool
	}{
		{"a usual name", "podnet", true},
		{"one character", "a", true},
		{"a digit first", "0net", true},
		{"all that the CNI spec allows", "Az09_.-", true},
		{"dots inside lead nowhere", "a..b", true},
		{"a dot at the end", "a.", true},
		{"the name of a plugin's file is a name", "lock", true},

		{"nothing: it would be the data dir itself", "", false},
		{"this folder", ".", false},
		{"the folder above", "..", false},
		{"out of the data dir", "../etc", false},
		{"two folders", "a/b", false},
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
		s, err := New(dataDir, row.network)
		if got := err == nil; got != row.good {
			t.Errorf("New(%q): %v: %s", row.network, err, row.reason)
			continue
		}
		if err != nil {
			if s != nil {
				t.Errorf("New(%q) gives a store beside the error %v", row.network, err)
			}
			if want := fmt.Sprintf("network name %q", row.network); !strings.Contains(err.Error(), want) {
				t.Errorf("New(%q): %q does not say %q", row.network, err, want)
			}
			continue
		}
		if s.Network() != row.network || s.DataDir() != dataDir {
			t.Errorf("New(%q, %q) is of %q, %q", dataDir, row.network, s.DataDir(), s.Network())
		}
	}
	if diff := cmp.Diff([]string{"."}, slices.Collect(keys(tree(t, dataDir)))); diff != "" {
		t.Errorf("New touched the disk (-want +got):\n%s", diff)
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
		{"it is cleaned, so that two spellings are one folder", "/run//cni/./x/../networks/", "/run/cni/networks"},
		{"it may be relative", "networks", "networks"},
	} {
		s, err := New(row.dataDir, "n")
		if err != nil {
			t.Errorf("New(%q): %v: %s", row.dataDir, err, row.reason)
			continue
		}
		if want := filepath.Clean(row.want); s.DataDir() != want {
			t.Errorf("New(%q) is of %q, want %q: %s", row.dataDir, s.DataDir(), want, row.reason)
		}
	}
}

func TestNetworks(t *testing.T) {
	root := t.TempDir()
	if got, err := Networks(filepath.Join(root, "missing")); got != nil || err != nil {
		t.Errorf("a missing data dir: %v, %v, want none and no error", got, err)
	}
	for _, name := range []string{"podnet", "b-2", "Az09_.-x", ".hidden", "-odd", "white space", "_odd"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "file"), "")
	write(t, filepath.Join(root, "10.0.0.1"), "abc\r\neth0")
	before := tree(t, root)
	got, err := Networks(root)
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
		return // what is below a file does not exist there, says the system
	}
	if got, err := Networks(filepath.Join(root, "file")); err == nil || !strings.Contains(err.Error(), "listing networks") {
		t.Errorf("a data dir that is a file: %v, %v, want an error that says what was done", got, err)
	}
}

func TestMissingFolder(t *testing.T) {
	for _, row := range []struct{ reason, dataDir string }{
		{"the network was never used", "."},
		{"no network was ever used", "missing/deep"},
	} {
		root := t.TempDir()
		s, err := New(filepath.Join(root, row.dataDir), "podnet")
		if err != nil {
			t.Fatal(err)
		}
		if rs, err := s.Scan(t.Context()); len(rs) != 0 || err != nil {
			t.Errorf("Scan: %v, %v: %s", rs, err, row.reason)
		}
		if rs, err := s.List(t.Context()); len(rs) != 0 || err != nil {
			t.Errorf("List: %v, %v: %s", rs, err, row.reason)
		}
		rs := []Reservation{{IP: netip.MustParseAddr("10.0.0.1")}}
		if failures, err := s.ReadOwners(t.Context(), rs, all, nil); len(failures) != 0 || err != nil || rs[0].Owner != Vanished {
			t.Errorf("ReadOwners: %v, %v, %v, want it vanished: %s", rs[0].Owner, failures, err, row.reason)
		}
		rs[0].Owner, rs[0].ContainerID = Owned, "abc"
		if done, err := s.Release(t.Context(), rs...); err != nil || done.Outcomes[0] != Gone {
			t.Errorf("Release: %v, %v, want it gone: %s", done.Outcomes, err, row.reason)
		}
		if diff := cmp.Diff([]string{"."}, slices.Collect(keys(tree(t, root)))); diff != "" {
			t.Errorf("something was created (-want +got): %s\n%s", row.reason, diff)
		}
	}
}

func TestFolderThatIsAFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what is below a file does not exist there, says the system")
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "file"), "")
	for _, row := range []struct{ reason, dataDir, network string }{
		{"the data dir is a file", filepath.Join(root, "file"), "podnet"},
		{"the network's folder is a file", root, "file"},
	} {
		s, err := New(row.dataDir, row.network)
		if err != nil {
			t.Fatal(err)
		}
		rs := []Reservation{{IP: netip.MustParseAddr("10.0.0.1")}}
		_, scanErr := s.Scan(t.Context())
		_, listErr := s.List(t.Context())
		_, readErr := s.ReadOwners(t.Context(), rs, all, nil)
		done, releaseErr := s.Release(t.Context(), rs...)
		for what, err := range map[string]error{"Scan": scanErr, "List": listErr, "ReadOwners": readErr, "Release": releaseErr} {
			if err == nil || !strings.Contains(err.Error(), s.dir()) || !strings.Contains(err.Error(), "not a directory") {
				t.Errorf("%s: %v, want an error that names the folder and the trouble: %s", what, err, row.reason)
			}
		}
		if rs[0].Owner != Unread || done.Outcomes[0] != NotTried {
			t.Errorf("%v and %v, want it unread and not tried: %s", rs[0].Owner, done.Outcomes[0], row.reason)
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
	write(t, filepath.Join(s.dir(), "lock"), "")
	write(t, filepath.Join(s.dir(), "last_reserved_ip.0"), "10.0.0.10")
	before := tree(t, s.DataDir())

	ip := netip.MustParseAddr
	want := []Reservation{
		{IP: ip("9.0.0.200"), Owner: Empty, ReservedAt: then},
		{IP: ip("10.0.0.2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{IP: ip("10.0.0.3"), Owner: Malformed, ReservedAt: then},
		{IP: ip("10.0.0.10"), ContainerID: "def", Owner: Owned, ReservedAt: then},
		{IP: ip("fd00::2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{IP: ip("fd00::10"), ContainerID: "ghi", IfName: "net1", Owner: Owned, ReservedAt: then},
	}
	if diff := cmp.Diff(want, list(t, s), equal); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	for i, r := range want {
		want[i] = Reservation{IP: r.IP}
	}
	if diff := cmp.Diff(want, scan(t, s), equal); diff != "" {
		t.Errorf("Scan reads names alone (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, tree(t, s.DataDir())); diff != "" {
		t.Errorf("listing touched the disk (-before +after):\n%s", diff)
	}
}

// TestListCreatesNothing: no lock, and no folder either.
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

// TestListAll: however many there are, each is listed once, in the order of the
// addresses. The counts are those around which the list grows, and one that
// takes several reads of the directory.
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
			t.Fatalf("of %d (-want +got):\n%s", n, diff)
		}
		for i, r := range rs {
			if want := fmt.Sprintf("id%d", i); r.ContainerID != want || r.IfName != "eth0" || r.Owner != Owned {
				t.Fatalf("of %d, %v is of %q, %q, %v, want %q", n, r.IP, r.ContainerID, r.IfName, r.Owner, want)
			}
		}
	}
}

func TestReadOwners(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	rs := scan(t, s)
	if err := os.Remove(at(s, "10.0.0.3")); err != nil {
		t.Fatal(err)
	}
	rs[3].Owner = Malformed // as if it had been read before

	var asked []int
	failures, err := s.ReadOwners(t.Context(), rs, func(i int) bool {
		asked = append(asked, i)
		return i > 0
	}, nil)
	if len(failures) != 0 || err != nil {
		t.Fatalf("ReadOwners: %v, %v", failures, err)
	}
	if diff := cmp.Diff([]int{0, 1, 2}, asked); diff != "" {
		t.Errorf("asked for what was read already (-want +got):\n%s", diff)
	}
	want := []Reservation{
		{IP: netip.MustParseAddr("10.0.0.1"), Owner: Unread},
		{IP: netip.MustParseAddr("10.0.0.2"), Owner: Owned, ContainerID: "abc", IfName: "eth0", ReservedAt: rs[1].ReservedAt},
		{IP: netip.MustParseAddr("10.0.0.3"), Owner: Vanished},
		{IP: netip.MustParseAddr("10.0.0.4"), Owner: Malformed},
	}
	if diff := cmp.Diff(want, rs, equal); diff != "" {
		t.Errorf("ReadOwners (-want +got):\n%s", diff)
	}
	if rs[1].ReservedAt.IsZero() || !rs[0].ReservedAt.IsZero() {
		t.Errorf("ReservedAt is %v of what was read and %v of what was not", rs[1].ReservedAt, rs[0].ReservedAt)
	}
}

// TestReadOwnersByName: the caller may lend its own strings, and turn down owners
// that are of no interest to it. Those stay Unread and can be read later.
func TestReadOwnersByName(t *testing.T) {
	s := newStore(t)
	files := []string{"abc\r\neth0", "def\r\nnet1", "abc", "", "abc\r\nnet1", "not an ID", "ghi\r\neth0", "abc\r\neth0"}
	ip := netip.MustParseAddr("10.0.0.1")
	for _, content := range files {
		write(t, at(s, ip.String()), content)
		ip = ip.Next()
	}
	owners := func(rs []Reservation) (all []string) {
		for _, r := range rs {
			all = append(all, fmt.Sprintf("%s %s %s", r.Owner, r.ContainerID, r.IfName))
			if (r.Owner == Unread) != r.ReservedAt.IsZero() {
				t.Errorf("%v is %v and was reserved at %v", r.IP, r.Owner, r.ReservedAt)
			}
		}
		return all
	}

	rs := scan(t, s)
	mine := strings.Repeat("abc", 2)[:3] // a string of its own
	var asked []string
	failures, err := s.ReadOwners(t.Context(), rs, all, func(id []byte) (string, bool) {
		asked = append(asked, string(id))
		if string(id) == mine {
			return mine, true
		}
		return "nonsense", false
	})
	if len(failures) != 0 || err != nil {
		t.Fatalf("ReadOwners: %v, %v", failures, err)
	}
	if diff := cmp.Diff([]string{"abc", "def", "abc", "abc", "ghi", "abc"}, asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	want := []string{
		"owned abc eth0", "unread  ", "owned abc ", "empty  ", "owned abc net1", "malformed  ", "unread  ", "owned abc eth0",
	}
	if diff := cmp.Diff(want, owners(rs)); diff != "" {
		t.Errorf("those of interest (-want +got):\n%s", diff)
	}
	for _, r := range rs {
		if r.ContainerID == mine && unsafe.StringData(r.ContainerID) != unsafe.StringData(mine) {
			t.Errorf("%v has a copy of the caller's string", r.IP)
		}
	}

	if done, err := s.Release(t.Context(), rs[1]); done.Outcomes[0] != Failed || !errors.Is(err, errUnread) {
		t.Errorf("Release of one turned down: %v, %v, want it kept", done.Outcomes, err)
	}
	if failures, err := s.ReadOwners(t.Context(), rs, all, nil); len(failures) != 0 || err != nil {
		t.Fatalf("ReadOwners of the rest: %v, %v", failures, err)
	}
	want[1], want[6] = "owned def net1", "owned ghi eth0"
	if diff := cmp.Diff(want, owners(rs)); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if done, err := s.Release(t.Context(), rs[1]); done.Outcomes[0] != Released || err != nil {
		t.Errorf("Release of it once it was read: %v, %v", done.Outcomes, err)
	}
}

// TestListEndsWithItsContext: nothing is taken for read that was not.
func TestListEndsWithItsContext(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	ended, cancel := context.WithCancel(t.Context())
	cancel()

	if rs, err := s.Scan(ended); rs != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), s.dir()) {
		t.Errorf("Scan: %v, %v", rs, err)
	}
	if rs, err := s.List(ended); rs != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("List: %v, %v", rs, err)
	}
	rs := scan(t, s)
	asked := 0
	failures, err := s.ReadOwners(hookContext{Context: t.Context(), err: func() error {
		if asked++; asked > 2 {
			return context.Canceled
		}
		return nil
	}}, rs, all, nil)
	if len(failures) != 0 || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), s.dir()) {
		t.Errorf("ReadOwners: %v, %v", failures, err)
	}
	if diff := cmp.Diff([]OwnerState{Owned, Owned, Unread}, states(rs)); diff != "" {
		t.Errorf("ReadOwners (-want +got):\n%s", diff)
	}
	asked = 0
	if rs, err := s.List(hookContext{Context: t.Context(), err: func() error {
		if asked++; asked > 2 {
			return context.Canceled
		}
		return nil
	}}); rs != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("List that is cut short: %v, %v, want no half list", rs, err)
	}
}

func states(rs []Reservation) []OwnerState {
	var got []OwnerState
	for _, r := range rs {
		got = append(got, r.Owner)
	}
	return got
}

func TestWords(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"unread": Unread, "owned": Owned, "empty": Empty, "malformed": Malformed,
		"unreadable": Unreadable, "replaced": Replaced, "vanished": Vanished,
		"not-tried": NotTried, "released": Released, "changed": Changed, "gone": Gone, "failed": Failed,
	} {
		if got.String() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if OwnerState(99).String() != "unknown" || Outcome(99).String() != "unknown" {
		t.Errorf("a state or an outcome without a word: %q, %q", OwnerState(99), Outcome(99))
	}
}
