// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"os"
	"syscall"
)

// locked reports whether somebody holds the plugin's lock.
func (n *node) locked() bool {
	n.t.Helper()
	f, err := os.Open(n.path("lock"))
	if os.IsNotExist(err) {
		return false
	}
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}
