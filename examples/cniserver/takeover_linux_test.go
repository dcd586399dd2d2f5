// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// runtimeLists writes what a runtime lists, and returns the value of --existing for it.
func (n *node) runtimeLists(pods string) string {
	n.t.Helper()
	file := filepath.Join(n.dir, "runtime.json")
	cnitest.Write(n.t, file, pods, 0)
	return "file:" + file
}

// takingOver is a server of this process that has just written its first record, of
// what a runtime lists, and the file that says since when.
func (n *node) takingOver(pods string) (s *server, since string) {
	n.t.Helper()
	s, err := n.serveOptions().newServer()
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = s.record.Close() })
	if err := s.start(n.t.Context(), []string{n.runtimeLists(pods)}); err != nil {
		n.t.Fatal(err)
	}
	return s, filepath.Join(n.state(), "taking-over")
}

// An ADD of the server before this one reserves after the first record was written,
// and no runtime lists its container yet. Whatever looks next, it keeps the address,
// and once such ADDs have ended it is in the record. Then age does not count any more.
func TestHazard52AnADDOfAnotherServerEndsLater(t *testing.T) {
	for _, row := range []struct {
		looks string
		look  func(n *node, s *server) error
	}{
		{"a start", func(n *node, s *server) error { return s.start(n.t.Context(), nil) }},
		{"a GC", func(n *node, s *server) error {
			s.gcMinAge = gc.DefaultMinAge
			r := n.request("GC", "")
			r.Config = bytes.Replace(r.Config, []byte("[]"), []byte(`[{"containerID":"late","ifname":"eth0"}]`), 1)
			return s.gc(n.t.Context(), r, n.delegation())
		}},
		{"a pass", func(n *node, s *server) error { _, err := s.loop.Reconcile(n.t.Context()); return err }},
	} {
		n := newNode(t)
		s, since := n.takingOver(`[{"name":"web-a","containerIDs":["a"]}]`)
		file := n.reserve("one", "10.9.1.7", "late")
		known := checkpoint.Entry{
			Key: checkpoint.Key{Network: "one", ContainerID: "known", IfName: "eth0"}, NetNS: checkpoint.NetNS{Path: "/proc/self/ns/net"},
		}
		n.reserve("one", "10.9.1.6", "known")
		if err := s.record.Add(known); err != nil {
			t.Fatal(err)
		}
		if err := row.look(n, s); err != nil || !cnitest.Exists(file) {
			t.Fatalf("%s during the take-over: %v, and the address is there: %t", row.looks, err, cnitest.Exists(file))
		}
		if e := s.record.Entries(); len(e) != 1 || !cnitest.Exists(since) {
			t.Errorf("%s during the take-over: it has ended, recorded are %v", row.looks, e)
		}
		cnitest.DateBack(t, since, gc.DefaultMinAge+2*time.Minute)
		cnitest.DateBack(t, file, gc.DefaultMinAge+time.Minute)
		old := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.8", "leaked", 2*gc.DefaultMinAge+3*time.Minute)
		doing := &intent{request: request{ContainerID: "doing", IfName: "eth0"}, Network: "one"}
		if err := s.intents.write(doing); err != nil {
			t.Fatal(err)
		}
		cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.9", "doing", time.Minute)
		also := &intent{request: request{ContainerID: "doing-too", IfName: "eth0"}, Network: "one"}
		if err := s.intents.write(also); err != nil {
			t.Fatal(err)
		}
		cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.11", "doing-too", time.Minute)
		if _, err := s.takeOver.Pods(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range s.record.Entries() {
			got = append(got, e.ContainerID)
		}
		if e, _ := s.record.Get(known.Key); e.NetNS != known.NetNS {
			t.Errorf("%s after the take-over: what was recorded was recorded anew: %v", row.looks, e)
		}
		if diff := cmp.Diff([]string{"known", "late"}, got); diff != "" || cnitest.Exists(since) {
			t.Errorf("%s after the take-over: it goes on: %t; recorded (-want +got):\n%s", row.looks, cnitest.Exists(since), diff)
		}
		if err := errors.Join(s.intents.remove(doing.key("one")), s.intents.remove(also.key("one"))); err != nil {
			t.Fatal(err)
		}
		lost := n.reserve("one", "10.9.1.10", "lost")
		if err := row.look(n, s); err != nil || !cnitest.Exists(file) || cnitest.Exists(old) {
			t.Errorf("%s after the take-over: %v; its address is there: %t, an old leak: %t", row.looks, err, cnitest.Exists(file), cnitest.Exists(old))
		}
		if cnitest.Exists(lost) != (row.looks == "a pass") {
			t.Errorf("%s after the take-over: what nobody recorded is there: %t", row.looks, cnitest.Exists(lost))
		}
	}
}

// The pass that ends a take-over does it before it asks the record: an address that
// has grown old since is not released by that very pass.
func TestHazard52TheTakeOverEndsBeforeTheRecordIsAsked(t *testing.T) {
	n := newNode(t)
	cnitest.Write(t, filepath.Join(n.state(), "taking-over"), "", time.Hour) // of a start that was killed, and counts for nothing
	s, since := n.takingOver(`[{"name":"web-a","containerIDs":["a"]}]`)
	if over, err := s.takeOver.end(t.Context()); over || err != nil {
		t.Fatalf("it has ended when it begins: %t, %v", over, err)
	}
	file := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.7", "late", gc.DefaultMinAge+time.Minute)
	cnitest.DateBack(t, since, gc.DefaultMinAge+2*time.Minute)
	if _, err := s.loop.Reconcile(t.Context()); err != nil || !cnitest.Exists(file) || len(s.record.Entries()) != 1 {
		t.Errorf("%v; the address is there: %t; recorded: %v", err, cnitest.Exists(file), s.record.Entries())
	}
}

// While a request is under way a take-over does not end: a DEL that ends between the
// list of reservations and the look into the record would be undone in the record.
func TestTakeOverEndsAlone(t *testing.T) {
	n := newNode(t)
	s, since := n.takingOver(`[{"name":"web-a","containerIDs":["a"]}]`)
	s.gcLock.RLock()
	for _, file := range []string{since, since + "-none"} { // of which none has to end
		if _, err := (takeOver{s, file}).Pods(t.Context()); err != nil {
			t.Error(err)
		}
	}
	cnitest.DateBack(t, since, gc.DefaultMinAge)
	done := make(chan error, 1)
	go func() { _, err := s.takeOver.Pods(t.Context()); done <- err }()
	cnitest.Until(t, "it waits", func() bool {
		free := s.gcLock.TryRLock() // not while somebody waits for the request's end
		if free {
			s.gcLock.RUnlock()
		}
		return !free || len(done) > 0
	})
	if len(done) > 0 || !cnitest.Exists(since) {
		t.Error("it does not wait")
	}
	s.gcLock.RUnlock()
	if err := <-done; err != nil || cnitest.Exists(since) || !s.gcLock.TryLock() {
		t.Errorf("%v, it has ended: %t; or nothing can begin any more", err, !cnitest.Exists(since))
	}
}

// What can't be read, or recorded, is no reason to forget whose it is: there is neither
// a first record nor the end of a take-over.
func TestHazard52AReservationThatCannotBeRead(t *testing.T) {
	n := newNode(t)
	s, since := n.takingOver(`[{"name":"web-a","containerIDs":["a"]}]`)
	cnitest.DateBack(t, since, gc.DefaultMinAge)
	file := n.reserve("one", "10.9.1.7", "c")
	inTheWay := n.recordFile() + ".tmp"
	if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if over, err := s.takeOver.end(t.Context()); err == nil || over || !cnitest.Exists(since) {
		t.Errorf("it can't be recorded, and the take-over ends: %t, %v", over, err)
	}
	late := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.8", "late", gc.DefaultMinAge+time.Minute)
	if err := s.gc(t.Context(), n.request("GC", ""), n.delegation()); err == nil || !cnitest.Exists(late) {
		t.Errorf("a GC: %v; the address of an ADD of another server is there: %t", err, cnitest.Exists(late))
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	unreadable(t, file)
	if _, err := s.loop.Reconcile(t.Context()); !errors.Is(err, gc.ErrRefused) || !cnitest.Exists(since) {
		t.Errorf("a pass: %v; the take-over has ended: %t", err, !cnitest.Exists(since))
	}
	if _, err := s.assertions(t.Context()); err == nil {
		t.Error("a start or a GC goes on")
	}
	if err := errors.Join(s.record.Close(), os.RemoveAll(n.state())); err != nil {
		t.Fatal(err)
	}
	again, err := n.serveOptions().newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = again.record.Close() })
	if err := again.start(t.Context(), []string{n.runtimeLists(`[{"name":"web-a","containerIDs":["a"]}]`)}); err == nil {
		t.Errorf("the first record is written: %v", again.record.Entries())
	}
}

// Where it can't be noted or known since when a take-over lasts, none begins or ends.
func TestTakeOverFileFails(t *testing.T) {
	s := newNode(t).newServer()
	elsewhere := &server{stateDir: filepath.Join(t.TempDir(), "none")}
	for _, row := range []struct {
		reason string
		t      takeOver
		is     error
	}{
		{"a directory is in its place", takeOver{s, t.TempDir()}, syscall.EISDIR},
		{"it can't be synced", takeOver{s, "/dev/null"}, syscall.EINVAL},
		{"nor its directory", takeOver{elsewhere, filepath.Join(t.TempDir(), "taking-over")}, syscall.ENOENT},
	} {
		if err := row.t.begin(); !errors.Is(err, row.is) {
			t.Errorf("%s: got %v, want %v", row.reason, err, row.is)
		}
	}
	unknown := takeOver{s, "/dev/null/taking-over"}
	for _, row := range []struct {
		reason string
		s      *server
		inIt   string // what is in the place of the file
	}{
		{"the reservations can't be listed", &server{store: hostlocal.New("/dev/null"), intents: s.intents, stateDir: s.stateDir}, ""},
		{"nor the intents", &server{store: s.store, intents: intents{"/dev/null"}, stateDir: s.stateDir}, ""},
		{"its file can't be removed", &server{store: s.store, intents: s.intents, stateDir: s.stateDir}, "x"},
		{"nor the directory synced", &server{store: s.store, intents: s.intents, stateDir: "/proc"}, ""},
	} {
		file := filepath.Join(t.TempDir(), "taking-over")
		cnitest.Write(t, filepath.Join(file, row.inIt), "", 0)
		cnitest.DateBack(t, file, gc.DefaultMinAge)
		if over, err := (takeOver{row.s, file}).end(t.Context()); over || err == nil {
			t.Errorf("%s: it has ended: %t, %v", row.reason, over, err)
		}
	}
	if err := (&server{store: hostlocal.New("/dev/null")}).recordExisting(t.Context(), podsource.Static{}); err == nil {
		t.Error("the reservations can't be listed, and there is a record")
	}
	over, err := unknown.end(t.Context())
	_, podsErr := unknown.Pods(t.Context())
	s.takeOver = unknown
	startErr := s.start(t.Context(), nil)
	if over || !errors.Is(err, syscall.ENOTDIR) || !errors.Is(podsErr, syscall.ENOTDIR) || !errors.Is(startErr, syscall.ENOTDIR) {
		t.Errorf("it is unknown whether there is one: over: %t, %v; asked: %v; a start: %v", over, err, podsErr, startErr)
	}
}

// At a first start what is young is taken for an attachment, up to the minimum age,
// and has the age of its youngest reservation.
func TestHazard52YoungReservations(t *testing.T) {
	n := newNode(t)
	const margin = 20 * time.Second
	for ip, r := range map[string]struct {
		id  string
		age time.Duration
	}{
		"10.9.1.2": {"young", 0}, "10.9.1.3": {"nearly", gc.DefaultMinAge - margin}, "10.9.1.4": {"old", gc.DefaultMinAge + margin},
		"10.9.1.5": {"known", time.Hour}, "10.9.1.6": {"future", -time.Hour},
		"10.9.1.7": {"both", time.Hour}, "fd00:1::7": {"both", gc.DefaultMinAge - margin},
	} {
		cnitest.Reserve(t, n.dataDir(), "one", ip, r.id, r.age)
	}
	other := n.reserve("three", "10.9.3.2", "other")
	cnitest.Write(t, filepath.Join(n.dataDir(), "one", "10.9.1.9"), "not an owner", 0)
	cnitest.Write(t, filepath.Join(n.dataDir(), "one", "10.9.1.10"), "older", 0) // as host-local wrote it before v0.8
	s, _ := n.takingOver(`[{"name":"web","containerIDs":["known"]}]`)
	got := map[string]int{}
	for _, e := range s.record.Entries() {
		got[e.ContainerID+" "+e.IfName] = len(e.IPs)
	}
	want := map[string]int{"young eth0": 1, "nearly eth0": 1, "known eth0": 1, "future eth0": 1, "both eth0": 2, "older eth0": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses of each attachment in the record (-want +got):\n%s", diff)
	}
	if e, _ := s.record.Get(checkpoint.Key{Network: "one", ContainerID: "both", IfName: "eth0"}); time.Since(e.Time) > gc.DefaultMinAge {
		t.Errorf("an attachment is as old as its oldest reservation: %v", e.Time)
	}
	if !cnitest.Exists(other) || cnitest.Exists(filepath.Join(n.dataDir(), "one", "10.9.1.4")) {
		t.Error("the hook released in a network that is not served, or did not release what is old")
	}
}

// A pod that is starting may own whatever was reserved since it was started, and one
// without any such reservation does not stop the server, for which it waits.
func TestFirstRecordBesideStartingPods(t *testing.T) {
	start := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, row := range []struct {
		reason, pods string
		want         []string
	}{
		{"it was started before the younger one was reserved", `{"name":"web","startedAt":"` + start + `"}`, []string{"a", "since"}},
		{"nobody knows when it was started", `{"name":"web"}`, []string{"a", "before", "since"}},
		{"it starts in the future", `{"name":"web","startedAt":"` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `"}`, []string{"a", "before", "since"}},
		{"it has more addresses than are known", `{"name":"web","ips":["10.9.1.99"],"moreIPs":true,"startedAt":"` + start + `"}`, []string{"a", "since"}},
		{"it was started after all", `{"name":"web","startedAt":"` + time.Now().UTC().Format(time.RFC3339) + `"}`, []string{"a"}},
		{"it has finished", `{"name":"web","finished":true}`, []string{"a"}},
		{"it is in the node's network", `{"name":"web","hostNetwork":true,"ips":["10.9.1.3"]}`, []string{"a"}},
	} {
		n := newNode(t)
		for ip, r := range map[string]struct {
			id  string
			age time.Duration
		}{"10.9.1.2": {"a", 3 * time.Hour}, "10.9.1.3": {"before", 2 * time.Hour}, "10.9.1.4": {"since", time.Hour / 2}} {
			cnitest.Reserve(t, n.dataDir(), "one", ip, r.id, r.age)
		}
		cnitest.Reserve(t, n.dataDir(), "two", "10.9.2.2", "a", 3*time.Hour)
		s, _ := n.takingOver(`[{"name":"web-a","ips":["10.9.1.2"]},` + row.pods + `]`)
		var got []string
		for _, e := range s.record.Entries() {
			if e.Network == "one" {
				got = append(got, e.ContainerID)
			}
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: recorded (-want +got):\n%s", row.reason, diff)
		}
		if _, ok := s.record.Get(checkpoint.Key{Network: "two", ContainerID: "a", IfName: "eth0"}); !ok {
			t.Errorf("%s: the container's attachment to the other network is not recorded", row.reason)
		}
	}
}

// Which containers a pod has, by all that is known of it.
func TestWithContainers(t *testing.T) {
	at := time.Now().Add(-time.Hour)
	ip := netip.MustParseAddr
	all := []checkpoint.Entry{
		{Key: checkpoint.Key{ContainerID: "a"}, IPs: []netip.Addr{ip("10.9.1.2"), ip("fd00:1::2")}, Time: at.Add(-time.Hour)},
		{Key: checkpoint.Key{ContainerID: "b"}, IPs: []netip.Addr{ip("10.9.1.3")}, Time: at},
	}
	for _, row := range []struct {
		reason string
		pod    podsource.Pod
		want   []string
		host   bool
	}{
		{"those that it names", podsource.Pod{ContainerIDs: []string{"x", "y"}}, []string{"x", "y"}, false},
		{"that of the second address, by its second one", podsource.Pod{IPs: []netip.Addr{ip("10.9.1.99"), ip("fd00:1::2")}}, []string{"a"}, false},
		{"reserved in the moment of its start", podsource.Pod{StartedAt: at}, []string{"b"}, false},
		{"reserved before its start: it has nothing to record", podsource.Pod{StartedAt: at.Add(1)}, nil, true},
		{"none, and it is not starting", podsource.Pod{IPs: []netip.Addr{ip("10.9.1.99")}}, nil, false},
	} {
		given := []podsource.Pod{row.pod}
		got := withContainers(given, all)
		if diff := cmp.Diff(row.want, got[0].ContainerIDs); diff != "" || got[0].HostNetwork != row.host {
			t.Errorf("%s: in the node's network: %t (-want +got):\n%s", row.reason, got[0].HostNetwork, diff)
		}
		if len(given[0].ContainerIDs) != len(row.pod.ContainerIDs) {
			t.Errorf("%s: the source's own pod was changed: %+v", row.reason, given)
		}
	}
}

// An attachment has all its addresses, its own interface, and the age of its youngest
// reservation.
func TestAttachmentsOf(t *testing.T) {
	now := time.Now()
	of := func(ip, ifName string, at time.Time) hostlocal.Reservation {
		return hostlocal.Reservation{Network: "one", IP: netip.MustParseAddr(ip), ContainerID: "a", IfName: ifName, ReservedAt: at}
	}
	got, err := (&server{networks: []string{"one"}}).attachmentsOf([]hostlocal.Reservation{
		of("10.9.1.2", "eth0", now), of("10.9.1.3", "net1", now), of("fd00:1::2", "eth0", now.Add(-time.Hour)),
	})
	if err != nil || len(got) != 2 || got[0].Time != now || len(got[0].IPs) != 2 || got[1].IfName != "net1" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The first record has what each of several sources knows, and all of it, or there is none.
func TestFirstRecordOfSeveralSources(t *testing.T) {
	n := newNode(t)
	s, err := n.serveOptions().newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.record.Close() })
	for ip, id := range map[string]string{"10.9.1.2": "a", "10.9.1.3": "b"} {
		cnitest.Reserve(t, n.dataDir(), "one", ip, id, time.Hour)
	}
	first := podsource.Static{{UID: "1", ContainerIDs: []string{"a"}}}
	broken := errors.New("broken")
	fails := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Pods: first}, broken })
	if err := s.recordExisting(t.Context(), fails); !errors.Is(err, broken) {
		t.Errorf("a source fails: got %v, want %v", err, broken)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		cancel()
		return podsource.Answer{Pods: first}, ctx.Err()
	})
	if err := s.recordExisting(ctx, ends); !errors.Is(err, context.Canceled) {
		t.Errorf("the time is up: got %v, want %v", err, context.Canceled)
	}
	second := podsource.Static{{UID: "2", IPs: []netip.Addr{netip.MustParseAddr("10.9.1.3")}}}
	if err := s.recordExisting(t.Context(), podsource.Union(first, second)); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range s.record.Entries() {
		got[e.ContainerID] = string(e.UID)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, got); diff != "" {
		t.Errorf("the pods of the recorded containers (-want +got):\n%s", diff)
	}
}

// In between, what nobody recorded is kept for the minimum age, since an ADD may be
// in flight, and released then.
func TestMinimumAge(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	const margin = 20 * time.Second
	young := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.2", "young", gc.DefaultMinAge-margin)
	old := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.3", "old", gc.DefaultMinAge+margin)
	begun := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.4", "begun", time.Hour)
	if err := s.intents.write(&intent{request: request{ContainerID: "begun", IfName: "eth0"}, Network: "one"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.loop.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !cnitest.Exists(young) || cnitest.Exists(old) || !cnitest.Exists(begun) {
		t.Errorf("there is the young one: %t, the old one: %t, the old one of an ADD that has begun: %t; want the old one gone",
			cnitest.Exists(young), cnitest.Exists(old), cnitest.Exists(begun))
	}
}
