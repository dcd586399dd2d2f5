// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The hazards are the ways in which collectors of addresses went wrong, by their
// numbers in hazards.txt under testdata. Each test turns red when the guard that
// its comment names is taken out.

// R4 for a pod that names nothing yet.
func TestHazard01RunningPodWithoutPodIPs(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "sandbox", 30*time.Minute)
	n.reserve("10.0.0.3", "leaked", 2*time.Hour)
	report := n.pass(podsource.Static{
		{NamespacedName: named("web"), StartedAt: time.Now().Add(-31 * time.Minute)},
	}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Starting, "10.0.0.3": Released})
}

// R3 by the container ID.
func TestHazard02SandboxKnownPodIPsNot(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "sandbox", old)
	n.reserve("10.0.0.3", "leaked", old)
	source := podsource.Union(
		podsource.Static{{NamespacedName: named("web"), UID: "1", StartedAt: time.Now().Add(-2 * old)}},
		podsource.Static{{UID: "1", ContainerIDs: []string{"sandbox"}}},
	)
	report := n.pass(source, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": InUse, "10.0.0.3": Released})
}

// R1: the reservations are listed before the source is asked, with their
// identities. The ages are faked, so that R5 can't help.
func TestHazard03PodAddedBetweenTheTwoLists(t *testing.T) {
	t.Run("a reservation comes after the list", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			n.reserve("10.0.0.3", "new", old)
			return []podsource.Pod{other}, nil
		})
		n.check(n.pass(source, Options{}), map[string]Verdict{"10.0.0.2": Released})
		if !n.exists("10.0.0.3") {
			t.Error("a reservation that came after the list was released")
		}
	})
	t.Run("a reservation comes in the place of a listed one", func(t *testing.T) {
		for _, minAge := range []time.Duration{0, NoADDInFlight} {
			n := newNode(t)
			n.reserve("10.0.0.2", "gone", old)
			source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
				n.replace("10.0.0.2", "new1", old)
				return []podsource.Pod{other}, nil
			})
			n.check(n.pass(source, Options{MinAge: minAge}), map[string]Verdict{"10.0.0.2": Changed})
		}
	})
	t.Run("a listed one is written anew, and no minimum age tells", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "gone", old)
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			n.reserve("10.0.0.2", "new1", old) // the same inode
			return []podsource.Pod{other}, nil
		})
		n.check(n.pass(source, Options{MinAge: NoADDInFlight}), map[string]Verdict{"10.0.0.2": Changed})
	})
	t.Run("a pod comes after the list", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "new", old)
		source := podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			return []podsource.Pod{{ContainerIDs: []string{"new"}}}, nil
		})
		n.check(n.pass(source, Options{}), map[string]Verdict{"10.0.0.2": InUse})
	})
}

// R5 for what no source can know yet, R4 for a pod that is known to be coming.
func TestHazard04ADDInFlight(t *testing.T) {
	const unknown = time.Duration(-1)
	for _, c := range []struct {
		reason  string
		age     time.Duration
		known   bool          // that the pod is starting
		started time.Duration // how long before the reservation was made
		want    Verdict
	}{
		{"no source knows the pod yet", 4*time.Minute + 50*time.Second, false, 0, Young},
		{"an ADD can't be in flight for so long", 5*time.Minute + time.Second, false, 0, Released},
		{"the pod is known, and started before the reservation was made", 10 * time.Minute, true, time.Minute, Starting},
		{"the pod is known, but nobody knows since when", 10 * time.Minute, true, unknown, Starting},
		{"the pod is known, and the reservation older than it", 10 * time.Minute, true, -time.Minute, Released},
		{"the pod started in the very tick of the clock in which the reservation was made", 10 * time.Minute, true, -5 * time.Millisecond, Starting},
		{"the pod started in the next tick", 10 * time.Minute, true, -11 * time.Millisecond, Released},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "sandbox", c.age)
			info, err := os.Stat(n.path("10.0.0.2"))
			if err != nil {
				t.Fatal(err)
			}
			pods := podsource.Static{other}
			if c.known {
				p := podsource.Pod{NamespacedName: named("web")}
				if c.started != unknown {
					p.StartedAt = info.ModTime().Add(-c.started)
				}
				pods = append(pods, p)
			}
			n.check(n.pass(pods, Options{}), map[string]Verdict{"10.0.0.2": c.want})
		})
	}
}

// R3: a sandbox is live in any state, and needs no address to be.
func TestHazard05SandboxNotReady(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "notready", old)
	n.reserve("10.0.0.3", "leaked", old)
	report := n.pass(podsource.Static{{NamespacedName: named("web"), UID: "1", ContainerIDs: []string{"notready"}}}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": InUse, "10.0.0.3": Released})
}

// R9, and R2: nothing is released.
func TestHazard06EmptyView(t *testing.T) {
	host := podsource.Pod{NamespacedName: named("kube-proxy"), HostNetwork: true}
	for _, c := range []struct {
		reason string
		source podsource.Source
		opts   Options
		err    error
		want   Verdict
	}{
		{"nobody at all is no view", podsource.Static{}, Options{}, ErrNoPods, Failed},
		{"the caller says that this is normal", podsource.Static{}, Options{AllowEmpty: true}, nil, Released},
		{"a pod in the node's network was seen", podsource.Static{host}, Options{}, nil, Released},
		{"the agent itself must be in the list", podsource.Require(podsource.Static{host}, named("agent")), Options{AllowEmpty: true},
			podsource.ErrIncomplete, Failed},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			report, err := New(n.store, c.source, c.opts).Reconcile(t.Context())
			if !errors.Is(err, c.err) {
				t.Errorf("got error %v, want %v", err, c.err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": c.want})
		})
	}
}

// R2: one item that is not what it says makes the list worthless.
func TestHazard07OneItemFails(t *testing.T) {
	for _, c := range []struct {
		reason string
		pod    podsource.Pod
	}{
		{"an address that is none", podsource.Pod{NamespacedName: named("web"), IPs: append(ips("10.0.0.9"), netip.Addr{})}},
		{"a container ID that is empty", podsource.Pod{NamespacedName: named("web"), ContainerIDs: []string{""}}},
		{"a container ID with a scheme", podsource.Pod{NamespacedName: named("web"), ContainerIDs: []string{"containerd://abc"}}},
		{"a container ID with white space", podsource.Pod{NamespacedName: named("web"), ContainerIDs: []string{"abc\n"}}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			report, err := New(n.store, podsource.Static{other, c.pod}, Options{}).Reconcile(t.Context())
			if err == nil || !strings.Contains(err.Error(), "default/web") {
				t.Errorf("got error %v, want one that names the pod", err)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Failed})
		})
	}
}

// R3, siblings: the status has only one of the two addresses.
func TestHazard08DualStackWithHalfAStatus(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "sandbox", old)
	n.reserve("fd00::2", "sandbox", old)
	n.reserve("10.0.0.3", "leaked", old)
	n.reserve("fd00::3", "leaked", old)
	report := n.pass(podsource.Static{{NamespacedName: named("web"), IPs: ips("10.0.0.2")}}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": InUse, "fd00::2": InUse, "10.0.0.3": Released, "fd00::3": Released})
}

// R3 and R10: neither the name of a pod nor its address is an identity.
func TestHazard10RecreatedUnderTheSameName(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "old-sandbox", old)
	n.reserve("10.0.0.3", "new-sandbox", old)
	report := n.pass(podsource.Static{
		{NamespacedName: named("web-0"), UID: "new", ContainerIDs: []string{"new-sandbox"}, IPs: ips("10.0.0.3")},
	}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": InUse})
}

// R10.
func TestHazard11AnotherContainerHasTheAddress(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "dead", old)
	n.reserve("fd00::2", "dead", old) // what else the owner holds
	n.reserve("10.0.0.3", "leaked", old)
	report := n.pass(podsource.Static{{NamespacedName: named("web"), ContainerIDs: []string{"live"}, IPs: ips("10.0.0.2")}}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Conflict, "fd00::2": Conflict, "10.0.0.3": Released})
	if pod := report.Reservations[0].Pod; pod == nil || pod.Name != "web" {
		t.Errorf("the conflict names pod %v, want web", pod)
	}
}

// A pod that has finished long ago holds nothing, whatever its status lists.
func TestHazard12FinishedPodListsItsAddress(t *testing.T) {
	finished := podsource.Pod{NamespacedName: named("job"), UID: "1", IPs: ips("10.0.0.2"), FinishedAt: time.Now().Add(-6 * time.Minute)}
	t.Run("leaked", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "dead", old)
		n.check(n.pass(podsource.Static{finished}, Options{}), map[string]Verdict{"10.0.0.2": Released})
	})
	t.Run("used again", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "live", old)
		report := n.pass(podsource.Static{finished, {NamespacedName: named("web"), UID: "2", IPs: ips("10.0.0.2")}}, Options{})
		n.check(report, map[string]Verdict{"10.0.0.2": InUse})
		if len(report.Duplicates) != 0 {
			t.Errorf("the finished pod's address counts as a duplicate: %v", report.Duplicates)
		}
	})
}

// A pod that has just finished is live: its sandbox goes after its containers.
func TestHazard13JustFinished(t *testing.T) {
	for _, c := range []struct {
		reason string
		pod    podsource.Pod
		want   Verdict
	}{
		{"with its address", podsource.Pod{IPs: ips("10.0.0.2"), FinishedAt: time.Now().Add(-4 * time.Minute)}, InUse},
		{"without any, but with its start", podsource.Pod{StartedAt: time.Now().Add(-2 * old), FinishedAt: time.Now().Add(-4 * time.Minute)}, Starting},
		{"by a stamp in the future", podsource.Pod{IPs: ips("10.0.0.2"), FinishedAt: time.Now().Add(old)}, InUse},
	} {
		for _, minAge := range []time.Duration{0, NoADDInFlight} { // sandboxes take as long to go either way
			t.Run(c.reason, func(t *testing.T) {
				n := newNode(t)
				n.reserve("10.0.0.2", "sandbox", old)
				n.check(n.pass(podsource.Static{c.pod}, Options{MinAge: minAge}), map[string]Verdict{"10.0.0.2": c.want})
			})
		}
	}
}

// R5: an empty file may be an ADD between creating and writing it. R3: an empty
// owner has no siblings, and is nobody's container.
func TestHazard14EmptyReservation(t *testing.T) {
	n := newNode(t)
	n.file("10.0.0.2", "", old)
	n.file("10.0.0.3", "", young)
	n.file("10.0.0.4", " \r\n", old)
	n.file("10.0.0.5", "", old)
	report := n.pass(podsource.Static{{NamespacedName: named("web"), IPs: ips("10.0.0.5")}}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Young, "10.0.0.4": Released, "10.0.0.5": InUse})
}

// The owner is read as every version of host-local wrote it.
func TestHazard15OwnerFilesOfEveryVersion(t *testing.T) {
	forms := map[string]string{
		"10.0.0.2": "%",
		"10.0.0.3": "%\n",
		"10.0.0.4": "%\neth0",
		"10.0.0.5": "%\r\neth0",
		"10.0.0.6": "%\r\neth0\r\n",
		"10.0.0.7": " %\r\neth0\n ",
		"10.0.0.8": "%\r\n",
	}
	for _, c := range []struct {
		reason, owner string
		want          Verdict
	}{
		{"live in every form", "sandbox", InUse},
		{"leaked in every form", "dead", Released},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			want := make(map[string]Verdict)
			for ip, form := range forms {
				n.file(ip, strings.Replace(form, "%", c.owner, 1), old)
				want[ip] = c.want
			}
			n.check(n.pass(podsource.Static{{ContainerIDs: []string{"sandbox"}}}, Options{}), want)
		})
	}
}

// What can't be read as an owner may be anybody's.
func TestHazard16Garbage(t *testing.T) {
	n := newNode(t)
	n.file("10.0.0.2", "\x00\xff\x7fELF", old)
	n.file("10.0.0.3", "a\r\neth0\r\nthird", old)
	n.file("10.0.0.4", strings.Repeat("a", 5000), old)
	n.file("10.0.0.5", strings.Repeat("a", 1<<20), old)
	n.file("10.0.0.6", "leaked", old)
	report := n.pass(podsource.Static{other}, Options{})
	n.check(report, map[string]Verdict{
		"10.0.0.2": Malformed, "10.0.0.3": Malformed, "10.0.0.4": Malformed, "10.0.0.5": Malformed, "10.0.0.6": Released,
	})
}

// R7: see also the test of this number in package hostlocal.
func TestHazard17Strangers(t *testing.T) {
	n := newNode(t)
	strangers := []string{"lock", "last_reserved_ip.0", "last_reserved_ip", "10.0.0.01", "::ffff:10.0.0.1", "10.0.0.9.bak", "FD00::1"}
	for _, name := range strangers {
		n.file(name, "dead", old)
	}
	for _, dir := range []string{"backup", "10.0.0.7"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		n.file(filepath.Join(dir, "10.0.0.8"), "dead", old)
		strangers = append(strangers, filepath.Join(dir, "10.0.0.8"))
	}
	target := filepath.Join(t.TempDir(), "10.0.0.5")
	if err := os.WriteFile(target, []byte("dead"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, n.path("10.0.0.5")); err != nil {
		t.Fatal(err)
	}
	n.reserve("10.0.0.2", "leaked", old)
	n.check(n.pass(podsource.Static{other}, Options{MinAge: NoADDInFlight}), map[string]Verdict{"10.0.0.2": Released})
	for _, name := range append(strangers, "10.0.0.5") {
		if !n.exists(name) {
			t.Errorf("%s was removed", name)
		}
	}
	if _, err := os.Stat(target); err != nil {
		t.Errorf("what a link leads to was touched: %v", err)
	}
}

// R8: the deadline ends the wait, and nothing is held afterwards.
func TestHazard18SomebodyHoldsTheLock(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	lock, err := disk.NewFileLock(filepath.Join(n.dataDir, network1))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := lock.Lock(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	report, err := New(n.store, podsource.Static{other}, Options{}).Reconcile(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want the context's", err)
	}
	n.check(report, map[string]Verdict{"10.0.0.2": Leaked})
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	// The wait that was given up gets the lock now, and lets go of it: else this
	// pass would wait for ever.
	n.check(n.pass(podsource.Static{other}, Options{}), map[string]Verdict{"10.0.0.2": Released})
}

// R5 while the clock is set. See also TestHazard19AgesAreNeverOverstated.
func TestHazard19TheClockIsSet(t *testing.T) {
	start := time.Now()
	for _, c := range []struct {
		reason string
		step   time.Duration // of the wall clock, right after the reservation was made
		stamp  time.Duration // of the reservation, against the clock of that moment
	}{
		{"back by an hour", -time.Hour, 0},
		{"forward by years", 10 * 365 * 24 * time.Hour, 0},
		{"not at all, but the reservation is dated in the future", 0, time.Hour},
		{"from 1970, where boards without a clock begin", time.Since(time.Unix(0, 0)), 0},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			r := newAt(n.store, podsource.Static{other}, Options{}, start, moment{start.Round(0), 0})
			pass := func(wall time.Time, mono time.Duration) Report {
				report, err := r.pass(t.Context(), func() moment { return moment{wall.Round(0), mono} })
				if err != nil {
					t.Fatal(err)
				}
				return report
			}
			n.reserve("10.0.0.2", "starting", -c.stamp)
			n.check(pass(start.Add(c.step+time.Second), time.Second), map[string]Verdict{"10.0.0.2": Young})
			n.check(pass(start.Add(c.step+5*time.Minute), 5*time.Minute), map[string]Verdict{"10.0.0.2": Young})
			n.check(pass(start.Add(c.step+6*time.Minute), 6*time.Minute), map[string]Verdict{"10.0.0.2": Released})
		})
	}
	// A container that gets the address and the inode of a listed reservation in
	// that time has a stamp as old as the step is large.
	t.Run("back, while the source is asked", func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "dead", 2*time.Hour)
		r := newAt(n.store, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			n.reserve("10.0.0.2", "new", time.Hour)
			return []podsource.Pod{other}, nil
		}), Options{}, start, moment{start.Round(0), 0})
		readings := []moment{{start.Round(0), 0}, {start.Add(-time.Hour).Round(0), time.Second}}
		report, err := r.pass(t.Context(), func() (m moment) {
			m, readings = readings[0], readings[1:]
			return m
		})
		if err != nil {
			t.Fatal(err)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Young})
	})
}

// After a reboot without sandboxes everything is leaked, and is released.
func TestHazard20Reboot(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "before1", old)
	n.reserve("10.0.0.3", "before2", old)
	report := n.pass(podsource.Static{{NamespacedName: named("kube-proxy"), HostNetwork: true}}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Released})
}

// A reservation without any sandbox is released in the network that is named,
// and in no other.
func TestHazard21FailedDELAndRenamedNetwork(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "failed-add", old)
	renamed := n.network("renamed")
	n.fileIn("renamed", "10.0.0.2", "live\r\neth0", old)
	n.fileIn("renamed", "10.0.0.3", "failed-add\r\neth0", old)
	n.check(n.pass(podsource.Static{{ContainerIDs: []string{"live"}}}, Options{Siblings: []*hostlocal.Store{renamed}}),
		map[string]Verdict{"10.0.0.2": Released})
	left, err := renamed.List(t.Context())
	if err != nil || len(left) != 2 {
		t.Errorf("a pass over one network left %v in another (error %v), want both", left, err)
	}
}

// R3, siblings in another network.
func TestHazard22SecondNetwork(t *testing.T) {
	n := newNode(t)
	second := n.network("second")
	// A pass over the second network, whose addresses no source reports.
	n.reserve("10.0.0.2", "sandbox", old)
	n.reserve("10.0.0.3", "dead", old)
	n.fileIn("second", "10.9.0.2", "sandbox\r\nnet1", old)
	n.fileIn("second", "10.9.0.3", "dead\r\nnet1", old)
	source := podsource.Static{{NamespacedName: named("web"), IPs: ips("10.0.0.2")}}
	report, err := New(second, source, Options{Siblings: []*hostlocal.Store{n.store}}).Reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Verdict{}
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Verdict
	}
	if got["10.9.0.2"] != InUse || got["10.9.0.3"] != Released {
		t.Errorf("got %v, want the second network's address of the live container kept, and the dead one's released", got)
	}
}

// Pods in the node's network claim no pool address, and are seen all the same.
func TestHazard28HostNetwork(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	n.reserve("10.0.0.3", "sandbox", old)
	report := n.pass(podsource.Static{
		{NamespacedName: named("proxy"), HostNetwork: true, IPs: ips("10.0.0.2")},
		{NamespacedName: named("logs"), HostNetwork: true, IPs: ips("10.0.0.2")},
		{NamespacedName: named("starting"), HostNetwork: true},
		{NamespacedName: named("web"), ContainerIDs: []string{"sandbox"}},
	}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": InUse})
	if len(report.Duplicates) != 0 || len(report.Unreserved) != 0 {
		t.Errorf("the node's address counts as a pod's: duplicates %v, unreserved %v", report.Duplicates, report.Unreserved)
	}
}

// Two runtimes on one network: the union of both sources keeps both.
func TestHazard29TwoRuntimes(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "containerd-1", old)
	n.reserve("10.0.0.3", "crio-1", old)
	n.reserve("10.0.0.4", "leaked", old)
	report := n.pass(podsource.Union(
		podsource.Static{{UID: "1", ContainerIDs: []string{"containerd-1"}}},
		podsource.Static{{UID: "2", ContainerIDs: []string{"crio-1"}}},
	), Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": InUse, "10.0.0.3": InUse, "10.0.0.4": Released})
}

// Failed pods stay in the API for days. What has finished holds back nothing,
// also when nobody ever knew its start.
func TestHazard31EvictedPods(t *testing.T) {
	n := newNode(t)
	n.reserve("10.0.0.2", "leaked", old)
	report := n.pass(podsource.Static{
		{NamespacedName: named("evicted"), UID: "1", FinishedAt: time.Now().Add(-48 * time.Hour)},
		{NamespacedName: named("outofcpu"), UID: "2", StartedAt: time.Now().Add(-48 * time.Hour), FinishedAt: time.Now().Add(-48 * time.Hour)},
	}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Released})
}

// R4 with a start: what is older than a pod is not that pod's.
func TestHazard32PodStuckForDays(t *testing.T) {
	const day = 24 * time.Hour
	n := newNode(t)
	n.reserve("10.0.0.2", "older", 4*day)
	n.reserve("10.0.0.3", "younger", 2*day)
	report := n.pass(podsource.Static{other, {NamespacedName: named("stuck"), UID: "1", StartedAt: time.Now().Add(-3 * day)}}, Options{})
	n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": Starting})
	if pod := report.Reservations[1].Pod; pod == nil || pod.Name != "stuck" {
		t.Errorf("the report names pod %v, want the one that is stuck", pod)
	}
}

// R4: a start that can't be compared is unknown.
func TestHazard36StartInTheFutureOrUnknown(t *testing.T) {
	for _, c := range []struct {
		reason string
		start  time.Time
	}{
		{"not reported yet", time.Time{}},
		{"in the future", time.Now().Add(old)},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "sandbox", 2*old)
			n.reserve("10.0.0.3", "claimed", 2*old)
			report := n.pass(podsource.Static{
				{NamespacedName: named("web"), StartedAt: c.start},
				{NamespacedName: named("db"), IPs: ips("10.0.0.3")},
			}, Options{})
			n.check(report, map[string]Verdict{"10.0.0.2": Starting, "10.0.0.3": InUse})
		})
	}
}

// R1 and R5: the age is taken before the source is asked.
func TestHazard37SourceSlowerThanTheMinimumAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "sandbox", 4*time.Minute)
		n.reserve("10.0.0.3", "leaked", 6*time.Minute)
		r := New(n.store, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			time.Sleep(10 * time.Minute)
			return []podsource.Pod{other}, nil
		}), Options{})
		report, err := r.Reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Young, "10.0.0.3": Released})
	})
}
