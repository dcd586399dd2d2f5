// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"runtime/debug"
	"slices"
)

// List returns the reservations of every network of the data directory with
// their owners, sorted by network, then by address. It takes no lock and creates
// nothing. A missing data directory has no reservations.
//
// A reservation is left out if its file is removed, or replaced by anything but a
// regular file, while List runs. So is a network whose directory is removed. An
// error about one file does not hide the others: that reservation is
// [Unreadable] and its Err says why. After any other error the list is nil,
// because R3 needs every network. One such error is a symbolic link to a
// directory in the place of a network's directory, since it is not followed (R7).
func (s *Store) List(ctx context.Context) ([]Reservation, error) {
	networks, err := s.Networks()
	var rs []Reservation
	for i := 0; err == nil && i < len(networks); i++ {
		rs, err = s.listNetwork(ctx, networks[i], rs)
	}
	if err != nil {
		return nil, fmt.Errorf("listing reservations in %s: %w", s.dataDir, err)
	}
	return rs, nil
}

// listNetwork appends a network's reservations to rs. It reads the directory that it
// opened, even if another one gets the name.
func (s *Store) listNetwork(ctx context.Context, network string, rs []Reservation) ([]Reservation, error) {
	d, err := s.open(network)
	if isMissing(err) {
		return rs, nil
	}
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", network, err)
	}
	defer func() { _ = d.Close() }() // only read from
	select {
	case <-ctx.Done():
		return nil, cmp.Or(ctx.Err(), context.Canceled)
	default:
	}
	ips, err := d.list()
	if err != nil && !isMissing(err) { // missing: the directory was removed
		return nil, fmt.Errorf("network %s: %w", network, err)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	first := len(rs)
	rs = slices.Grow(rs, len(ips))
	for _, ip := range ips {
		rs = append(rs, Reservation{Network: network, IP: ip})
	}
	if err := s.readOwners(ctx, d, rs[first:]); err != nil {
		return nil, fmt.Errorf("reading owners: %w", err)
	}
	return append(rs[:first], slices.DeleteFunc(rs[first:], func(r Reservation) bool { return r.Owner == Unknown })...), nil
}

// manyOwners is the number of reservations from which on two goroutines read. On two CPUs
// that takes less time, and no more CPU time.
const manyOwners = 128

// readOwners reads the owners of a directory's reservations. Those that no longer exist
// stay Unknown. Its error is that of ctx, which is the caller's code: it is also an error
// if ctx panics in the second goroutine or ends it (R13). No goroutine reads after the call.
func (s *Store) readOwners(ctx context.Context, d dir, rs []Reservation) (err error) {
	if len(rs) < manyOwners {
		return s.readSome(ctx, d, rs)
	}
	half, done := len(rs)/2, make(chan struct{})
	second := errors.New("the second reader ended its goroutine")
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				second = fmt.Errorf("panicked: %v\n%s", p, debug.Stack())
			}
		}()
		second = s.readSome(ctx, d, rs[half:])
	}()
	defer func() { // also after a panic
		<-done
		err = cmp.Or(err, second)
	}()
	return s.readSome(ctx, d, rs[:half])
}

func (s *Store) readSome(ctx context.Context, d dir, rs []Reservation) error {
	buf := make([]byte, maxOwner+1) // on the stack
	for i := range rs {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := &rs[i]
		content, err := d.read(r, buf)
		if err == nil {
			id, ifName, owner := parseOwner(content)
			r.ContainerID, r.IfName, r.Owner = string(id), string(ifName), owner
		} else if !isGone(err) {
			d.stat(r) // also Unreadable if it finds nothing: the directory may have been renamed
			r.Owner, r.Err = Unreadable, fmt.Errorf("reading the owner of %s: %w", s.filePath(r), err)
		}
	}
	return nil
}

// errNotRegular is returned for a name that exists and is not that of a regular file.
var errNotRegular = errors.New("not a regular file")

// isGone reports whether an error means that a reservation no longer exists.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular)
}
