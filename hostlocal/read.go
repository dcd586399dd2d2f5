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
	"sort"
	"sync"
)

// twoReaders is from how many reservations on two goroutines read the owners.
// Below, a List takes a fraction of a millisecond, and a node has better use for
// its other CPUs.
const twoReaders = 128

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
//
// From 128 reservations on two goroutines read the owners, and call ctx.
func (s *Store) List(ctx context.Context) ([]Reservation, error) {
	dirs := make(map[string]*dir) // of all networks, but those that are removed meanwhile
	defer func() {
		for _, d := range dirs {
			d.close()
		}
	}()
	rs, err := s.readNames(ctx, dirs)
	if err == nil {
		err = s.readOwners(ctx, rs, dirs)
	}
	if err != nil {
		return nil, fmt.Errorf("listing reservations in %s: %w", s.dataDir, err)
	}
	return slices.DeleteFunc(rs, func(r Reservation) bool { return r.Owner == Unknown }), nil
}

// readNames returns the reservations of all networks, sorted, with owners that
// are Unknown. It opens the directories, so that what a second goroutine reads in
// them does not depend on the root and the mounts of its thread.
func (s *Store) readNames(ctx context.Context, dirs map[string]*dir) ([]Reservation, error) {
	networks, err := s.Networks()
	if err != nil {
		return nil, err
	}
	// Parts, because the number is not known before, and a slice of reservations
	// that grows would take several times the memory.
	parts, total := make([][][]netip.Addr, len(networks)), 0
	for i, network := range networks {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		default:
		}
		d, err := s.open(network)
		if err == nil {
			dirs[network] = d
			err = d.names(func(ips []netip.Addr) {
				parts[i] = append(parts[i], ips)
				total += len(ips)
			})
		}
		if err != nil && !isMissing(err) {
			return nil, fmt.Errorf("network %s: %w", network, err)
		}
	}
	rs := make([]Reservation, 0, total)
	for i, network := range networks {
		start := len(rs)
		for _, ips := range parts[i] {
			for _, ip := range ips {
				rs = append(rs, Reservation{Network: network, IP: ip})
			}
		}
		sort.Sort(byIP(rs[start:]))
	}
	return rs, nil
}

// byIP sorts reservations that differ in nothing but their address yet.
type byIP []Reservation

func (rs byIP) Len() int           { return len(rs) }
func (rs byIP) Less(i, j int) bool { return rs[i].IP.Less(rs[j].IP) }
func (rs byIP) Swap(i, j int)      { rs[i].IP, rs[j].IP = rs[j].IP, rs[i].IP }

// readOwners reads the owners. What is not there any more stays Unknown. A panic
// in the second goroutine, which would end the process, becomes an error (R13);
// one in the caller's is the caller's.
func (s *Store) readOwners(ctx context.Context, rs []Reservation, dirs map[string]*dir) error {
	if len(rs) < twoReaders {
		return s.readPart(ctx, rs, dirs)
	}
	half := len(rs) / 2
	var helper sync.WaitGroup
	helperErr := errors.New("the second reader ended its goroutine") // as the caller's context may have it do
	helper.Add(1)
	go func() { // Go 1.25 has WaitGroup.Go
		defer helper.Done()
		defer func() {
			if p := recover(); p != nil {
				helperErr = fmt.Errorf("panicked: %v\n%s", p, debug.Stack())
			}
		}()
		helperErr = s.readPart(ctx, rs[half:], dirs)
	}()
	err := func() error {
		defer helper.Wait() // also after a panic: nothing is read after the call
		return s.readPart(ctx, rs[:half], dirs)
	}()
	return cmp.Or(err, helperErr)
}

// readPart is readOwners of what one goroutine reads.
func (s *Store) readPart(ctx context.Context, rs []Reservation, dirs map[string]*dir) error {
	o := ownerReader{buf: make([]byte, maxOwner+1)}
	var d dir // the network's, for this goroutine alone
	network := ""
	for i := range rs {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("reading owners: %w", err)
		}
		r := &rs[i]
		if r.Network != network {
			network, d = r.Network, *dirs[r.Network]
		}
		err := o.read(&d, r)
		if err != nil && !isGone(err) && !isGone(d.stat(r)) { // another error leaves the time unknown
			r.Owner, r.Err = Unreadable, fmt.Errorf("reading the owner of %s: %w", s.filePath(r), err)
		}
	}
	return nil
}

// An ownerReader is what one goroutine reads owners with.
type ownerReader struct {
	buf    []byte
	ifName string // the last one: nearly all are eth0, and share one string
}

// read fills in r from its file.
func (o *ownerReader) read(d *dir, r *Reservation) error {
	content, err := d.read(r, o.buf)
	if err != nil {
		return err
	}
	containerID, ifName, owner := parseOwner(content)
	if string(ifName) != o.ifName {
		o.ifName = string(ifName)
	}
	r.ContainerID, r.IfName, r.Owner = string(containerID), o.ifName, owner
	return nil
}

// errNotRegular says that a name leads to something else than a regular file.
var errNotRegular = errors.New("not a regular file")

// isGone reports whether an error says that a reservation is not there any more.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular)
}
