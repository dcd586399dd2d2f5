// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
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

// TestNew: zero options are the defaults, and the error names all wrong arguments.
func TestNew(t *testing.T) {
	long := "/" + strings.Repeat("s", 107)
	for _, row := range []struct {
		reason, socket string
		opts           Options
		want           Source
		says           string
	}{
		{"all by default", "", Options{}, Source{DefaultSocket, Options{DefaultMaxBytes}}, ""},
		{"all set", "/s", Options{1}, Source{"/s", Options{1}}, ""},
		{"the maximum length", long[:107], Options{}, Source{long[:107], Options{DefaultMaxBytes}}, ""},
		{"one byte longer", long, Options{}, Source{}, "has 108 bytes"},
		{"a relative path", "pods-api.sock", Options{}, Source{}, `"pods-api.sock" is not an absolute path`},
		{"a URL", "unix:///pods-api.sock", Options{}, Source{}, "is not an absolute path"},
		{"several errors", "s", Options{-1}, Source{}, "is not an absolute path\nOptions.MaxBytes is -1"},
	} {
		got, err := New(row.socket, row.opts)
		if row.says != "" {
			if got != nil || err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%s: got %v, %v, want an error that says %q", row.reason, got, err, row.says)
			}
			continue
		}
		if err != nil || *got != row.want {
			t.Errorf("%s: got %+v, %v, want %+v", row.reason, got, err, row.want)
		}
	}
	if a, err := new(Source).Pods(t.Context()); a.Pods != nil || err == nil || !strings.Contains(err.Error(), "not made with New") {
		t.Errorf("a zero Source: got %v, %v", a, err)
	}
}
