// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
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

// settle waits until a file has its change time for longer than any clock's tick.
func (n *node) settle(ip string) {
	n.t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(n.path(ip), &st); err != nil {
		n.t.Fatal(err)
	}
	for changed := time.Unix(st.Ctim.Unix()); time.Since(changed) < 200*time.Millisecond; {
		runtime.Gosched()
	}
}

// unprivileged calls do in a thread that has a mere user's rights in the file
// system, and the way to the node's directory is open to. Root would be stopped
// by nothing.
func (n *node) unprivileged(do func()) {
	n.t.Helper()
	if os.Geteuid() != 0 {
		do()
		return
	}
	for dir := n.dataDir; dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil {
			err = os.Chmod(dir, info.Mode()|0o555)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	const nobody = 65534
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	setfsuid(n.t, nobody)
	defer setfsuid(n.t, 0)
	do()
}

// setfsuid sets the user as whom the calling thread uses files. Of root's rights
// there it keeps none (capabilities(7)).
func setfsuid(t testing.TB, uid int) {
	t.Helper()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0); errno != 0 {
		t.Fatal(errno)
	}
}
