// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"net/netip"
	"strings"
	"time"
	"unicode"
)

// A Reservation is one file <data dir>/<network>/<ip>, by which host-local
// holds an address for a container.
//
// Reservations come from [Store.List] or [Store.Scan] and go back to
// [Store.Release]: the unexported part says which file was seen, so that
// nothing but that very file is ever removed (R6). A Reservation that was put
// together by hand is never released.
type Reservation struct {
	// IP is the address, from the file's name. It is never an IPv4-mapped IPv6
	// address and has no zone.
	IP netip.Addr
	// ContainerID and IfName are the owner, and set only when Owner is Owned.
	// IfName is also empty in files that host-local wrote before v0.8.0, which
	// hold the container ID alone.
	ContainerID string
	IfName      string
	// ReservedAt is the file's modification time, by the node's clock. It is
	// zero while Owner is Unread.
	ReservedAt time.Time

	// What tells the file from every other that had its name before.
	ino     uint64 // 0 where the platform has none
	changed int64  // change time in ns: moves with every write, link and rename
	size    uint32 // of the file, at most maxOwner+1: what is longer is not read

	// Whether a change after the owner was read shows in the change time.
	settled bool

	// Owner says what is known of the owner, and so which fields above count.
	Owner OwnerState
}

// An OwnerState says what is known of a reservation's owner.
type OwnerState uint8

const (
	// Unread: only the name was read, by Scan.
	Unread OwnerState = iota
	// Owned: the file names a container.
	Owned
	// Empty: the file holds nothing, or white space alone. Nobody owns it, and
	// no DEL will ever remove it: host-local matches by the owner. A crash or a
	// full disk leaves such files, because host-local creates the file first
	// and writes it then (plugins, backend/disk Reserve).
	Empty
	// Malformed: the file holds something that no version of host-local wrote.
	Malformed
	// Unreadable: the file is there, and reading it met an error.
	Unreadable
	// Replaced: by the time it was read, the name led to another file than the
	// one that was listed, or to something that is not a regular file.
	Replaced
	// Vanished: by the time it was read, the file was gone.
	Vanished
)

var ownerStates = [...]string{"unread", "owned", "empty", "malformed", "unreadable", "replaced", "vanished"}

// String returns the state in lower case, as in "owned".
func (s OwnerState) String() string {
	if int(s) < len(ownerStates) {
		return ownerStates[s]
	}
	return "unknown"
}

// maxOwner is the most that is read of a file. The longest owner that CNI
// allows is far shorter; what is longer is malformed.
const maxOwner = 4096

// parseOwner reads an owner file of any version: the container ID alone (up to
// v0.7.6), with "\n" and the interface name (a pre-release), or with "\r\n"
// (v0.8.0 and later). White space around either is ignored, as the plugin
// ignores it when it matches (plugins, backend/disk ReleaseByID). What it
// returns are parts of content.
func parseOwner(content []byte) (containerID, ifName []byte, state OwnerState) {
	if len(content) > maxOwner {
		return nil, nil, Malformed
	}
	content = bytes.TrimSpace(content)
	if len(content) == 0 {
		return nil, nil, Empty
	}
	id, name, two := bytes.Cut(content, []byte{'\n'})
	id, name = bytes.TrimFunc(id, isBlank), bytes.TrimFunc(name, isBlank)
	if !validName(id) || two && !validIfName(name) {
		return nil, nil, Malformed
	}
	return id, name, Owned
}

// isBlank is white space within a line: a third line is garbage.
func isBlank(r rune) bool { return r != '\n' && unicode.IsSpace(r) }

// validName is the CNI spec's rule for container IDs and network names: a
// letter or digit, then letters, digits, '_', '.' and '-'.
func validName[T string | []byte](s T) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return len(s) > 0
}

// validIfName accepts what CNI accepts as the name of an interface (cni,
// pkg/utils ValidateInterfaceName: no slash, no white space, Unicode's
// included), but for the length, which differs between Linux (15) and Windows
// (256).
func validIfName(s []byte) bool {
	stranger := func(r rune) bool { return r < ' ' || r == '/' || r == 0x7f || unicode.IsSpace(r) }
	return len(s) > 0 && len(s) <= 256 && string(s) != "." && string(s) != ".." && !bytes.ContainsFunc(s, stranger)
}

// parseName returns the address that a file's name stands for, and false for
// every name that host-local would not have given (R7). host-local names its
// files by net.IP.String, with colon for each ':' (plugins, backend/disk
// GetEscapedPath: '_' on Windows, ':' elsewhere).
func parseName(name string, colon byte) (netip.Addr, bool) {
	// The longest canonical address has 39 characters.
	if len(name) > 39 || len(name) < 2 {
		return netip.Addr{}, false
	}
	if colon != ':' {
		if strings.IndexByte(name, ':') >= 0 {
			return netip.Addr{}, false
		}
		name = strings.ReplaceAll(name, string(colon), ":")
	}
	if strings.IndexByte(name, '%') >= 0 {
		return netip.Addr{}, false
	}
	ip, err := netip.ParseAddr(name)
	if err != nil || ip.Is4In6() {
		return netip.Addr{}, false
	}
	var buf [40]byte
	if string(ip.AppendTo(buf[:0])) != name {
		return netip.Addr{}, false
	}
	return ip, true
}

// appendName is the reverse of parseName.
func appendName(b []byte, ip netip.Addr, colon byte) []byte {
	start := len(b)
	b = ip.AppendTo(b)
	for i := start; i < len(b); i++ {
		if b[i] == ':' {
			b[i] = colon
		}
	}
	return b
}
