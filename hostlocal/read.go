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
	"time"
)

// twoReaders is from how many reservations on two goroutines read the owners.
// Below, a List takes a few milliseconds, and a node has better use for its
// other CPUs.
const twoReaders = 2048

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
// From 2,048 reservations on two goroutines read the owners, and call ctx.
func (s *Store) List(ctx context.Context) ([]Reservation, error) {
	rs, err := s.readNames(ctx)
	if err == nil {
		err = s.readOwners(ctx, rs)
	}
	if err != nil {
		return nil, fmt.Errorf("listing reservations in %s: %w", s.dataDir, err)
	}
	return slices.DeleteFunc(rs, func(r Reservation) bool { return r.Owner == Unknown }), nil
}

// readNames returns the reservations of all networks, sorted, with owners that
// are Unknown.
func (s *Store) readNames(ctx context.Context) ([]Reservation, error) {
	networks, err := s.Networks()
	if err != nil {
		return nil, err
	}
	// The addresses are collected in chunks: their number is not known before,
	// and a slice that grows would cost several times the memory.
	var chunks [][]netip.Addr
	total, ends := 0, make([]int, len(networks))
	add := func(ip netip.Addr) {
		last := len(chunks) - 1
		if last < 0 || len(chunks[last]) == cap(chunks[last]) {
			chunks = append(chunks, make([]netip.Addr, 0, min(max(64, total), 4096)))
			last++
		}
		chunks[last] = append(chunks[last], ip)
		total++
	}
	for i, network := range networks {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		default:
		}
		d, err := s.open(network)
		if err == nil {
			err = d.names(add)
			d.close()
		}
		if err != nil && !isMissing(err) {
			return nil, fmt.Errorf("network %s: %w", network, err)
		}
		ends[i] = total
	}
	rs := make([]Reservation, 0, total)
	for _, chunk := range chunks {
		for _, ip := range chunk {
			rs = append(rs, Reservation{IP: ip})
		}
	}
	start := 0
	for i, end := range ends {
		sort.Sort(byIP(rs[start:end]))
		for ; start < end; start++ {
			rs[start].Network = networks[i]
		}
	}
	return rs, nil
}

// byIP sorts reservations that have nothing but an address yet.
type byIP []Reservation

func (rs byIP) Len() int           { return len(rs) }
func (rs byIP) Less(i, j int) bool { return rs[i].IP.Less(rs[j].IP) }
func (rs byIP) Swap(i, j int)      { rs[i].IP, rs[j].IP = rs[j].IP, rs[i].IP }

// readOwners reads the owners. What is not there any more stays Unknown. A panic
// in the second goroutine, which would end the process, becomes an error (R13);
// one in the caller's is the caller's.
func (s *Store) readOwners(ctx context.Context, rs []Reservation) error {
	if len(rs) < twoReaders {
		return s.readPart(ctx, rs)
	}
	half := len(rs) / 2
	var helper sync.WaitGroup
	var helperErr error
	helper.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				helperErr = fmt.Errorf("panicked: %v\n%s", p, debug.Stack())
			}
		}()
		helperErr = s.readPart(ctx, rs[half:])
	})
	err := func() error {
		defer helper.Wait() // also after a panic: nothing is read after the call
		return s.readPart(ctx, rs[:half])
	}()
	return cmp.Or(err, helperErr)
}

// readPart is readOwners of what one goroutine reads.
func (s *Store) readPart(ctx context.Context, rs []Reservation) (err error) {
	o := ownerReader{store: s, buf: make([]byte, maxOwner+1)}
	var d *dir // the network's; nil if it is not there
	defer func() { d.close() }()
	network := ""
	for i := range rs {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("reading owners: %w", err)
		}
		r := &rs[i]
		if r.Network != network {
			network = r.Network
			d.close()
			if d, err = s.open(network); err != nil && !isMissing(err) {
				return fmt.Errorf("reading owners: %w", err)
			}
		}
		if d != nil {
			o.read(d, r)
		}
	}
	return nil
}

// An ownerReader is what one goroutine reads owners with.
type ownerReader struct {
	store  *Store
	buf    []byte
	ifName string // the last one: nearly all are eth0, and share one string
}

// read fills in r from its file.
func (o *ownerReader) read(d *dir, r *Reservation) {
	since := time.Now() // by the wall clock
	owner := Unreadable
	var containerID, ifName []byte
	file, content, err := d.read(r.IP, o.buf)
	if err == nil {
		containerID, ifName, owner = parseOwner(content)
	} else if !isGone(err) {
		r.Err = fmt.Errorf("reading the owner of %s: %w", o.store.filePath(r), err)
		file, err = d.stat(r.IP) // any other error leaves the time unknown
	}
	if isGone(err) {
		r.Err = nil
		return
	}
	if string(ifName) != o.ifName {
		o.ifName = string(ifName)
	}
	r.Owner, r.ContainerID, r.IfName, r.ReservedAt = owner, string(containerID), o.ifName, file.modified
	r.ino, r.changed, r.size, r.ctimeStable = file.ino, file.changed, file.size, file.ctimeStable(since)
}

// A fileState is a file's identity and modification time.
type fileState struct {
	Identity
	modified time.Time
}

// errNotRegular says that a name leads to something else than a regular file.
var errNotRegular = errors.New("not a regular file")

// isGone reports whether an error says that a reservation is not there any more.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular)
}
