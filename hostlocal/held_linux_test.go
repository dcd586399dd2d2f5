// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// hold takes the lock by the plugin's own code.
func hold(t *testing.T, dir string) (unlock func()) {
	t.Helper()
	l, err := disk.NewFileLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Lock(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// removeLock removes the network's lock, as rm -rf <network>/* does.
func removeLock(t *testing.T, s *Store) {
	if err := os.Remove(filepath.Join(dirOf(s), "lock")); err != nil {
		t.Error(err)
	}
}
