// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
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
}

// TestListNetworkVanishes: a network that is removed while List runs has no reservations, and
// those of the others are listed.
func TestListNetworkVanishes(t *testing.T) {
	for _, row := range []struct {
		reason string
		call   int // of the context's Err, at which the directory is removed
	}{
		{"before it is opened", 3},
		{"before its owners are read", 4},
	} {
		s := newStore(t, "10.0.0.1")
		addNetwork(t, s, "a", "10.0.0.1")
		addNetwork(t, s, "z", "10.0.0.1")
		l, err := s.List(atCall(t, row.call, func() { must(t, os.RemoveAll(dirOf(s))) }))
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
	endsAt := func(n int) context.Context {
		return hook(t, func(call int) error { return map[bool]error{true: context.Canceled}[call == n] })
	}
	for _, row := range []struct {
		reason string
		ctx    context.Context
	}{
		{"ended", ended},
		{"in the first network", endsAt(2)},
		{"before the last network", endsAt(3)},
		{"before the last owner", endsAt(6)},
	} {
		l, err := s.List(row.ctx)
		wantError(t, row.reason, err, context.Canceled, s.DataDir())
		diff(t, row.reason, Listing{}, l)
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := newStore(t).List(late)
	wantError(t, "late, without reservations", err, context.DeadlineExceeded)
	if _, err := s.List(endsAt(7)); err != nil {
		t.Errorf("List: %v, want one call of Err before each network and owner", err)
	}
}

const sandbox = "ee3b0f0c5a1f4d1b8f0e8f6a2d5c7b9a1e3f5d7c9b8a6f4e2d1c3b5a79f8e6d4"

// TestHazard15OwnerFilesOfEveryVersion: List names the owner of a file of any version, and the
// plugin's own look-up finds the same one, if any.
func TestHazard15OwnerFilesOfEveryVersion(t *testing.T) {
	for _, row := range []struct {
		reason, file, id, ifName string
		plugin                   bool // whether the plugin itself would match the file with that container and interface
	}{
		{"v0.8.0 and later", sandbox + "\r\neth0", sandbox, "eth0", true},
		{"up to v0.7.6", sandbox, sandbox, "", true},
		{"a pre-release", sandbox + "\neth0", sandbox, "eth0", false},
		{"written by an editor: a newline at the end", sandbox + "\r\neth0\n", sandbox, "eth0", true},
		{"spaces around all", " \t" + sandbox + "\r\neth0 \n\n", sandbox, "eth0", true},
		{"spaces around each", sandbox + " \r\n eth0", sandbox, "eth0", false},
		{"an ID need not be hexadecimal: cnitool", "cnitool-20c433bb2b1d6ede56d6\r\nnet1", "cnitool-20c433bb2b1d6ede56d6", "net1", true},
		{"all that the CNI spec allows in an ID", "0aZ_.-\r\neth0", "0aZ_.-", "eth0", true},
		{"an interface with a name of the kernel's choice", "abc\r\neth0@if7:1", "abc", "eth0@if7:1", true},
		{"Windows allows long names", "abc\r\n" + strings.Repeat("e", 256), "abc", strings.Repeat("e", 256), true},
		{"an interface without an ID: the plugin takes it for an ID too", "\r\neth0", "eth0", "", true},
		{"of the maximum length", strings.Repeat("a", maxOwner), strings.Repeat("a", maxOwner), "", true},
	} {
		s := newStore(t)
		plugin, err := disk.New(network, s.DataDir())
		must(t, err)
		write(t, at(s, "10.0.0.2"), row.file)
		write(t, at(s, "10.0.0.3"), "somebody-else\r\neth0")
		got := list(t, s)[0]
		diff(t, row.reason, []string{row.id, row.ifName, "owned"}, []string{got.ContainerID, got.IfName, got.Owner.String()})
		if got := plugin.FindByID(row.id, row.ifName); got != row.plugin {
			t.Errorf("the plugin finds the owner: %v, want %v: %s", got, row.plugin, row.reason)
		}
		must(t, plugin.Close())
	}
}

// TestHazard16Garbage: List returns files that no version of host-local wrote, or that it did
// not finish, as malformed or empty, however long they are.
func TestHazard16Garbage(t *testing.T) {
	for _, row := range []struct {
		reason, file string
		want         OwnerState
	}{
		{"a power loss right after the file was made", "", Empty},
		{"blanks only", " \t ", Empty},
		{"three lines", "abc\r\neth0\r\nmore", Malformed},
		{"three lines, one of them empty", "abc\r\n\r\neth0", Malformed},
		{"blocks of zeros, as a file system leaves after a crash", strings.Repeat("\x00", 70), Malformed},
		{"an interface name with white space of Unicode", "abc\r\neth\u00850", Malformed},
		{"longer than the maximum, and blank: the rest was not read", strings.Repeat(" ", maxOwner+1), Malformed},
		{"an owner with so many blanks that it is longer than the maximum", "abc\r\neth0" + strings.Repeat("\n", maxOwner), Malformed},
		{"an ID that is a path", "../abc\r\neth0", Malformed},
		{"an ID must not begin with a dash", "-abc\r\neth0", Malformed},
		{"a slash in the interface name", "abc\r\neth/0", Malformed},
		{"a dot as interface name", "abc\r\n.", Malformed},
		{"two dots as interface name", "abc\r\n..", Malformed},
		{"a control character in the interface name", "abc\r\neth\x1b0", Malformed},
		{"DEL in the interface name", "abc\r\neth\x7f0", Malformed},
		{"an interface name longer than any system's", "abc\r\n" + strings.Repeat("e", 257), Malformed},
	} {
		s := newStore(t)
		write(t, at(s, "10.0.0.2"), row.file)
		rs := list(t, s)
		diff(t, row.reason, []Reservation{{Network: network, IP: rs[0].IP, Owner: row.want, ReservedAt: rs[0].ReservedAt}}, rs)
	}
}

// FuzzParseOwner compares parseOwner with the plugin, which trims the whole file and
// compares it with the ID, CRLF and the interface name, or with the ID alone.
func FuzzParseOwner(f *testing.F) {
	f.Fuzz(func(t *testing.T, content []byte) {
		id, ifName, state := parseOwner(string(content))
		trimmed := strings.TrimSpace(string(content))

		if (state == Owned) != (id != "") || state != Owned && ifName != "" || state != Owned && state != Empty && state != Malformed {
			t.Errorf("%v with the owner %q, %q", state, id, ifName)
		}
		if state == Owned && (!ValidName(id) || !validIfName(ifName) || strings.TrimSpace(ifName) != ifName) {
			t.Errorf("%q, %q is not valid", id, ifName)
		}
		if len(content) > maxOwner {
			if state != Malformed {
				t.Errorf("%d bytes are %v", len(content), state)
			}
			return
		}
		if (trimmed == "") != (state == Empty) {
			t.Errorf("%q is %v", trimmed, state)
		}
		wantID, wantIfName, two := strings.Cut(trimmed, "\r\n")
		if ValidName(wantID) && (!two || validIfName(wantIfName)) {
			if id != wantID || ifName != wantIfName || state != Owned {
				t.Errorf("the plugin matches %q, %q; got %q, %q, %v", wantID, wantIfName, id, ifName, state)
			}
		}
	})
}

// FuzzParseName compares parseName with the names that the plugin gives its files: net.IP.String.
func FuzzParseName(f *testing.F) {
	f.Fuzz(func(t *testing.T, name string) {
		ip, ok := parseName(name)
		byPlugin := net.ParseIP(name)
		if writes := byPlugin != nil && byPlugin.String() == name; ok != writes {
			t.Fatalf("parseName(%q) = %v, %v; the plugin writes such a name: %v", name, ip, ok, writes)
		}
		if ok && (ip.String() != name || strings.ContainsAny(name, "/\\\x00%") || ip.Is4In6()) {
			t.Errorf("%q is the name of %v", name, ip)
		}
	})
}
