// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// network is the network of most tests.
const network = "podnet"

// hangTimeout is how long a test waits for something. It turns a hang into a failure, and
// measures nothing.
const hangTimeout = time.Minute

// within fails the test if f does not return. f runs in a goroutine of its own, so it must
// not call t.Fatal.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(hangTimeout):
		t.Fatalf("%s: it does not return", what)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for start := time.Now(); !is(); runtime.Gosched() {
		if time.Since(start) > hangTimeout {
			t.Fatalf("waiting until %s: it did not happen within %v", what, hangTimeout)
		}
	}
}

// newStore returns a store with one network that has no reservations.
func newStore(t *testing.T) *Store {
	t.Helper()
	s := New(t.TempDir())
	addNetwork(t, s, network)
	return s
}

// addNetwork makes a network's directory and returns its path.
func addNetwork(t *testing.T, s *Store, network string) string {
	t.Helper()
	path := filepath.Join(s.DataDir(), network)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// dirOf returns the path of the network's directory.
func dirOf(s *Store) string { return filepath.Join(s.DataDir(), network) }

// at returns the path of an address's file.
func at(s *Store, ip string) string {
	return s.filePath(&Reservation{Network: network, IP: netip.MustParseAddr(ip)})
}

// write writes a file.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reserve makes a reservation for each address, all for one container.
func reserve(t *testing.T, s *Store, ips ...string) {
	t.Helper()
	for _, ip := range ips {
		write(t, at(s, ip), "abc\r\neth0")
	}
}

// reservations returns those of a Listing.
func reservations(l Listing, err error) ([]Reservation, error) { return l.Reservations, err }

// list returns all reservations. An error fails the test.
func list(t *testing.T, s *Store) []Reservation {
	t.Helper()
	rs, err := reservations(s.List(t.Context()))
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	return rs
}

// pointers returns the arguments of Release for reservations.
func pointers(rs []Reservation) []*Reservation {
	var ps []*Reservation
	for i := range rs {
		ps = append(ps, &rs[i])
	}
	return ps
}

// addresses returns the addresses of reservations.
func addresses(rs []Reservation) []string {
	var ips []string
	for _, r := range rs {
		ips = append(ips, r.IP.String())
	}
	return ips
}

// left returns the addresses that still have a file.
func left(t *testing.T, s *Store) []string {
	t.Helper()
	return addresses(list(t, s))
}

// tree describes everything below a directory, by path: the mode, time and content of a
// file, the target of a link. It opens only regular files.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %s %q", info.ModTime(), content)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " " + target
		}
		rel, err := filepath.Rel(root, path)
		all[rel] = what
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// hookContext calls the test when its methods are called. List calls Err before it reads
// each owner, and Release before each comparison, with the lock held. So a test can act
// between two of them. Done is called before every wait.
type hookContext struct {
	context.Context
	err  func() error
	done func()
}

func (c hookContext) Err() error {
	if c.err == nil {
		return c.Context.Err()
	}
	return c.err()
}

func (c hookContext) Done() <-chan struct{} {
	if c.done != nil {
		c.done()
	}
	return c.Context.Done()
}

// atCall returns a hook for Err that calls do at the nth call.
func atCall(n int, do func()) func() error {
	return func() error {
		if n--; n == 0 {
			do()
		}
		return nil
	}
}

// equal compares reservations and outcomes, without a reservation's identity.
var equal = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}),
	cmpopts.EquateApproxTime(0),
	cmpopts.IgnoreUnexported(Reservation{}),
}
