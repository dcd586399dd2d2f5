// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"strings"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

const sandbox = "ee3b0f0c5a1f4d1b8f0e8f6a2d5c7b9a1e3f5d7c9b8a6f4e2d1c3b5a79f8e6d4"

// owners are owner files of every version. The plugin column says whether the
// plugin itself would match the file with that container and interface.
var owners = []struct {
	reason string
	file   string
	id     string
	ifName string
	plugin bool
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
}

// foreign are files that no version of host-local wrote, or that it did not finish.
var foreign = []struct {
	reason string
	file   string
	want   OwnerState
}{
	{"a power loss right after the file was made", "", Empty},
	{"blanks only", " \t ", Empty},

	{"three lines", "abc\r\neth0\r\nmore", Malformed},
	{"three lines, one of them empty", "abc\r\n\r\neth0", Malformed},
	{"blocks of zeros, as a file system leaves after a crash", strings.Repeat("\x00", 70), Malformed},
	{"an interface name with white space of Unicode", "abc\r\neth\u00850", Malformed},
	{"not UTF-8", "\xff\xfe\r\neth0", Malformed},
	{"longer than the maximum, and blank: the rest was not read", strings.Repeat(" ", maxOwner+1), Malformed},
	{"an owner with so many blanks that it is longer than the maximum", "abc\r\neth0" + strings.Repeat("\n", maxOwner), Malformed},
	{"a space in the ID", "abc def\r\neth0", Malformed},
	{"an ID that is a path", "../abc\r\neth0", Malformed},
	{"an ID must not begin with a dash", "-abc\r\neth0", Malformed},
	{"a space in the interface name", "abc\r\neth 0", Malformed},
	{"a slash in the interface name", "abc\r\neth/0", Malformed},
	{"a dot as interface name", "abc\r\n.", Malformed},
	{"two dots as interface name", "abc\r\n..", Malformed},
	{"a control character in the interface name", "abc\r\neth\x1b0", Malformed},
	{"DEL in the interface name", "abc\r\neth\x7f0", Malformed},
	{"an interface name longer than any system's", "abc\r\n" + strings.Repeat("e", 257), Malformed},
}

// TestHazard15OwnerFilesOfEveryVersion: List names the owner of a file of any version, and the
// plugin's own look-up finds the same one, if any.
func TestHazard15OwnerFilesOfEveryVersion(t *testing.T) {
	for _, row := range owners {
		s := newStore(t)
		plugin, err := disk.New(network, s.DataDir())
		must(t, err)
		write(t, at(s, "10.0.0.2"), row.file)
		write(t, at(s, "10.0.0.3"), "somebody-else\r\neth0")
		rs := list(t, s)
		diff(t, row.reason, Reservation{Network: network, IP: rs[0].IP, ContainerID: row.id, IfName: row.ifName, Owner: Owned,
			ReservedAt: rs[0].ReservedAt}, rs[0])
		if got := plugin.FindByID(row.id, row.ifName); got != row.plugin {
			t.Errorf("the plugin finds the owner: %v, want %v: %s", got, row.plugin, row.reason)
		}
		must(t, plugin.Close())
	}
}

// TestHazard16Garbage: List returns such files as malformed or empty, however long they are.
func TestHazard16Garbage(t *testing.T) {
	for _, row := range foreign {
		s := newStore(t)
		write(t, at(s, "10.0.0.2"), row.file)
		rs := list(t, s)
		diff(t, row.reason, Reservation{Network: network, IP: rs[0].IP, Owner: row.want, ReservedAt: rs[0].ReservedAt}, rs[0])
	}
}

// FuzzParseOwner compares parseOwner with the plugin, which trims the whole file and
// compares it with the ID, CRLF and the interface name, or with the ID alone.
func FuzzParseOwner(f *testing.F) {
	f.Fuzz(func(t *testing.T, content []byte) {
		idBytes, ifNameBytes, state := parseOwner(content)
		id, ifName := string(idBytes), string(ifNameBytes)
		trimmed := strings.TrimSpace(string(content))

		if (state == Owned) != (id != "") || state != Owned && ifName != "" || state != Owned && state != Empty && state != Malformed {
			t.Errorf("%v with the owner %q, %q", state, id, ifName)
		}
		if state == Owned && (!validName(id) || !validIfName(ifName) || strings.TrimSpace(ifName) != ifName) {
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
		if validName(wantID) && (!two || validIfName(wantIfName)) {
			if id != wantID || ifName != wantIfName || state != Owned {
				t.Errorf("the plugin matches %q, %q; got %q, %q, %v", wantID, wantIfName, id, ifName, state)
			}
		}
	})
}
