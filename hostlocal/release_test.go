// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
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
	given := append(rs[:1:1], rs[2:]...) // owned, empty and malformed ones
	for _, r := range given {
		delete(want, s.filePath(&r))
	}
	done, err := s.Release(t.Context(), pointers(given)...)
	must(t, err, errors.Join(done.Errs...))
	diff(t, "Release", []Outcome{Released, Released, Released, Released, Released}, done.Outcomes)
	diff(t, "left", want, tree(t, s.DataDir()))
	must(t, release(t.Context(), t, "second Release", s, given, Gone, Gone, Gone, Gone, Gone))
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
		{"another file has the name", func(r *Reservation) { r.ino++ }, Changed},
		{"it was written to, linked or renamed", func(r *Reservation) { r.changed-- }, Changed},
		{"it grew", func(r *Reservation) { r.size-- }, Changed},
		{"another container holds it", func(r *Reservation) { r.ContainerID = "other" }, Changed},
		{"another interface holds it", func(r *Reservation) { r.IfName = "net1" }, Changed},
		{"it was malformed when it was read", func(r *Reservation) { r.Owner = Malformed }, Changed},
		{"it is another address's", func(r *Reservation) { r.IP = netip.MustParseAddr("10.0.0.2") }, Changed},
		{"List did not return it", func(r *Reservation) { r.ino, r.changed, r.size, r.dev = 0, 0, 0, 0 }, Changed},
		{"its owner is unknown", func(r *Reservation) { r.Owner = 0 }, Failed},
		{"its owner could not be read", func(r *Reservation) { r.Owner = Unreadable }, Failed},
		{"no network", func(r *Reservation) { r.Network = "" }, Failed},
		{"a network that leads out of the data directory", func(r *Reservation) { r.Network = "../" + filepath.Base(r.Network) }, Failed},
		{"a zone, which could do so, too", func(r *Reservation) { r.IP = netip.MustParseAddr("fd00::1%/../../x") }, Failed},
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

// TestHazard29TwoCollectors: two stores release from the same directory in several goroutines.
// Each reservation is Released exactly once, and Gone for all others (R12).
func TestHazard29TwoCollectors(t *testing.T) {
	var ips []string
	for i := range 100 {
		ips = append(ips, fmt.Sprint("10.0.0.", i))
	}
	s := newStore(t, ips...)
	rs := list(t, s)
	all := make([]ReleaseResult, 6)
	var wg sync.WaitGroup
	for i := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var err error
			if all[i], err = []*Store{s, New(s.DataDir())}[i%2].Release(t.Context(), pointers(rs)...); err != nil {
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
		diff(t, ips[i], map[Outcome]int{Released: 1, Gone: len(all) - 1}, count)
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
	gone := filepath.Join(s.DataDir(), "gone")
	must(t, os.Remove(filepath.Join(s.DataDir(), "z", "10.0.0.2")), os.RemoveAll(gone))
	result, err := s.Release(t.Context(), &rs[7], &rs[0], nil, &rs[3], &rs[6], &rs[1], &rs[0])
	diff(t, "Release", []Outcome{Gone, Released, Failed, Gone, Released, Released, Gone}, result.Outcomes)
	if err == nil || result.Errs[0] != nil || result.Errs[2] == nil {
		t.Errorf("Release: %v, %v, want an error for the nil pointer", result.Errs, err)
	}
	wantLeft(t, s, "another network", "10.0.0.1", "10.0.0.2")
	for _, path := range []string{lockOf(s), gone} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made: %v", path, err)
		}
	}
}

// TestReleaseErrorIsBounded: the error is short, however many releases fail, and begins
// with errors about whole networks.
func TestReleaseErrorIsBounded(t *testing.T) {
	s := newStore(t)
	must(t, os.Mkdir(filepath.Join(addNetwork(t, s, "spoiled"), "lock"), 0o755))
	for _, n := range []int{maxErrors, 4096} {
		rs := make([]Reservation, n)
		for i := range rs {
			rs[i].Network, rs[i].IP = network, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		}
		rs[n-1].Network, rs[n-1].Owner = "spoiled", Owned
		result, err := s.Release(t.Context(), pointers(rs)...)
		lines := strings.Split(fmt.Sprint(err), "\n")
		wantError(t, "the network's", errors.New(lines[0]), nil, "spoiled")
		wantError(t, "and then the first reservation's", errors.New(lines[1]), nil, rs[0].IP.String())
		if more := fmt.Sprintf("and %d more errors", n-maxErrors); n == maxErrors && len(lines) != n ||
			n > maxErrors && (len(lines) != maxErrors+1 || lines[maxErrors] != more) {
			t.Errorf("Release of %d: %v, want %d errors and the number of others", n, err, maxErrors)
		}
		wantError(t, "Release", err, ErrLocked)
		wantError(t, "one that names the file", result.Errs[1], errNotListed, s.filePath(&rs[1]))
		if len(result.Errs) != n || result.Errs[n-1] != nil {
			t.Errorf("Release of %d: %d errors, the last %v", n, len(result.Errs), result.Errs[n-1])
		}
	}
}
