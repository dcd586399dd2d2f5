// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package diagnose

func diskOf(string) (readOnly, full bool) { return false, false } // not known on this platform
func isNamespace(path, inode string) bool { return false }

// LockHolder returns nothing: /proc/locks exists on Linux only.
func LockHolder(string) string { return "" }
