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

	"github.com/google/go-cmp/cmp"
)

func TestRelease(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1")
	write(t, at(s, "10.0.0.4"), "")
	write(t, at(s, "10.0.0.5"), strings.Repeat("x", maxOwner+1))
	write(t, filepath.Join(dirOf(s), "last_reserved_ip.0"), "10.0.0.5")
	rs := list(t, s)
	keep := rs[1]
	if keep.IP != netip.MustParseAddr("10.0.0.2") {
		t.Fatalf("List is not sorted: %v", addresses(rs))
	}
	want := tree(t, s.DataDir())
	for _, r := range rs {
		if r.IP != keep.IP {
			delete(want, filepath.Join(network, fileName(r.IP, colon)))
		}
	}

	given := append([]*Reservation{&rs[0]}, pointers(rs[2:])...)
	done, err := s.Release(t.Context(), given...)
	if err != nil || done.Errs != nil {
		t.Fatalf("Release: %v, %v", done.Errs, err)
	}
	if diff := cmp.Diff([]Outcome{Released, Released, Released, Released, Released}, done.Outcomes); diff != "" {
		t.Errorf("owned, empty and malformed ones alike (-want +got):\n%s", diff)
	}
	if done.LongestHold <= 0 || done.LockHeld < done.LongestHold {
		t.Errorf("the lock was held for %v in all, %v at once", done.LockHeld, done.LongestHold)
	}
	got := tree(t, s.DataDir())
	for _, m := range []map[string]string{want, got} {
		delete(m, network) // its time changes with its files
	}
	delete(got, filepath.Join(network, "lock")) // the only file that Release may create
	delete(got, ".")
	delete(want, ".")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}

	done, err = s.Release(t.Context(), given...)
	if err != nil || done.Errs != nil {
		t.Fatalf("second Release: %v, %v", done.Errs, err)
	}
	if diff := cmp.Diff([]Outcome{Gone, Gone, Gone, Gone, Gone}, done.Outcomes); diff != "" {
		t.Errorf("second Release (-want +got):\n%s", diff)
	}
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
		{"it was empty when it was read", func(r *Reservation) { r.Owner, r.ContainerID, r.IfName = Empty, "", "" }, Changed},
		{"it was malformed when it was read", func(r *Reservation) { r.Owner = Malformed }, Changed},
		{"it is another address's", func(r *Reservation) { r.IP = netip.MustParseAddr("10.0.0.2") }, Changed},
		{"List did not return it", func(r *Reservation) {
			*r = Reservation{Network: r.Network, IP: r.IP, ContainerID: r.ContainerID, IfName: r.IfName, ReservedAt: r.ReservedAt, Owner: r.Owner}
		}, Changed},
		{"its owner is unknown", func(r *Reservation) { r.Owner = Unknown }, Failed},
		{"its owner could not be read", func(r *Reservation) { r.Owner = Unreadable }, Failed},
		{"no network", func(r *Reservation) { r.Network = "" }, Failed},
		{"a network that leads out of the data directory", func(r *Reservation) { r.Network = "../" + filepath.Base(r.Network) }, Failed},
		{"a network that leads to itself", func(r *Reservation) { r.Network = "./" + network }, Failed},
		{"a network that has no directory", func(r *Reservation) { r.Network = "other" }, Gone},
		{"its owner state does not exist", func(r *Reservation) { r.Owner = "other" }, Failed},
		{"no address", func(r *Reservation) { r.IP = netip.Addr{} }, Gone},
	} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2")
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
		if diff := cmp.Diff(want, left(t, s)); diff != "" {
			t.Errorf("left (-want +got): %s\n%s", row.reason, diff)
		}
	}
}

func TestReleaseOfAnotherStore(t *testing.T) {
	s, other := newStore(t), newStore(t)
	reserve(t, s, "10.0.0.1")
	reserve(t, other, "10.0.0.1")
	done, err := s.Release(t.Context(), pointers(list(t, other))...)
	if err != nil || done.Outcomes[0] != Changed {
		t.Errorf("Release of what another store listed: %v, %v, want it kept", done.Outcomes, err)
	}
	if len(left(t, s)) != 1 || len(left(t, other)) != 1 {
		t.Errorf("left are %v and %v, want both", left(t, s), left(t, other))
	}
}

// TestReleaseGoesOn: a failure does not stop the others. Its error is in Errs and in the
// joined error (R11).
func TestReleaseGoesOn(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
	rs := list(t, s)
	for _, i := range []int{1, 3} {
		rs[i] = Reservation{Network: network, IP: rs[i].IP}
	}
	done, err := s.Release(t.Context(), pointers(rs)...)
	if diff := cmp.Diff([]Outcome{Released, Failed, Released, Failed, Released}, done.Outcomes); diff != "" {
		t.Errorf("Release (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.4"}, left(t, s)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if len(done.Errs) != 2 || !errors.Is(err, errNotListed) {
		t.Fatalf("Release: %v, %v, want two errors", done.Errs, err)
	}
	for _, i := range []int{1, 3} {
		if !errors.Is(done.Errs[i], errNotListed) || !strings.Contains(done.Errs[i].Error(), s.filePath(&rs[i])) {
			t.Errorf("%v: %v, want an error that names the file", rs[i].IP, done.Errs[i])
		}
		if !strings.Contains(err.Error(), done.Errs[i].Error()) {
			t.Errorf("%q does not contain %q", err, done.Errs[i])
		}
	}
}

// TestReleaseEndsWithItsContext: the reservations after that are NotTried, and still exist.
func TestReleaseEndsWithItsContext(t *testing.T) {
	for _, reached := range []int{0, 1, 3} {
		s := newStore(t)
		reserve(t, s, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		rs := list(t, s)
		asked := 0
		var done ReleaseResult
		var err error
		within(t, "a release that was ended", func() {
			done, err = s.Release(hookContext{Context: t.Context(), err: func() error {
				if asked++; asked > reached {
					return context.Canceled
				}
				return nil
			}}, pointers(rs)...)
		})
		want := []Outcome{NotTried, NotTried, NotTried, NotTried}
		for i := range reached {
			want[i] = Released
		}
		if diff := cmp.Diff(want, done.Outcomes); diff != "" {
			t.Errorf("ended after %d (-want +got):\n%s", reached, diff)
		}
		if diff := cmp.Diff(addresses(rs)[reached:], left(t, s)); diff != "" {
			t.Errorf("ended after %d, left (-want +got):\n%s", reached, diff)
		}
		if want := fmt.Sprintf("%d not tried", len(rs)-reached); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
			t.Errorf("ended after %d: %v, want an error that contains %q", reached, err, want)
		}
	}

	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // a select chooses at random
		done, err := s.Release(ended, pointers(rs)...)
		if done.Outcomes[0] != NotTried || !errors.Is(err, context.Canceled) || len(left(t, s)) != 1 {
			t.Fatalf("ended before: %v, %v", done.Outcomes, err)
		}
	}
}

// TestReleaseConcurrent: two stores release from the same directory in several goroutines.
// Each reservation is Released exactly once, and Gone for all others (R12).
func TestReleaseConcurrent(t *testing.T) {
	s := newStore(t)
	second := New(s.DataDir())
	const n = 100
	ip := netip.MustParseAddr("10.0.0.1")
	for range n {
		reserve(t, s, ip.String())
		ip = ip.Next()
	}
	rs := list(t, s)

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
	within(t, "concurrent releases", wg.Wait)

	for i, r := range rs {
		count := make(map[Outcome]int)
		for _, done := range all {
			count[done.Outcomes[i]]++
		}
		if diff := cmp.Diff(map[Outcome]int{Released: 1, Gone: len(collectors) - 1}, count); diff != "" {
			t.Errorf("%v (-want +got):\n%s", r.IP, diff)
		}
	}
	if got := left(t, s); got != nil {
		t.Errorf("left are %v", got)
	}
}

// TestReleaseBesideRm: rm takes no lock, and may remove a file at any time. That is no
// failure (R12). The kernel sets the change time before it removes the file, so the file
// may be Changed as well.
func TestReleaseBesideRm(t *testing.T) {
	s := newStore(t)
	for range 20 {
		ip := netip.MustParseAddr("10.0.0.1")
		for range 50 {
			reserve(t, s, ip.String())
			ip = ip.Next()
		}
		rs := list(t, s)
		var wg sync.WaitGroup
		begun := make(chan struct{})
		var once sync.Once
		wg.Add(1)
		go func() {
			defer wg.Done()
			<-begun
			for i := range rs {
				if err := os.Remove(s.filePath(&rs[i])); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			}
		}()
		done, err := s.Release(hookContext{Context: t.Context(), err: func() error {
			once.Do(func() { close(begun) })
			return nil
		}}, pointers(rs)...)
		wg.Wait()
		if err != nil {
			t.Errorf("Release: %v", err)
		}
		for i, o := range done.Outcomes {
			if o != Released && o != Gone && o != Changed {
				t.Errorf("%v is %v, want released, gone or changed", rs[i].IP, o)
			}
		}
		if got := left(t, s); got != nil {
			t.Errorf("left are %v", got)
		}
	}
}

// TestReleaseDirectoryGone: the network's directory was removed since the List.
func TestReleaseDirectoryGone(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1")
	rs := list(t, s)
	if err := os.RemoveAll(dirOf(s)); err != nil {
		t.Fatal(err)
	}
	done, err := s.Release(t.Context(), pointers(rs)...)
	if err != nil || done.Outcomes[0] != Gone {
		t.Errorf("Release: %v, %v, want it gone", done.Outcomes, err)
	}
	if _, err := os.Lstat(dirOf(s)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was created again: %v", err)
	}
}

// TestReleaseOfNetworks: reservations may be of several networks in any order, and the
// outcomes are in the same order. Nothing is released in any other network.
func TestReleaseOfNetworks(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	for _, network := range []string{"a", "z"} {
		path := addNetwork(t, s, network)
		for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
			write(t, filepath.Join(path, ip), "abc\r\neth0")
		}
	}
	rs := list(t, s) // a, podnet, z; two each
	if err := os.Remove(filepath.Join(s.DataDir(), "z", "10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	result, err := s.Release(t.Context(), &rs[5], &rs[0], nil, &rs[4], &rs[1], &rs[0])
	if diff := cmp.Diff([]Outcome{Gone, Released, Failed, Released, Released, Gone}, result.Outcomes); diff != "" {
		t.Errorf("Release (-want +got):\n%s", diff)
	}
	if err == nil || len(result.Errs) != 1 || result.Errs[2] == nil {
		t.Errorf("Release: %v, %v, want an error for the nil pointer", result.Errs, err)
	}
	if diff := cmp.Diff([]string{"podnet 10.0.0.1", "podnet 10.0.0.2"}, files(list(t, s))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if _, err := os.Lstat(filepath.Join(dirOf(s), "lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock of a network without a given reservation: %v, want none", err)
	}
}

// files returns the networks and addresses of reservations.
func files(rs []Reservation) (names []string) {
	for _, r := range rs {
		names = append(names, r.Network+" "+r.IP.String())
	}
	return names
}

// TestReleaseEndsInAllNetworks: when the context ends, reservations of other networks are
// not tried either.
func TestReleaseEndsInAllNetworks(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	write(t, filepath.Join(addNetwork(t, s, "a"), "10.0.0.1"), "abc\r\neth0")
	write(t, filepath.Join(addNetwork(t, s, "z"), "10.0.0.1"), "abc\r\neth0")
	rs := list(t, s)
	calls := 0
	result, err := s.Release(hookContext{Context: t.Context(), err: func() error {
		if calls++; calls > 2 {
			return context.Canceled
		}
		return nil
	}}, pointers(rs)...)
	if diff := cmp.Diff([]Outcome{Released, Released, NotTried, NotTried}, result.Outcomes); diff != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("Release: %v (-want +got):\n%s", err, diff)
	}
	if calls != 4 { // one more for each remaining network
		t.Errorf("the context was called %d times, want 4", calls)
	}
}

// TestReleaseErrorIsBounded: the error is short, however many releases fail, and begins
// with errors about whole networks.
func TestReleaseErrorIsBounded(t *testing.T) {
	s := newStore(t)
	addNetwork(t, s, "piped")
	if err := os.Mkdir(filepath.Join(s.DataDir(), "piped", "lock"), 0o755); err != nil {
		t.Fatal(err)
	}
	const n = 4096
	rs := make([]Reservation, n)
	for i := range rs {
		rs[i].Network, rs[i].IP = network, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	}
	rs[n-1].Network, rs[n-1].Owner = "piped", Owned
	result, err := s.Release(t.Context(), pointers(rs)...)
	if len(result.Errs) != n-1 {
		t.Errorf("%d errors, want %d", len(result.Errs), n-1)
	}
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != maxErrors+1 || lines[maxErrors] != fmt.Sprintf("and %d more errors", n-maxErrors) {
		t.Errorf("Release: %v, want %d errors and the number of the others", err, maxErrors)
	}
	if !errors.Is(err, ErrLocked) || !strings.Contains(lines[0], "piped") {
		t.Errorf("Release: %v, want the network's error first", err)
	}
	if !strings.Contains(lines[1], rs[0].IP.String()) {
		t.Errorf("Release: %v, want the first reservation's error next", err)
	}

	result, err = s.Release(t.Context(), pointers(rs[:maxErrors])...)
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != maxErrors || strings.Contains(err.Error(), "more") {
		t.Errorf("Release of %d: %v, want that many errors", maxErrors, err)
	}
	if len(result.Errs) != maxErrors {
		t.Errorf("%d errors, want %d", len(result.Errs), maxErrors)
	}
}

// If the directory of the last network is gone, so are its reservations, and no others.
func TestReleaseDirectoryOfTheLastNetworkIsGone(t *testing.T) {
	s := newStore(t)
	reserve(t, s, "10.0.0.1", "10.0.0.2")
	write(t, filepath.Join(addNetwork(t, s, "z"), "10.0.0.1"), "abc\r\neth0")
	rs := list(t, s)
	if err := os.RemoveAll(filepath.Join(s.DataDir(), "z")); err != nil {
		t.Fatal(err)
	}
	result, err := s.Release(t.Context(), pointers(rs)...)
	if diff := cmp.Diff([]Outcome{Released, Released, Gone}, result.Outcomes); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
