// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
)

// List returns the reservations of every network of the data directory with
// their owners, sorted by network, then by address. It takes no lock and creates
// nothing. A missing data directory has no reservations.
//
// A reservation that is removed or replaced by something else than a regular
// file meanwhile is left out, and so is a network whose directory is removed. An
// error about one file does not hide the others: that reservation is
// [Unreadable] and its Err says why. After any other error the list is nil: a
// network that can't be listed is an error of the whole, because R3 needs every
// network. That includes a symbolic link to a directory in the place of a
// network's directory, since it is not followed (R7).
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

// listNetwork appends a network's reservations to rs. It works in the directory
// that it opened, also when another one gets its name.
func (s *Store) listNetwork(ctx context.Context, network string, rs []Reservation) ([]Reservation, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	default:
	}
	d, err := s.open(network)
	if isMissing(err) {
		return rs, nil
	}
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", network, err)
	}
	defer func() { _ = d.Close() }() // only read from
	entries, err := d.ReadDir(-1)
	if err != nil && !isMissing(err) {
		return nil, fmt.Errorf("network %s: %w", network, err)
	}
	ips := make([]netip.Addr, 0, len(entries))
	for _, e := range entries {
		if ip, ok := parseName(e.Name(), colon); ok && e.Type().IsRegular() {
			ips = append(ips, ip)
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	rs = slices.Grow(rs, len(ips))
	buf := make([]byte, maxOwner+1)
	for _, ip := range ips {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("reading owners: %w", err)
		}
		r := Reservation{Network: network, IP: ip}
		if err := r.read(d, buf); err != nil {
			if isGone(err) || isGone(d.stat(&r)) { // another error of stat leaves the time unknown
				continue
			}
			r.Owner, r.Err = Unreadable, fmt.Errorf("reading the owner of %s: %w", s.filePath(&r), err)
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// read fills in r from its file.
func (r *Reservation) read(d dir, buf []byte) error {
	content, err := d.read(r, buf)
	if err == nil {
		r.ContainerID, r.IfName, r.Owner = parseOwner(string(content))
	}
	return err
}

// errNotRegular says that a name leads to something else than a regular file.
var errNotRegular = errors.New("not a regular file")

// isGone reports whether an error says that a reservation is not there any more.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular)
}
