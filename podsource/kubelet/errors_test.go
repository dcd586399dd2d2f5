// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestExplainDial also has errors that root can't cause.
func TestExplainDial(t *testing.T) {
	for _, row := range []struct {
		reason string
		errno  syscall.Errno
		kinds  []error
		says   string
	}{
		{"no socket", syscall.ENOENT, []error{podsource.ErrNotHere}, "Kubernetes 1.37"},
		{"not root", syscall.EACCES, []error{fs.ErrPermission}, "run as root"},
		{"nothing listens", syscall.ECONNREFUSED, []error{podsource.ErrIncomplete, syscall.ECONNREFUSED}, "remove the file"},
		{"the queue of connections is full", syscall.EAGAIN, []error{podsource.ErrIncomplete, syscall.EAGAIN}, "does it hang?"},
		{"no file descriptors", syscall.EMFILE, []error{syscall.EMFILE}, "dial unix"},
	} {
		err := explainDial(&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", row.errno)})
		for _, kind := range []error{podsource.ErrNotHere, fs.ErrNotExist, fs.ErrPermission, podsource.ErrIncomplete} {
			if want := slices.Contains(row.kinds, kind); errors.Is(err, kind) != want {
				t.Errorf("%s: %q is %v: %t, want %t", row.reason, err, kind, !want, want)
			}
		}
		if !strings.Contains(err.Error(), row.errno.Error()) || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %q lacks %q or %q", row.reason, err, row.errno, row.says)
		}
	}
}

// TestNew: an empty path is the default, and a relative one an error.
func TestNew(t *testing.T) {
	for socket, want := range map[string]string{"": DefaultSocket, "/s": "/s", "pods-api.sock": "", "unix:///pods-api.sock": "",
		"/" + strings.Repeat("s", 106): "/" + strings.Repeat("s", 106), "/" + strings.Repeat("s", 107): ""} {
		got, err := New(socket)
		if want == "" {
			if got != nil || err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is not an absolute path", socket)) {
				t.Errorf("%s: got %v, %v", socket, got, err)
			}
		} else if err != nil || got.socket != want {
			t.Errorf("%s: got %v, %v, want %s", socket, got, err, want)
		}
	}
}
