// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// network is the network of most tests.
const network = "podnet"

// must fails the test if there is an error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// wantError fails the test unless an error is another one, or any if that is nil, and says all of these.
func wantError(t *testing.T, what string, err, is error, says ...string) {
	t.Helper()
	for _, text := range append(says, "") {
		if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got error %v, want %v that says %q", what, err, is, text)
		}
	}
}

// diff fails the test if two values differ. It ignores the identities of reservations.
func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0), cmpopts.EquateErrors(),
		cmpopts.IgnoreUnexported(Reservation{})); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// newStore returns a store with one network, and reservations for one container in it.
func newStore(t *testing.T, ips ...string) *Store {
	t.Helper()
	s := New(t.TempDir())
	addNetwork(t, s, network, ips...)
	return s
}

// addNetwork makes a network's directory with reservations, and returns its path.
func addNetwork(t *testing.T, s *Store, network string, ips ...string) string {
	t.Helper()
	path := filepath.Join(s.DataDir(), network)
	must(t, os.Mkdir(path, 0o755))
	for _, ip := range ips {
		write(t, s.filePath(&Reservation{Network: network, IP: netip.MustParseAddr(ip)}), "abc\r\neth0")
	}
	return path
}

// dirOf returns the path of the network's directory, and lockOf that of its lock.
func dirOf(s *Store) string  { return filepath.Join(s.DataDir(), network) }
func lockOf(s *Store) string { return filepath.Join(dirOf(s), "lock") }

// at returns the path of an address's file.
func at(s *Store, ip string) string {
	return s.filePath(&Reservation{Network: network, IP: netip.MustParseAddr(ip)})
}

// write writes a file.
func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// list returns all reservations. An error fails the test.
func list(t *testing.T, s *Store) []Reservation {
	t.Helper()
	l, err := s.List(t.Context())
	must(t, err)
	return l.Reservations
}

// pointers returns the arguments of Release for reservations.
func pointers(rs []Reservation) (ps []*Reservation) {
	for i := range rs {
		ps = append(ps, &rs[i])
	}
	return ps
}

// release calls Release for all of these, and fails the test unless these are the outcomes.
func release(ctx context.Context, t *testing.T, what string, s *Store, rs []Reservation, want ...Outcome) error {
	t.Helper()
	result, err := s.Release(ctx, pointers(rs)...)
	diff(t, what, want, result.Outcomes)
	return err
}

// files returns the networks, addresses and owners of reservations, but not the usual container.
func files(rs []Reservation) (names []string) {
	for _, r := range rs {
		owner := map[bool]any{false: r.Owner, true: r.ContainerID}[r.Owner == Owned]
		names = append(names, strings.TrimSuffix(fmt.Sprint(r.Network, " ", r.IP, " ", owner), " abc"))
	}
	return names
}

// wantLeft fails the test unless these addresses, and no others, have a file in the network.
func wantLeft(t *testing.T, s *Store, what string, ips ...string) {
	t.Helper()
	var want []string
	for _, ip := range ips {
		want = append(want, network+" "+ip)
	}
	diff(t, what+": left", want, files(list(t, s)))
}

// tree describes everything below a directory, by path: the mode, time and content of a
// file, the target of a link. It opens only regular files, and leaves out locks and the
// times of directories.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() == "lock" && e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			content, e := os.ReadFile(path)
			what, err = fmt.Sprintf("%s %s %q", what, info.ModTime(), content), e
		case info.Mode()&fs.ModeSymlink != 0:
			target, e := os.Readlink(path)
			what, err = what+" "+target, e
		}
		all[path] = what
		return err
	}))
	return all
}

// hookContext calls the test when its methods are called. List calls Err before it opens each
// network and before it reads each owner. Release calls it, with the lock held, before it reads each file, and again directly
// before it removes it. Done is called before every wait.
type hookContext struct {
	context.Context
	err  func() error
	done func()
}

func (c hookContext) Err() error { return c.err() }

func (c hookContext) Done() <-chan struct{} {
	if c.done != nil {
		c.done()
	}
	return c.Context.Done()
}

// hook returns a context whose Err is that of a function, which gets the number of the call.
func hook(t *testing.T, err func(call int) error) hookContext {
	call := 0
	return hookContext{Context: t.Context(), err: func() error { call++; return err(call) }}
}

// atCall returns a context that calls do at the nth call of Err.
func atCall(t *testing.T, n int, do func()) hookContext {
	return hook(t, func(call int) error {
		if call == n {
			do()
		}
		return nil
	})
}
