// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestNewDataDir(t *testing.T) {
	for dataDir, want := range map[string]string{"": DefaultDataDir, "/run//cni/./x/../networks/": "/run/cni/networks"} {
		if got, want := New(dataDir).DataDir(), filepath.Clean(want); got != want {
			t.Errorf("New(%q) is of %q, want %q", dataDir, got, want)
		}
	}
}

// TestNetworks: directories are networks, and regular files are NotDirs, if CNI allows their
// names. No such name leads out of the data directory.
func TestNetworks(t *testing.T) {
	s := New(t.TempDir())
	for _, name := range []string{"podnet", "b", "lock", "AZaz09_.-x", ".hidden", "-odd", "white space", "_odd"} {
		addNetwork(t, s, name)
	}
	for _, name := range []string{"file", "10.0.0.1", ".file", "white file"} {
		write(t, filepath.Join(s.DataDir(), name), "abc\r\neth0")
	}
	want := Listing{Networks: []string{"AZaz09_.-x", "b", "lock", "podnet"}, NotDirs: []string{"10.0.0.1", "file"}}
	got, err := s.List(t.Context())
	must(t, err)
	diff(t, "List", want, got)
	names, err := s.Networks()
	must(t, err)
	diff(t, "Networks", want.Networks, names)
	for _, name := range append(names, "", "..", "a/b", `a\b`, "-a", "_a", "a b", "a\x00", "ä") {
		if got, want := ValidName(name), slices.Contains(names, name); got != want {
			t.Errorf("ValidName(%q) = %t, want %t", name, got, want)
		}
	}
}

// TestMissingDirectory: no reservation can be in it, and nothing is created.
func TestMissingDirectory(t *testing.T) {
	for dataDir, want := range map[string]Listing{".": {Networks: []string{}}, "missing/dir": {}} {
		root := t.TempDir()
		s := New(filepath.Join(root, dataDir))
		got, err := s.List(t.Context())
		must(t, err)
		diff(t, "List", want, got)
		r := Reservation{Network: network, IP: netip.MustParseAddr("10.0.0.1"), Owner: Owned, ContainerID: "abc"}
		must(t, release(t.Context(), t, "Release", s, []Reservation{r}, Gone))
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
	file := filepath.Join(root, "file")
	write(t, file, "")
	l, err := New(root).List(t.Context())
	must(t, err)
	diff(t, "List", Listing{Networks: []string{}, NotDirs: []string{"file"}}, l)
	_, err = New(file).List(t.Context())
	wantError(t, "List", err, nil, file, "not a directory")
	for _, dataDir := range []string{root, file} {
		r := Reservation{Network: "file", IP: netip.MustParseAddr("10.0.0.1"), Owner: Owned}
		err := release(t.Context(), t, "Release", New(dataDir), []Reservation{r}, NotTried)
		wantError(t, "Release", err, nil, file, "not a directory")
	}
}

func TestList(t *testing.T) {
	s := newStore(t)
	then, ip := time.Date(2024, 2, 29, 12, 30, 0, 0, time.UTC), netip.MustParseAddr
	want := []Reservation{
		{Network: network, IP: ip("9.0.0.200"), Owner: Empty, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.3"), Owner: Malformed, ReservedAt: then},
		{Network: network, IP: ip("10.0.0.10"), ContainerID: "def", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("fd00::2"), ContainerID: "abc", IfName: "eth0", Owner: Owned, ReservedAt: then},
		{Network: network, IP: ip("fd00::10"), ContainerID: "ghi", IfName: "net1", Owner: Owned, ReservedAt: then},
	}
	for i, content := range []string{"", "abc\r\neth0", "one\ntwo\nthree", "def", "abc\r\neth0", "ghi\r\nnet1\n"} {
		write(t, s.filePath(&want[i]), content)
		must(t, os.Chtimes(s.filePath(&want[i]), time.Time{}, then))
	}
	before := tree(t, s.DataDir())
	diff(t, "List", want, list(t, s))
	must(t, release(t.Context(), t, "releasing nothing", s, nil, []Outcome{}...))
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
		remove := func() { must(t, os.RemoveAll(dirOf(s))) }
		ctx := atCall(t, row.err, remove)
		done := atCall(t, row.done, remove)
		ctx.done = func() { _ = done.Err() }
		l, err := s.List(ctx)
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
	silent := hook(t, func(int) error { return nil })
	silent.Context = ended
	endsAt := func(n int) context.Context {
		return hook(t, func(call int) error { return map[bool]error{true: context.Canceled}[call == n] })
	}
	for _, row := range []struct {
		reason string
		ctx    context.Context
	}{
		{"ended", ended},
		{"ended without an error", silent},
		{"in the first network", endsAt(1)},
		{"before the last owner", endsAt(4)},
	} {
		l, err := s.List(row.ctx)
		wantError(t, row.reason, err, context.Canceled, s.DataDir())
		diff(t, row.reason, Listing{}, l)
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := newStore(t).List(late)
	wantError(t, "late, without reservations", err, context.DeadlineExceeded)
	if _, err := s.List(endsAt(5)); err != nil {
		t.Errorf("List: %v, want one call of Err before each owner", err)
	}
}
