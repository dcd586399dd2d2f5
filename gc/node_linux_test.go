// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"os"
	"syscall"
)

// locked reports whether somebody holds the plugin's lock.
func (n *node) locked() bool { return isLocked(n.path("lock")) }

func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}
