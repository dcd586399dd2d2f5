// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package hostlocal

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A context that is done and returns no error ends Release like any other.
func TestReleaseContextIsDoneWithoutAnError(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		slow := hookContext{Context: ctx, err: func() error {
			time.Sleep(maxHold)
			return nil
		}}
		result, err := s.Release(slow, pointers(rs)...)
		diff(t, "Release", []Outcome{Released, NotTried}, result.Outcomes)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrLocked) {
			t.Errorf("Release: %v, want the end of the context alone", err)
		}
	})
}

// The error of a context is fs.ErrNotExist, like that of a file or a directory that was removed.
func TestReleaseContextErrorIsNotExist(t *testing.T) {
	s := newStore(t, "10.0.0.1")
	for _, first := range []error{nil, fs.ErrNotExist} {
		gone := hookContext{Context: t.Context(), err: func() error {
			err := first
			first = fs.ErrNotExist
			return err
		}}
		result, err := s.Release(gone, pointers(list(t, s))...)
		if result.Outcomes[0] != NotTried || err == nil {
			t.Errorf("%v, error %v", result.Outcomes, err)
		}
	}
}

// No reservation's address has a zone, which could lead out of the directory.
func TestReleaseZone(t *testing.T) {
	s := newStore(t, "fd00::1")
	mkdir(t, filepath.Join(dirOf(s), "fd00::1%"))
	outside := filepath.Join(s.DataDir(), "outside")
	must(t, os.Link(at(s, "fd00::1"), outside))
	r := list(t, s)[0]
	r.IP = r.IP.WithZone("/../../outside")
	if result, err := s.Release(t.Context(), &r); result.Outcomes[0] != Failed || err == nil {
		t.Errorf("%v, error %v", result.Outcomes, err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Error("a file outside of the directory was removed")
	}
}
