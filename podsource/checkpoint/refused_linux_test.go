// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/refuse"
)

// If the kernel refuses to show what a directory or a file is, that is an error: without one, the
// file would count as another namespace than the recorded one, which has ended then.
func TestCallIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	write(t, path, "")
	there := openDirectory(path)
	defer there.close()
	for _, row := range []struct {
		reason string
		number uint32
	}{
		{"its number", syscall.SYS_FSTAT},
		{"its file system", syscall.SYS_FSTATFS},
	} {
		var d *directory
		var err error
		refuse.Call(t, row.number, func() {
			d = openDirectory(path)
			_, err = there.readNetNS(path)
		})
		if d.close(); !errors.Is(d.err, syscall.EIO) || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: of the directory %v, of the file %v, want %v", row.reason, d.err, err, syscall.EIO)
		}
	}
}
