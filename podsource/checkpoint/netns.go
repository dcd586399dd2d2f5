// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "path/filepath"

// A NetNS is a network namespace, which is mounted at a path.
type NetNS struct {
	Path string `json:"path"`
	// Dev and Inode are the namespace's identity. They are zero where it could
	// not be taken, and then the entry counts as live until it is removed.
	Dev   uint64 `json:"dev,omitempty"`
	Inode uint64 `json:"inode,omitempty"`
	// ID is a number that the kernel gives no other namespace until it boots
	// (ioctl NS_GET_ID, since Linux 6.18). Those of inodes it gives again. Zero is
	// unknown.
	ID uint64 `json:"id,omitempty"`
	// Dir is the directory of Path as it was then.
	Dir Directory `json:"dir,omitzero"`
}

// A Directory tells a directory from another one that is at its path later, or in
// another mount namespace.
type Directory struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	// FS is the ID of the file system (statfs(2), f_fsid). A file system that is
	// mounted later may be given the same Dev, and its root the same Inode. Zero is
	// unknown, as of a tmpfs before Linux 5.13, and of a ramfs.
	FS uint64 `json:"fs,omitempty"`
}

// Present reports whether the very namespace that was recorded is mounted at its
// path now, as far as the kernel tells: before Linux 6.18 another one with its
// inode number is taken for it. Where nothing was recorded it is not.
func (n NetNS) Present() bool {
	now, _ := look(n.Path) // zero beside an error
	return n.Inode != 0 && n.is(now)
}

// is reports whether n and now may be one namespace.
func (n NetNS) is(now NetNS) bool {
	return n.Dev == now.Dev && n.Inode == now.Inode && (n.ID == now.ID || n.ID == 0 || now.ID == 0)
}

// seen returns n with the identity of what is mounted at its path now, if that
// is a network namespace.
func (n NetNS) seen() NetNS {
	if n.Inode == 0 && filepath.IsAbs(n.Path) {
		if now, err := look(n.Path); err == nil {
			return now
		}
	}
	return n
}
