// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestRelease(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1")
	write(t, at(s, "10.0.0.4"), "")
	write(t, at(s, "10.0.0.5"), strings.Repeat("x", maxOwner+1))
	write(t, filepath.Join(dirOf(s), "last_reserved_ip.0"), "10.0.0.5")
	rs := list(t, s)
	want := tree(t, s.DataDir())
	given := append([]*Reservation{&rs[0]}, pointers(rs[2:])...)
	for _, r := range given {
		delete(want, s.filePath(r))
	}
	done, err := s.Release(t.Context(), given...)
	must(t, err)
	diff(t, "owned, empty and malformed ones alike", []Outcome{Released, Released, Released, Released, Released}, done.Outcomes)
	if errors.Join(done.Errs...) != nil || done.LongestHold <= 0 || done.LockHeld < done.LongestHold {
		t.Errorf("errors %v; the lock was held for %v in all, %v at once", done.Errs, done.LockHeld, done.LongestHold)
	}
	diff(t, "left", want, tree(t, s.DataDir()))
	done, err = s.Release(t.Context(), given...)
	must(t, err)
	diff(t, "second Release", []Outcome{Gone, Gone, Gone, Gone, Gone}, done.Outcomes)
}

// TestReleaseCompares: Release keeps a file that differs from the reservation in any part
// (R6). The test changes the reservation instead of the file, because a file's inode and
// change time can't be set separately.
func TestReleaseCompares(t *testing.T) {
	for _, row := range []struct {
		reason string
		change func(*Reservation)
		want   Outcome
	}{
		{"nothing changed", func(*Reservation) {}, Released},
		{"another file has the name", func(r *Reservation) { r.identity.ino++ }, Changed},
		{"it was written to, linked or renamed", func(r *Reservation) { r.identity.changed-- }, Changed},
		{"it grew", func(r *Reservation) { r.identity.size-- }, Changed},
		{"another container holds it", func(r *Reservation) { r.ContainerID = "other" }, Changed},
		{"another interface holds it", func(r *Reservation) { r.IfName = "net1" }, Changed},
		{"it was malformed when it was read", func(r *Reservation) { r.Owner = Malformed }, Changed},
		{"it is another address's", func(r *Reservation) { r.IP = netip.MustParseAddr("10.0.0.2") }, Changed},
		{"List did not return it", func(r *Reservation) { r.identity = identity{} }, Changed},
		{"its owner is unknown", func(r *Reservation) { r.Owner = "" }, Failed},
		{"its owner could not be read", func(r *Reservation) { r.Owner = Unreadable }, Failed},
		{"its owner state does not exist", func(r *Reservation) { r.Owner = "other" }, Failed},
		{"no network", func(r *Reservation) { r.Network = "" }, Failed},
		{"a network that leads out of the data directory", func(r *Reservation) { r.Network = "../" + filepath.Base(r.Network) }, Failed},
		{"a network that has no directory", func(r *Reservation) { r.Network = "other" }, Gone},
		{"no address", func(r *Reservation) { r.IP = netip.Addr{} }, Gone},
	} {
		s := newStore(t, "10.0.0.1", "10.0.0.2")
		r := list(t, s)[0]
		row.change(&r)
		done, err := s.Release(t.Context(), &r)
		if done.Outcomes[0] != row.want || (err != nil) != (row.want == Failed) || (err != nil) != (done.Errs[0] != nil) {
			t.Errorf("Release: %v, %v, %v, want %v: %s", done.Outcomes[0], done.Errs, err, row.want, row.reason)
		}
		want := []string{"10.0.0.1", "10.0.0.2"}
		if row.want == Released {
			want = want[1:]
		}
		wantLeft(t, s, row.reason, want...)
	}
}

// TestReleaseEndsWithItsContext: the reservations after that are NotTried in all networks, and
// still exist.
func TestReleaseEndsWithItsContext(t *testing.T) {
	for _, reached := range []int{0, 1, 3} {
		s := newStore(t, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		addNetwork(t, s, "z", "10.0.0.1")
		rs := list(t, s)
		calls := 0
		var done ReleaseResult
		var err error
		done, err = s.Release(hookContext{Context: t.Context(), err: func() error {
			if calls++; calls > 2*reached {
				return context.Canceled
			}
			return nil
		}}, pointers(rs)...)
		want := []Outcome{NotTried, NotTried, NotTried, NotTried, NotTried}
		for i := range reached {
			want[i] = Released
		}
		diff(t, fmt.Sprintf("ended after %d", reached), want, done.Outcomes)
		diff(t, "left", files(rs)[reached:], files(list(t, s)))
		if want := fmt.Sprintf("%d not tried", 4-reached); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
			t.Errorf("ended after %d: %v, want an error that contains %q", reached, err, want)
		}
		if calls != 2*reached+2 { // one more for each network
			t.Errorf("ended after %d: the context was called %d times", reached, calls)
		}
	}
}

// TestHazard118ReleaseAfterItsContext: the file system answers late, after the context has
// ended. The file that was read and compared by then is not removed.
func TestHazard118ReleaseAfterItsContext(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	rs := list(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done, err := s.Release(hookContext{Context: ctx, err: func() error {
		if _, err := os.Lstat(at(s, "10.0.0.1")); err != nil { // the second file is at work
			defer cancel()
		}
		return ctx.Err()
	}}, pointers(rs)...)
	diff(t, "Release", []Outcome{Released, NotTried}, done.Outcomes)
	wantLeft(t, s, "the second", "10.0.0.2")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Release: %v, want the error of its context", err)
	}
}

// TestHazard29TwoCollectors: two stores release from the same directory in several goroutines.
// Each reservation is Released exactly once, and Gone for all others (R12).
func TestHazard29TwoCollectors(t *testing.T) {
	var ips []string
	for i := range 100 {
		ips = append(ips, fmt.Sprint("10.0.0.", i))
	}
	s := newStore(t, ips...)
	rs := list(t, s)
	second := New(s.DataDir())
	collectors := []*Store{s, s, s, second, second, second}
	all := make([]ReleaseResult, len(collectors))
	var wg sync.WaitGroup
	for i, c := range collectors {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var err error
			if all[i], err = c.Release(t.Context(), pointers(rs)...); err != nil {
				t.Errorf("Release: %v", err)
			}
		}()
	}
	wg.Wait()
	for i := range rs {
		count := make(map[Outcome]int)
		for _, done := range all {
			count[done.Outcomes[i]]++
		}
		diff(t, ips[i], map[Outcome]int{Released: 1, Gone: len(collectors) - 1}, count)
	}
	wantLeft(t, s, "none")
}

// TestReleaseOfNetworks: reservations may be of several networks in any order, and the
// outcomes are in the same order. Nothing is released in any other network, and if a
// directory is gone, so are its reservations and no others.
func TestReleaseOfNetworks(t *testing.T) {
	s := newStore(t, "10.0.0.1", "10.0.0.2")
	for _, network := range []string{"a", "gone", "z"} {
		addNetwork(t, s, network, "10.0.0.1", "10.0.0.2")
	}
	rs := list(t, s) // a, gone, podnet, z; two each
	must(t, os.Remove(filepath.Join(s.DataDir(), "z", "10.0.0.2")), os.RemoveAll(filepath.Join(s.DataDir(), "gone")))
	result, err := s.Release(t.Context(), &rs[7], &rs[0], nil, &rs[3], &rs[6], &rs[1], &rs[0])
	diff(t, "Release", []Outcome{Gone, Released, Failed, Gone, Released, Released, Gone}, result.Outcomes)
	if err == nil || result.Errs[0] != nil || result.Errs[2] == nil {
		t.Errorf("Release: %v, %v, want an error for the nil pointer", result.Errs, err)
	}
	diff(t, "left", []string{"podnet 10.0.0.1", "podnet 10.0.0.2"}, files(list(t, s)))
	for _, path := range []string{lockOf(s), filepath.Join(s.DataDir(), "gone")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made: %v", path, err)
		}
	}
}

// TestReleaseErrorIsBounded: the error is short, however many releases fail, and begins
// with errors about whole networks.
func TestReleaseErrorIsBounded(t *testing.T) {
	s := newStore(t)
	must(t, os.Mkdir(filepath.Join(addNetwork(t, s, "piped"), "lock"), 0o755))
	const n = 4096
	rs := make([]Reservation, n)
	for i := range rs {
		rs[i].Network, rs[i].IP = network, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	}
	rs[n-1].Network, rs[n-1].Owner = "piped", Owned
	result, err := s.Release(t.Context(), pointers(rs)...)
	lines := strings.Split(fmt.Sprint(err), "\n")
	if result.Errs[n-1] != nil || len(lines) != maxErrors+1 || lines[maxErrors] != fmt.Sprintf("and %d more errors", n-maxErrors) {
		t.Errorf("Release: %d errors, %v, want %d and the number of the others", len(result.Errs), err, maxErrors)
	}
	if !errors.Is(err, ErrLocked) || !strings.Contains(lines[0], "piped") || !strings.Contains(lines[1], rs[0].IP.String()) {
		t.Errorf("Release: %v, want the network's error, and then the first reservation's", err)
	}
	if e := result.Errs[1]; !errors.Is(e, errNotListed) || !strings.Contains(e.Error(), s.filePath(&rs[1])) {
		t.Errorf("Release: %v, want an error that names the file", e)
	}
	result, err = s.Release(t.Context(), pointers(rs[:maxErrors])...)
	if n := strings.Count(fmt.Sprint(err), "\n") + 1; n != maxErrors || len(result.Errs) != n || strings.Contains(err.Error(), "more") {
		t.Errorf("Release of %d: %v, want that many errors", maxErrors, err)
	}
}
