// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package diagnose

// IsReadOnly returns false: it is not known on this platform.
func IsReadOnly(string) bool { return false }

func isFull(string) bool                  { return false }
func isNamespace(path, inode string) bool { return false }
