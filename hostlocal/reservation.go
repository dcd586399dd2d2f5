// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"net/netip"
	"strings"
	"time"
	"unicode"
)

// A Reservation is one file <data dir>/<network>/<ip>, by which host-local
// holds an address for a container.
//
// Reservations come from [Store.List] and go back to [Store.Release]: the
// unexported part says which file was read, so that no other file is ever
// removed (R6). A Reservation that List did not return is never released.
type Reservation struct {
	// Network is the name of the network, and of its directory.
	Network string `json:"network"`
	// IP is the address, from the file's name. It is never an IPv4-mapped IPv6
	// address and has no zone.
	IP netip.Addr `json:"ip"`
	// ContainerID and IfName are the owner, and set only when Owner is Owned.
	// IfName is also empty in files that host-local wrote before v0.8.0, which
	// hold the container ID alone.
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	// ReservedAt is the file's modification time, by the node's clock. It is
	// zero if Owner is Unreadable and the file's status could not be read either.
	ReservedAt time.Time `json:"reservedAt,omitzero"`
	// Err says why the reservation is Unreadable, and is nil otherwise. In a report of
	// package gc it is also the error of a release that failed.
	Err error `json:"-"`

	// Owner says what is known of the owner, and so which of the fields above are set.
	Owner OwnerState `json:"-"`

	// The identity: on Linux it tells the file that was read from every earlier and later file of the same
	// name, elsewhere it may miss a replacement. It is zero in a Reservation that List did not return.
	size    uint16 // or the maximum, which is more than that of an owner
	dev     uint32 // two file systems may have the same of all others
	ino     uint64 // 0 where the platform has none
	changed int64  // change time in ns: set by every write, link and rename, as far as the kernel's clock has ticked since

	// settled proves that the file has this owner as long as its identity stays the same (R6), if it is
	// the proof of the Store's memory: then no step of the clock was seen since, and no caller has
	// changed the owner here.
	settled uint64
}

// isFile reports whether two reservations have the same identity.
func (r *Reservation) isFile(of *Reservation) bool {
	return r.ino == of.ino && r.changed == of.changed && r.size == of.size && r.dev == of.dev
}

// Inode returns the inode number of the file that was read, or 0 where the platform has none.
func (r *Reservation) Inode() uint64 { return r.ino }

// An OwnerState says what is known of a reservation's owner. It is zero in a Reservation that
// List did not return.
type OwnerState uint16

const (
	// Owned: the file names a container.
	Owned OwnerState = iota + 1
	// Empty: the file is empty, or has only white space. It has no owner, and no
	// DEL will ever remove it, because host-local matches the owner. A crash or a
	// full disk leaves such files: host-local creates the file before it writes
	// the owner (plugins, backend/disk Reserve).
	Empty
	// Malformed: the content is nothing that a version of host-local writes.
	Malformed
	// Unreadable: the file exists, and reading it returned an error.
	Unreadable
)

// String returns the state as a word, or nothing for a number that is no state.
func (o OwnerState) String() string {
	return [...]string{"", "owned", "empty", "malformed", "unreadable", ""}[min(o, Unreadable+1)]
}

// maxOwner is the maximum size of an owner file. The longest owner that CNI allows
// is far shorter, so a longer file is malformed.
const maxOwner = 4096

// parseOwner reads an owner file of any version: the container ID alone (up to
// v0.7.6), with "\n" and the interface name (a pre-release), or with "\r\n"
// (v0.8.0 and later). White space around either is ignored, as in the plugin
// (plugins, backend/disk ReleaseByID).
func parseOwner(content string) (containerID, ifName string, state OwnerState) {
	owner := strings.TrimSpace(content)
	id, name, _ := strings.Cut(owner, "\n")
	id, name = strings.TrimFunc(id, isBlank), strings.TrimFunc(name, isBlank)
	switch {
	case len(content) > maxOwner: // the rest was not read
	case owner == "":
		return "", "", Empty
	case ValidName(id) && validIfName(name):
		return id, name, Owned
	}
	return "", "", Malformed
}

// isBlank reports whether r is white space within a line. '\n' is not, because a file with
// a third line is malformed.
func isBlank(r rune) bool { return r != '\n' && unicode.IsSpace(r) }

// ValidName reports whether the CNI specification allows s as the name of a network, which is also
// valid as that of a directory, or as a container ID: a letter or digit, then letters, digits, '_',
// '.' and '-'.
func ValidName(s string) bool {
	for i, c := range []byte(s) {
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}

// validIfName reports whether CNI allows s as the name of an interface (cni, pkg/utils
// ValidateInterfaceName: no slash and no white space, including that of Unicode). It also
// allows an empty name, and up to 256 bytes: the limit is 15 on Linux and 256 on Windows.
func validIfName(s string) bool {
	invalid := func(r rune) bool { return r < ' ' || r == '/' || r == 0x7f || unicode.IsSpace(r) }
	return len(s) <= 256 && s != "." && s != ".." && !strings.ContainsFunc(s, invalid)
}

// parseName returns the address of a file's name, and false for every name that
// host-local does not write (R7). host-local names its files by net.IP.String (plugins,
// backend/disk GetEscapedPath), except on Windows, where IPv6 addresses are not read.
func parseName(name string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(name)
	var buf [64]byte // on the stack
	return ip, err == nil && !ip.Is4In6() && ip.Zone() == "" && string(ip.AppendTo(buf[:0])) == name
}
