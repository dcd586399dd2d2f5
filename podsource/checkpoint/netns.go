// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "path/filepath"

// A NetNS is a network namespace that is mounted at a path.
type NetNS struct {
	Path string `json:"path"`
	// Dev and Inode identify the namespace. They are zero if they could not be read;
	// then the entry counts as live until it is removed.
	Dev   uint64 `json:"dev,omitempty"`
	Inode uint64 `json:"inode,omitempty"`
	// ID is the namespace's ID, which the kernel does not reuse before the node boots
	// (ioctl NS_GET_ID, since Linux 6.18). It does reuse inode numbers. Zero is
	// unknown.
	ID uint64 `json:"id,omitempty"`
	// Dir identifies the directory of Path when the entry was recorded.
	Dir Directory `json:"dir,omitzero"`
}

// A Directory identifies a directory. Later, or in another mount namespace, another
// directory may have the same path.
type Directory struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	// FS is the ID of the file system (statfs(2), f_fsid). A file system that is
	// mounted later may have the same Dev, and its root the same Inode. Zero is
	// unknown, as for a tmpfs before Linux 5.13, and for a ramfs.
	FS uint64 `json:"fs,omitempty"`
}

// Present reports whether the recorded namespace is still mounted at its path. Before
// Linux 6.18 it is also true for another namespace with the same inode number. It is
// false if Inode is zero.
func (n NetNS) Present() bool {
	now, _ := readNetNS(n.Path) // zero after an error
	return n.Inode != 0 && n.is(now)
}

// is reports whether n and now may be the same namespace.
func (n NetNS) is(now NetNS) bool {
	return n.Dev == now.Dev && n.Inode == now.Inode && (n.ID == now.ID || n.ID == 0 || now.ID == 0)
}

// identified returns n with the identity of the network namespace that is mounted at
// its path now, if there is one and n has none.
func (n NetNS) identified() NetNS {
	if n.Inode == 0 && filepath.IsAbs(n.Path) {
		if now, err := readNetNS(n.Path); err == nil {
			return now
		}
	}
	return n
}
