// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/textlog"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A fleetTest is a fleet in a bubble of false time.
type fleetTest struct {
	t       *testing.T
	dir     string
	fleet   *fleet
	passes  []string // networks, in the order of their passes
	mu      sync.Mutex
	reports map[string]gc.Report
}

func newFleetTest(t *testing.T, s settings, source podsource.Source) *fleetTest {
	t.Helper()
	f := &fleetTest{t: t, dir: t.TempDir(), reports: make(map[string]gc.Report)}
	s.dataDir = f.dir
	if s.minAge == 0 {
		s.minAge = gc.DefaultMinAge
	}
	if s.interval == 0 {
		s.interval = time.Hour
	}
	s.startupTimeout = gc.DefaultStartupTimeout
	f.fleet = &fleet{settings: &s, source: source, log: textlog.New(t.Output(), 2), board: newBoard()}
	f.fleet.tell = append(f.fleet.tell, f.fleet.board.note, func(r gc.Report, _ error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.passes = append(f.passes, r.Network)
		f.reports[r.Network] = r
	})
	return f
}

// run runs the fleet until the test, or the returned func, ends it.
func (f *fleetTest) run() (end func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.fleet.run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// reserve writes a reservation of that age by the bubble's clock.
func (f *fleetTest) reserve(network, ip, id string, age time.Duration) {
	f.t.Helper()
	path := put(f.t, filepath.Join(f.dir, network, ip), id+"\r\neth0")
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleetTest) there(network, ip string) bool {
	_, err := os.Lstat(filepath.Join(f.dir, network, ip))
	return err == nil
}

func (f *fleetTest) passesOver(network string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range f.passes {
		if name == network {
			n++
		}
	}
	return n
}

var somebody = podsource.Static{{ContainerIDs: []string{"somebody"}}}

// A network that comes up while the agent runs is looked after, too, and so are
// those that were there.
func TestNetworkComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetTest(t, settings{}, somebody)
		f.reserve("a", "10.0.0.2", "x", time.Hour)
		defer f.run()()
		synctest.Wait()
		if f.there("a", "10.0.0.2") {
			t.Error("the hook did not release what leaked")
		}
		f.reserve("b", "10.0.1.2", "y", 0)
		f.reserve("a", "10.0.0.3", "y", 0)
		time.Sleep(lookEvery + 2*gc.DefaultMinAge)
		synctest.Wait()
		if f.there("a", "10.0.0.3") || f.there("b", "10.0.1.2") {
			t.Errorf("leaks are left; passes: %v", f.passes)
		}
	})
}

// Hazard 19: a Reconciler that is made while the process runs knows no step of
// the clock before that. What looks old to it may be an ADD in flight, so it
// begins when the minimum age is over.
func TestHazard19NewReconcilerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetTest(t, settings{}, somebody)
		defer f.run()()
		time.Sleep(time.Minute)
		f.reserve("a", "10.0.0.2", "starting", 50*365*24*time.Hour) // made before the clock was set
		time.Sleep(gc.DefaultMinAge - time.Second)
		synctest.Wait()
		if !f.there("a", "10.0.0.2") {
			t.Fatal("released, and it was younger than the minimum age in true time (R5)")
		}
		time.Sleep(lookEvery + time.Second)
		synctest.Wait()
		if f.there("a", "10.0.0.2") {
			t.Error("kept for longer than the minimum age")
		}
	})
}

// Hazard 22: the address that tells of a container's life is in a network that
// has come up since the Reconciler was made, and which nobody asked to look
// after.
func TestHazard22NetworkComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := netip.MustParseAddr("10.0.1.2")
		f := newFleetTest(t, settings{networks: []string{"a"}}, podsource.Static{{IPs: []netip.Addr{live}}})
		f.reserve("a", "10.0.0.9", "x", time.Hour)
		defer f.run()()
		synctest.Wait()
		f.reserve("a", "10.0.0.2", "live", time.Hour) // both were made long ago,
		f.reserve("b", "10.0.1.2", "live", time.Hour) // say by a move of the folder
		f.fleet.trigger()
		for range 20 {
			time.Sleep(gc.DefaultMinAge / 10)
			synctest.Wait()
			if !f.there("a", "10.0.0.2") {
				t.Fatal("released, and its container has an address in use in the other network (R3)")
			}
		}
		if f.passesOver("b") > 0 {
			t.Error("a network was looked after that nobody named")
		}
		if f.there("a", "10.0.0.9") || f.passesOver("a") < 3 {
			t.Errorf("passes: %v", f.passes)
		}
	})
}

// Only one pass at a time asks the source, however many networks there are.
func TestSourceIsAskedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asking, most, asked := 0, 0, 0
		source := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) {
			mu.Lock()
			asking, asked = asking+1, asked+1
			most = max(most, asking)
			mu.Unlock()
			sleep(ctx, time.Second)
			mu.Lock()
			asking--
			mu.Unlock()
			return somebody, ctx.Err()
		})
		f := newFleetTest(t, settings{networks: []string{"a", "b", "c"}}, source)
		end := f.run()
		time.Sleep(10 * time.Second)
		end()
		if most != 1 || asked != 3 {
			t.Errorf("asked %d times, %d at once", asked, most)
		}
	})
}

func TestFind(t *testing.T) {
	for _, row := range []struct {
		reason string
		known  []string
		dirs   []string
		want   []string
		err    string
	}{
		{"nothing yet", nil, nil, nil, ""},
		{"what is found joins what is known, also where its folder is gone", []string{"c", "a"}, []string{"b/", "a/"}, []string{"a", "b", "c"}, ""},
		{"what is no network's name is none", nil, []string{".x/", "-y/", "z/", "file"}, []string{"z"}, ""},
		{"the data dir is a network's folder", nil, []string{"10.0.0.1", "last_reserved_ip.0"}, nil, "is itself a network's folder"},
	} {
		dir := t.TempDir()
		for _, d := range row.dirs {
			if name, ok := strings.CutSuffix(d, "/"); ok {
				if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
					t.Fatal(err)
				}
				continue
			}
			put(t, filepath.Join(dir, d), "")
		}
		got, err := (&fleet{settings: &settings{dataDir: dir}}).find(row.known)
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
			t.Errorf("%s: error %v, want %q", row.reason, err, row.err)
		}
	}
}

// A data dir that can't be read is an error of each pass, and of no more.
func TestDataDirFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetTest(t, settings{networks: []string{"a"}}, somebody)
		f.fleet.settings.dataDir = put(t, filepath.Join(f.dir, "file"), "")
		end := f.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		states := f.fleet.board.states()
		if len(states) != 1 || states[0].err == nil {
			t.Fatalf("states: %+v", states)
		}
		if _, ready := f.fleet.board.waiting(); !ready {
			t.Error("not ready after the hook's time")
		}
		if err := f.fleet.board.lookingFailed(); err == nil {
			t.Error("nobody is told")
		}
		end()
	})
}

func TestRefused(t *testing.T) {
	away := errors.New("away")
	with := func(reasons ...gc.Reason) gc.Report {
		r := gc.Report{SourceDuration: time.Millisecond}
		for _, reason := range reasons {
			r.Reservations = append(r.Reservations, entry("10.0.0.2", "c", reason))
		}
		return r
	}
	for _, row := range []struct {
		reason string
		report gc.Report
		err    error
		want   bool
	}{
		{"a good pass", with(gc.ContainerLive), nil, false},
		{"no answer", with(gc.NoAnswer, gc.NoAnswer), away, true},
		{"an empty view", with(gc.EmptyView), gc.ErrNoPods, true},
		{"an empty view of an empty folder", with(), gc.ErrNoPods, true},
		{"no answer, and an empty folder", with(), away, true},
		{"a folder that can't be listed", gc.Report{}, away, false},
		{"one release failed", with(gc.ContainerLive, gc.ReleaseFailed), away, false},
		{"an error before the source was asked", with(gc.NotJudged), away, false},
	} {
		if got := refused(&row.report, row.err); got != row.want {
			t.Errorf("%s: refused is %t", row.reason, got)
		}
	}
}

// Networks of the first generation decide when the agent is ready.
func TestReadiness(t *testing.T) {
	b := newBoard()
	want := func(step, networks string, ready bool) {
		t.Helper()
		got, is := b.waiting()
		if strings.Join(got, " ") != networks || is != ready {
			t.Errorf("%s: waiting for %v, ready %t", step, got, is)
		}
	}
	want("before anything is known", "", false)
	b.expect([]string{"a", "b"})
	want("at the start", "a b", false)
	b.note(gc.Report{Network: "a", SourceDuration: 1}, errors.New("away"))
	want("after a refused pass, which is tried again", "a b", false)
	b.note(gc.Report{Network: "a"}, nil)
	want("after a good pass", "b", false)
	b.note(gc.Report{}, errors.New("gave up waiting"))
	b.hookEnded("b")
	want("when the other's time is over", "", true)
	b.expect([]string{"a", "b", "c"})
	want("with another network", "", true)

	none := newBoard()
	none.expect(nil)
	if _, ready := none.waiting(); !ready {
		t.Error("not ready although there is no network to wait for")
	}
}
