// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// reserveMany makes enough reservations for two goroutines to read.
func reserveMany(t *testing.T, s *Store) {
	ip := netip.MustParseAddr("10.0.0.1")
	for range manyOwners {
		reserve(t, s, ip.String())
		ip = ip.Next()
	}
}

// TestManyOwnersFail: if one of the two readers fails, panics or ends, the process goes on,
// the caller gets an error, and nothing is read after the call (R2, R13).
func TestManyOwnersFail(t *testing.T) {
	s := newStore(t)
	reserveMany(t, s)
	for _, row := range []struct {
		reason string
		second bool
		fail   func() error
		want   string
	}{
		{"the context panics in the second", true, func() error { panic("out of ink") }, "out of ink"},
		{"the context panics in the caller's goroutine", false, func() error { panic("out of ink") }, "panic: out of ink"},
		{"the context ends the second's goroutine", true, func() error { runtime.Goexit(); return nil }, "ended its goroutine"},
		{"the context ends for the second", true, func() error { return errors.New("out of ink") }, "out of ink"},
		{"the context ends for the caller", false, func() error { return errors.New("out of ink") }, "out of ink"},
	} {
		caller := goroutine()
		var after atomic.Bool
		var rs []Reservation
		outcome := func() (outcome string) {
			defer func() {
				if p := recover(); p != nil {
					outcome = fmt.Sprint("panic: ", p)
				}
			}()
			var err error
			rs, err = s.List(hookContext{Context: t.Context(), err: func() error {
				if after.Load() {
					t.Errorf("it reads after the call: %s", row.reason)
				}
				if (goroutine() != caller) == row.second {
					return row.fail()
				}
				return nil
			}})
			return fmt.Sprint(err)
		}()
		after.Store(true)
		if rs != nil || !strings.Contains(outcome, row.want) {
			t.Errorf("List: %d reservations, %s, want %q: %s", len(rs), outcome, row.want, row.reason)
		}
	}
}

// goroutine returns the number of the goroutine that calls it.
func goroutine() string {
	buf := make([]byte, 64)
	return strings.Fields(string(buf[:runtime.Stack(buf, false)]))[1]
}
