// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestExplainDial has what root can't bring about, too.
func TestExplainDial(t *testing.T) {
	for _, row := range []struct {
		reason string
		errno  syscall.Errno
		kinds  []error
		says   string
	}{
		{"no socket", syscall.ENOENT, []error{podsource.ErrNotHere}, "Kubernetes 1.37"},
		{"not root", syscall.EACCES, []error{fs.ErrPermission}, "run as root"},
		{"nobody listens", syscall.ECONNREFUSED, []error{podsource.ErrIncomplete, syscall.ECONNREFUSED}, "remove the file"},
		{"too many wait already", syscall.EAGAIN, []error{podsource.ErrIncomplete, syscall.EAGAIN}, "does it hang?"},
		{"no file descriptors", syscall.EMFILE, []error{syscall.EMFILE}, "dial unix"},
	} {
		err := explainDial(&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", row.errno)})
		for _, kind := range []error{podsource.ErrNotHere, fs.ErrNotExist, fs.ErrPermission, podsource.ErrIncomplete} {
			want := false
			for _, k := range row.kinds {
				want = want || k == kind
			}
			if errors.Is(err, kind) != want {
				t.Errorf("%s: %q is %v: %t, want %t", row.reason, err, kind, !want, want)
			}
		}
		if !strings.Contains(err.Error(), row.errno.Error()) || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %q does not say %q and %q", row.reason, err, row.errno, row.says)
		}
	}
}

func TestZeroOptions(t *testing.T) {
	got, want := New("", Options{}), Source{socket: DefaultSocket, opts: Options{Timeout: DefaultTimeout, MaxBytes: DefaultMaxBytes}}
	if *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	set := Options{Timeout: 1, MaxBytes: 1}
	if got, want := New("s", set), (Source{socket: "s", opts: set}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}
