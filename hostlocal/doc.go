// SPDX-License-Identifier: Apache-2.0

// Package hostlocal lists and releases the reservations that the CNI plugin host-local keeps
// on a node's disk. It handles their format and the plugin's lock, but no pods: the caller
// decides which reservations are released.
//
//	store := hostlocal.New("") // /var/lib/cni/networks
//	list, err := store.List(ctx)
//	...
//	result, err := store.Release(ctx, &list.Reservations[0])
//
// # On the disk
//
// A data directory has one directory for each network. A network's directory
// holds:
//
//	10.244.1.2, fd00::2   a reservation: the owner's container ID, CRLF, interface name
//	last_reserved_ip.N    where the plugin continues to look in range set N
//	lock                  the file on which the plugin takes its flock(2)
//
// Only regular files whose name is a canonical IP address are reservations (R7).
// No other file is opened, followed or removed. A symbolic link with the name of a network is an
// error, since it is not followed: reservations might be missing. The data directory itself may
// be a link.
//
// # Reading
//
// [Store.List] reads every network of the data directory, because a container may
// have reservations in several (R3). It takes no lock and creates nothing. A file
// that can't be read is listed as [Unreadable], with its error.
//
// A Store remembers what its last List read. A file is settled if its change time has
// nanoseconds, was older by more than three seconds than the beginning of that List, and no
// step of the clock was seen since: then each later write(2) that takes less has another change
// time. Of a settled file the next List asks the status alone, and reads the owner if inode, change time
// or size are others. A file that is empty or malformed is read each time. So one Store for
// the life of a process makes each List after the first cheaper.
//
// # Releasing
//
// [Store.Release] takes the plugin's lock, and removes a file only if it is still the one
// that was read (R6): by inode, change time and size, and by its owner, which is read again
// unless the file is settled. The plugin, another collector, or a person with rm may add and remove
// files at any time between the two calls (R12).
//
// The lock is held for about two milliseconds at a time, with pauses, so that ADDs are not
// delayed (R8). If the lock file is removed, as by rm -rf <network>/*, the plugin makes a new
// one, and the old one protects nothing. So Release checks after taking the lock, and before
// each removal, that the file it locked is still the directory's lock.
//
// # Caveats
//
// Versions of host-local before 0.7.0 take no lock on ADD and DEL, and are not
// supported. On systems other than Linux neither change time nor inode are compared, and each
// owner is read each time: a file that was replaced by one with the same owner, size and
// modification time is taken for the same file. On Windows IPv6 addresses are not listed, since the
// plugin's file names for them are others there. No node runs on such systems, only tests.
//
// The rules R1 to R14 are in gc/README.md, in the chapter on safety rules. The facts about
// the format are from the plugin's source, plugins/ipam/host-local/backend/disk of
// containernetworking/plugins.
package hostlocal
