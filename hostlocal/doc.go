// SPDX-License-Identifier: Apache-2.0

// Package hostlocal reads and releases the reservations that the CNI plugin
// host-local keeps on a node's disk. It knows their format and the plugin's
// lock, and nothing of pods.
//
// A network's folder <data dir>/<network> holds:
//
//	10.244.1.2, fd00::2   a reservation: the owner's container ID, CRLF, interface name
//	last_reserved_ip.N    where the plugin goes on looking in range set N
//	lock                  the file on which the plugin takes its flock
//
// Only regular files whose name is a canonical IP address are reservations
// (R7). Everything else is left alone: not opened, not followed, not removed.
//
// [Store.List] reads the folder without the lock. [Store.Release] takes it, and
// removes a file only if it is still the one that was read. So others may add
// and delete at any moment between the two: the plugin, a second collector, a
// person with rm.
//
// The rule numbers in this module, R1 to R13, are those of the README's chapter
// on safety rules. The facts about the format are from the plugin's source,
// plugins/ipam/host-local/backend/disk of containernetworking/plugins.
package hostlocal
