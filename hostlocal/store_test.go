// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestNetworkNames: a directory is a network if CNI allows its name. No such name leads out
// of the data directory.
func TestNetworkNames(t *testing.T) {
	for _, row := range []struct {
		reason string
		name   string
		good   bool
	}{
		{"one character", "a", true},
		{"all that the CNI spec allows", "podnetAZaz09_.-", true},
		{"the name of a plugin's file is a name", "lock", true},

		{"empty: it would be the data dir itself", "", false},
		{"the directory above", "..", false},
		{"two directories", "a/b", false},
		{"Windows' separator", `a\b`, false},
		{"'-' first", "-a", false},
		{"'_' first", "_a", false},
		{"white space", "a b", false},
		{"a NUL", "a\x00", false},
		{"letters are ASCII", "ä", false},
	} {
		if got := ValidName(row.name); got != row.good {
			t.Errorf("ValidName(%q) = %t, want %t: %s", row.name, got, row.good, row.reason)
		}
	}
}

func TestNewDataDir(t *testing.T) {
	for _, row := range []struct{ reason, dataDir, want string }{
		{"nothing is the default", "", DefaultDataDir},
		{"it is cleaned, so that two spellings are one", "/run//cni/./x/../networks/", "/run/cni/networks"},
	} {
		if got, want := New(row.dataDir).DataDir(), filepath.Clean(row.want); got != want {
			t.Errorf("New(%q) is of %q, want %q: %s", row.dataDir, got, want, row.reason)
		}
	}
}

// TestNetworks: directories are networks, and regular files are NotDirs, if CNI allows their names.
func TestNetworks(t *testing.T) {
	s := New(t.TempDir())
	for _, name := range []string{"podnet", "b-2", "Az09_.-x", ".hidden", "-odd", "white space", "_odd"} {
		addNetwork(t, s, name)
	}
	for _, name := range []string{"file", "10.0.0.1", ".file", "white file"} {
		write(t, filepath.Join(s.DataDir(), name), "abc\r\neth0")
	}
	before := tree(t, s.DataDir())
	want := Listing{Networks: []string{"Az09_.-x", "b-2", "podnet"}, NotDirs: []string{"10.0.0.1", "file"}}
	got, err := s.List(t.Context())
	must(t, err)
	diff(t, "List", want, got)
	names, err := s.Networks()
	must(t, err)
	diff(t, "Networks", want.Networks, names)
	diff(t, "the disk", before, tree(t, s.DataDir()))

	empty, err := New(t.TempDir()).List(t.Context())
	must(t, err)
	diff(t, "of an empty data directory", Listing{Networks: []string{}}, empty)
}

// TestMissingDirectory: no reservation can be in it, and nothing is created.
func TestMissingDirectory(t *testing.T) {
	for _, dataDir := range []string{".", "missing/dir"} {
		root := t.TempDir()
		s := New(filepath.Join(root, dataDir))
		got, err := s.List(t.Context())
		if err != nil || (got.Networks == nil) != (dataDir != ".") || got.Reservations != nil {
			t.Errorf("List: %+v, %v", got, err)
		}
		r := &Reservation{Network: network, IP: netip.MustParseAddr("10.0.0.1"), Owner: Owned, ContainerID: "abc"}
		if result, err := s.Release(t.Context(), r); err != nil || result.Outcomes[0] != Gone {
			t.Errorf("Release: %v, %v, want it gone", result.Outcomes, err)
		}
		if all := tree(t, root); len(all) != 1 {
			t.Errorf("something was created: %v", all)
		}
	}
}

// TestHazard97FileInPlaceOfADirectory: the error names the directory and the reason.
func TestHazard97FileInPlaceOfADirectory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows reports that a path below a file does not exist")
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "file"), "")
	network := New(root)
	l, err := network.List(t.Context())
	must(t, err)
	diff(t, "List", Listing{Networks: []string{}, NotDirs: []string{"file"}}, l)
	below := New(filepath.Join(root, "file"))
	_, err = below.List(t.Context())
	for _, s := range []*Store{network, below} {
		result, releaseErr := s.Release(t.Context(), &Reservation{Network: "file", IP: netip.MustParseAddr("10.0.0.1"), Owner: Owned})
		diff(t, "Release", []Outcome{NotTried}, result.Outcomes)
		for _, err := range []error{cmp.Or(err, releaseErr), releaseErr} {
			if err == nil || !strings.Contains(err.Error(), filepath.Join(root, "file")) || !strings.Contains(err.Error(), "not a directory") {
				t.Errorf("got %v, want an error that names the file and the reason", err)
			}
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
		must(t, os.Chtimes(at(s, ip), time.Time{}, then))
	}
	write(t, filepath.Join(dirOf(s), "last_reserved_ip.0"), "10.0.0.10")
	before := tree(t, s.DataDir())
	ip := netip.MustParseAddr
	diff(t, "List", []Reservation{
		{Network: network, IP: ip("9.0.0.200"), Owner: Empty, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.3"), Owner: Malformed, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.10"), ContainerID: "def", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("fd00::2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("fd00::10"), ContainerID: "ghi", IfName: "net1", Owner: Owned, ReservedAt: then},
	}, list(t, s))
	if done, err := s.Release(t.Context()); len(done.Outcomes) != 0 || err != nil {
		t.Errorf("releasing nothing: %v, %v", done, err)
	}
	diff(t, "the disk", before, tree(t, s.DataDir()))
	if _, err := os.Lstat(lockOf(s)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lock: %v", err)
	}
}

// TestListNetworkVanishes: a network that is removed while List runs has no reservations, and
// those of the others are listed.
func TestListNetworkVanishes(t *testing.T) {
	for _, row := range []struct {
		reason    string
		done, err int // the directory is removed at this call of Done, or of Err
	}{
		{"before it is opened", 1, 0},
		{"before its addresses are read", 2, 0},
		{"before its owners are read", 0, 2},
	} {
		s := newStore(t, "10.0.0.1")
		addNetwork(t, s, "a", "10.0.0.1")
		addNetwork(t, s, "z", "10.0.0.1")
		done := atCall(row.done, func() { removeAll(t, s) })
		l, err := s.List(hookContext{Context: t.Context(), done: func() { _ = done() }, err: atCall(row.err, func() { removeAll(t, s) })})
		must(t, err)
		diff(t, row.reason, []string{"a 10.0.0.1", "z 10.0.0.1"}, files(l.Reservations))
		diff(t, row.reason, []string{"a", network, "z"}, l.Networks)
	}
}

// TestListEndsWithItsContext: a List that did not read everything is an error.
func TestListEndsWithItsContext(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	addNetwork(t, s, "a", "10.0.0.1")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	calls := 0
	endsAt := func(n int) context.Context {
		calls = 0
		return hookContext{Context: t.Context(), err: func() error {
			if calls++; calls == n {
				return context.Canceled
			}
			return nil
		}}
	}
	for _, row := range []struct {
		reason string
		store  *Store
		ctx    context.Context
		want   error
	}{
		{"ended", s, ended, context.Canceled},
		{"late, without reservations", newStore(t), late, context.DeadlineExceeded},
		{"ended without an error", s, hookContext{Context: ended, err: func() error { return nil }}, context.Canceled},
		{"in the first network", s, endsAt(1), context.Canceled},
		{"in the second", s, endsAt(3), context.Canceled},
	} {
		calls = 0
		if l, err := row.store.List(row.ctx); !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.store.DataDir()) {
			t.Errorf("List: %+v, %v: %s", l, err, row.reason)
		} else {
			diff(t, row.reason, Listing{}, l)
		}
	}
	if _, err := s.List(endsAt(0)); err != nil || calls != 4 {
		t.Errorf("List: %v; %d calls of the context, want one before each owner", err, calls)
	}
}
