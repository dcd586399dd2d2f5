// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unique"
)

// A Listing is what one reading of a data directory found.
type Listing struct {
	// Networks has the sorted names of the networks that have a directory. It is nil if the
	// data directory does not exist.
	Networks []string
	// NotDirs has the sorted names of regular files in the data directory that are valid
	// names of networks. No reservation can be made in a network of such a name.
	NotDirs []string
	// Reservations has the reservations of all networks, sorted by network, then by address. They
	// must not be changed, but for Err: the next List of the same Store compares with them.
	Reservations []Reservation
}

// List reads the data directory once, and returns its networks and their reservations with
// owners. It takes no lock and creates nothing. A missing data directory has neither.
//
// A reservation is left out if its file is removed, or replaced by anything but a
// regular file, while List runs. A network whose directory is removed meanwhile has no
// reservations. An error about one file does not hide the others: that reservation is
// [Unreadable] and its Err says why. After any other error the Listing is empty,
// because a container may have reservations in several networks (R3). One such error is a symbolic link with
// the name of a network, whatever it leads to, since it is not followed (R7).
func (s *Store) List(ctx context.Context) (Listing, error) {
	m := s.remembered()
	l, err := s.readDataDir()
	for _, network := range l.Networks {
		if err = cmp.Or(err, ctx.Err()); err == nil {
			l.Reservations, err = s.listNetwork(ctx, network, l.Reservations, &m)
		}
	}
	if err != nil {
		return Listing{}, fmt.Errorf("listing reservations in %s: %w", s.dataDir, err)
	}
	m.files = l.Reservations
	s.last.Store(&m)
	return l, nil
}

// remembered returns what the last List found. After a step of the clock that is nothing, also for
// the next call if this one fails, and nothing is settled: a change that seems old may be new.
func (s *Store) remembered() memory {
	wall, lead := s.now()
	m := *s.last.Load()
	if (lead - m.lead).Abs() > 100*time.Millisecond {
		none := memory{lead: lead, seed: maphash.MakeSeed()}
		s.last.Store(&none)
		return none
	}
	m.settledBefore = int64(wall - margin)
	return m
}

// margin is how old the last change of a file must be, so that each later one changes its
// identity. Linux stamps a change before it makes it, with the time of the last tick of its clock
// (file_update_time, fs/inode.c), which lags while its timekeeper is stalled.
const margin = 3 * time.Second

// A memory is what the last List found.
type memory struct {
	files         []Reservation // without those before the next file
	lead          time.Duration // of the wall clock: no step was seen since it had this
	seed          maphash.Seed  // of proofs, which no other store has, and none after a step
	settledBefore int64         // change time in ns, which that of a settled file is before
}

// proof returns what Reservation.settled is in a settled reservation with the owner that r now has.
// It is another one before a step, or in another store.
func (m *memory) proof(r *Reservation) uint64 {
	return maphash.Comparable(m.seed, [...]string{r.ContainerID, r.IfName}) | 1 // not that of a reservation that is not settled
}

// recall sets the owner of r, and its identity and time, to what was read before, if the status of
// its file shows that this is still true: if it is the next of those files, by whatever name.
func (m *memory) recall(d dir, r *Reservation) bool {
	for len(m.files) > 0 && cmp.Or(strings.Compare(m.files[0].Network, r.Network), m.files[0].IP.Compare(r.IP)) < 0 {
		m.files = m.files[1:]
	}
	if len(m.files) == 0 || m.files[0].settled != m.proof(&m.files[0]) || d.status(r) != nil || !r.isFile(&m.files[0]) {
		return false
	}
	was := &m.files[0]
	r.ContainerID, r.IfName, r.Owner, r.settled = was.ContainerID, was.IfName, Owned, was.settled
	return true
}

// setOwner sets the owner of r, and whether its file is settled. An empty file may be about to be
// written. Few names of interfaces serve all containers.
func (r *Reservation) setOwner(content string, m *memory) {
	id, ifName, owner := parseOwner(content)
	r.ContainerID, r.IfName, r.Owner = strings.Clone(id), unique.Make(ifName).Value(), owner
	// Some file systems have only seconds.
	if r.Owner == Owned && r.ino != 0 && r.changed%1e9 != 0 && r.changed < m.settledBefore {
		r.settled = m.proof(r)
	}
}

// Networks returns the names of the networks as List does, without reading their
// directories.
func (s *Store) Networks() ([]string, error) {
	l, err := s.readDataDir()
	return l.Networks, err
}

// readDataDir returns a Listing without reservations. It ignores names that the CNI
// specification does not allow, and all that is neither a directory, nor a link, nor a
// regular file.
func (s *Store) readDataDir() (Listing, error) {
	// The separator at the end keeps ReadDir from opening a pipe, which would block.
	entries, err := os.ReadDir(s.dataDir + string(filepath.Separator))
	if errors.Is(err, fs.ErrNotExist) {
		return Listing{}, nil
	}
	if err != nil {
		return Listing{}, fmt.Errorf("listing networks: %w", err)
	}
	l := Listing{Networks: []string{}}
	for _, e := range entries {
		switch {
		case !ValidName(e.Name()):
		case e.IsDir():
			l.Networks = append(l.Networks, e.Name())
		case e.Type().IsRegular():
			l.NotDirs = append(l.NotDirs, e.Name())
		case e.Type()&(fs.ModeSymlink|fs.ModeIrregular) != 0: // irregular: a junction of Windows
			return Listing{}, fmt.Errorf("%s is a link, and links are not followed, so reservations may be missing: "+
				"put the directory itself in its place (a bind mount will do), or remove the link", filepath.Join(s.dataDir, e.Name()))
		}
	}
	return l, nil
}

// addresses are the names of a directory. A netip.Addr takes six times the memory of an IPv4 address.
type addresses struct {
	v4 [][4]byte
	v6 []netip.Addr
}

func (a *addresses) add(ip netip.Addr) {
	if ip.Is4() {
		a.v4 = append(a.v4, ip.As4())
	} else {
		a.v6 = append(a.v6, ip)
	}
}

// listNetwork appends a network's reservations to rs. It reads the directory that it
// opened, even if another one gets the name.
func (s *Store) listNetwork(ctx context.Context, network string, rs []Reservation, m *memory) ([]Reservation, error) {
	var ips addresses
	d, err := s.open(network)
	if err == nil {
		defer func() { _ = d.Close() }() // only read from
		ips, err = d.list()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the directory was removed
		return nil, fmt.Errorf("network %s: %w", network, err)
	}
	slices.SortFunc(ips.v4, func(a, b [4]byte) int { return bytes.Compare(a[:], b[:]) })
	slices.SortFunc(ips.v6, netip.Addr.Compare)
	rs = slices.Grow(rs, len(ips.v4)+len(ips.v6))
	buf := make([]byte, maxOwner+1) // on the stack
	for i := range len(ips.v4) + len(ips.v6) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r := Reservation{Network: network}
		if i < len(ips.v4) {
			r.IP = netip.AddrFrom4(ips.v4[i])
		} else {
			r.IP = ips.v6[i-len(ips.v4)]
		}
		if !m.recall(d, &r) {
			content, err := d.read(&r, buf)
			switch {
			case err == nil:
				r.setOwner(content, m)
			case errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular): // it was removed or replaced
				continue
			default:
				_ = d.status(&r) // also Unreadable if it finds nothing
				r.Owner, r.Err = Unreadable, fmt.Errorf("reading the owner of %s: %w", s.filePath(&r), err)
			}
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// errNotRegular is returned for a name that exists and is not that of a regular file.
var errNotRegular = errors.New("not a regular file")
