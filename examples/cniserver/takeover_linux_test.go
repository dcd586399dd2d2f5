// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// runtimeLists writes the pods of a runtime to a file, and returns the value of --existing for it.
func (n *node) runtimeLists(pods string) string {
	n.t.Helper()
	file := filepath.Join(n.dir, "runtime.json")
	cnitest.Write(n.t, file, pods, 0)
	return "file:" + file
}

// takingOver returns a server of this process after its first record, from the pods of a
// runtime, and the file of the take-over.
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

// An ADD of the previous server reserves after the first record was written, and the runtime
// does not list its container yet. A start, a GC and a pass keep the address. After the
// take-over its attachment is in the record, and unrecorded addresses are released whatever
// their age.
func TestHazard52AnADDOfAnotherServerEndsLater(t *testing.T) {
	for _, row := range []struct {
		by   string
		call func(n *node, s *server) error
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
		if err := row.call(n, s); err != nil || !cnitest.Exists(file) {
			t.Fatalf("%s during the take-over: %v, and the address is reserved: %t", row.by, err, cnitest.Exists(file))
		}
		if e := s.record.Entries(); len(e) != 1 || !cnitest.Exists(since) {
			t.Errorf("%s during the take-over: it has ended, recorded are %v", row.by, e)
		}
		cnitest.DateBack(t, since, gc.DefaultMinAge+2*time.Minute)
		cnitest.DateBack(t, file, gc.DefaultMinAge+time.Minute)
		old := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.8", sandbox("leaked"), 2*gc.DefaultMinAge+3*time.Minute)
		unfinished := &intent{request: request{ContainerID: "unfinished", IfName: "eth0"}, Network: "one"}
		if err := s.intents.write(unfinished); err != nil {
			t.Fatal(err)
		}
		cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.9", "unfinished", time.Minute)
		also := &intent{request: request{ContainerID: "unfinished-too", IfName: "eth0"}, Network: "one"}
		if err := s.intents.write(also); err != nil {
			t.Fatal(err)
		}
		cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.11", "unfinished-too", time.Minute)
		if _, err := s.takeOver.Pods(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range s.record.Entries() {
			got = append(got, e.ContainerID)
		}
		if e, _ := s.record.Get(known.Key); e.NetNS != known.NetNS {
			t.Errorf("%s after the take-over: a recorded attachment was recorded again: %v", row.by, e)
		}
		if diff := cmp.Diff([]string{"known", "late"}, got); diff != "" || cnitest.Exists(since) {
			t.Errorf("%s after the take-over: it has not ended: %t; recorded (-want +got):\n%s", row.by, cnitest.Exists(since), diff)
		}
		if err := errors.Join(s.intents.remove(unfinished.key("one")), s.intents.remove(also.key("one"))); err != nil {
			t.Fatal(err)
		}
		lost := n.reserve("one", "10.9.1.10", sandbox("lost"))
		if err := row.call(n, s); err != nil || !cnitest.Exists(file) || cnitest.Exists(old) {
			t.Errorf("%s after the take-over: %v; its address is reserved: %t, an old leak: %t", row.by, err, cnitest.Exists(file), cnitest.Exists(old))
		}
		if cnitest.Exists(lost) != (row.by == "a pass") {
			t.Errorf("%s after the take-over: the unrecorded address is reserved: %t", row.by, cnitest.Exists(lost))
		}
	}
}

// The pass that ends a take-over does so before it asks the record, so it does not release an
// address that has reached the minimum age.
func TestHazard52TheTakeOverEndsBeforeTheRecordIsAsked(t *testing.T) {
	n := newNode(t)
	cnitest.Write(t, filepath.Join(n.state(), "taking-over"), "", time.Hour) // of a start that was killed: the next one begins again
	s, since := n.takingOver(`[{"name":"web-a","containerIDs":["a"]}]`)
	if over, err := s.takeOver.end(t.Context()); over || err != nil {
		t.Fatalf("it is over when it begins: %t, %v", over, err)
	}
	file := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.7", "late", gc.DefaultMinAge+time.Minute)
	cnitest.DateBack(t, since, gc.DefaultMinAge+2*time.Minute)
	began, err := s.takeOver.began()
	if err != nil {
		t.Fatal(err)
	}
	limit := n.reserve("one", "10.9.1.8", "limit") // the oldest one that may be late
	if err := os.Chtimes(limit, began, began.Add(-gc.DefaultMinAge)); err != nil {
		t.Fatal(err)
	}
	var lines []string
	logged(s, &lines, func(string) {})
	if _, err := s.loop.Reconcile(t.Context()); err != nil || !cnitest.Exists(file) || !cnitest.Exists(limit) || len(s.record.Entries()) != 2 {
		t.Errorf("%v; the addresses are reserved: %t, %t; recorded: %v", err, cnitest.Exists(file), cnitest.Exists(limit), s.record.Entries())
	}
	if len(lines) != 2 || !strings.Contains(lines[0], `"containerID"="late"`) || !strings.Contains(lines[1], `"containerID"="limit"`) {
		t.Errorf("logged: %q", lines)
	}
}

// A take-over does not end while a request runs: an attachment whose DEL ends after the
// reservations were listed would be recorded again.
func TestTakeOverEndsAlone(t *testing.T) {
	n := newNode(t)
	s, since := n.takingOver(`[{"name":"web-a","containerIDs":["a"]}]`)
	s.gcLock.RLock()
	for _, file := range []string{since, since + "-none"} { // neither can end: too young, and none
		if _, err := (takeOver{s, file}).Pods(t.Context()); err != nil {
			t.Error(err)
		}
	}
	cnitest.DateBack(t, since, gc.DefaultMinAge)
	done := make(chan error, 1)
	go func() { _, err := s.takeOver.Pods(t.Context()); done <- err }()
	cnitest.Until(t, "it waits", func() bool {
		free := s.gcLock.TryRLock() // false while a writer waits
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
		t.Errorf("%v, it has ended: %t; or the lock is still held", err, !cnitest.Exists(since))
	}
}

// If a reservation can't be read, or its attachment can't be recorded, there is no first
// record, and a take-over does not end.
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
		t.Errorf("the record can't be written, and the take-over ends: %t, %v", over, err)
	}
	late := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.8", "late", gc.DefaultMinAge+time.Minute)
	if err := s.gc(t.Context(), n.request("GC", ""), n.delegation()); err == nil || !cnitest.Exists(late) {
		t.Errorf("a GC: %v; the address of an ADD of another server is reserved: %t", err, cnitest.Exists(late))
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	unreadable(t, file)
	if _, err := s.loop.Reconcile(t.Context()); !errors.Is(err, gc.ErrRefused) || !cnitest.Exists(since) {
		t.Errorf("a pass: %v; the take-over has ended: %t", err, !cnitest.Exists(since))
	}
	if _, err := s.assertions(t.Context()); err == nil {
		t.Error("no error for a start or a GC")
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

// An error of the take-over's file is an error of its beginning or its end.
func TestTakeOverFileFails(t *testing.T) {
	s := newNode(t).newServer()
	elsewhere := &server{stateDir: filepath.Join(t.TempDir(), "none")}
	readOnly := filepath.Join(t.TempDir(), "null") // a device there can be opened for writing
	cnitest.Write(t, readOnly, "", 0)
	if err := errors.Join(syscall.Mount("/dev/null", readOnly, "", syscall.MS_BIND, ""),
		syscall.Mount("", readOnly, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(readOnly, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, row := range []struct {
		reason string
		t      takeOver
		is     error
	}{
		{"a directory is in its place", takeOver{s, t.TempDir()}, syscall.EISDIR},
		{"its time can't be set", takeOver{s, readOnly}, syscall.EROFS},
		{"the file can't be synced", takeOver{s, "/dev/null"}, syscall.EINVAL},
		{"its directory can't be synced", takeOver{elsewhere, filepath.Join(t.TempDir(), "taking-over")}, syscall.ENOENT},
	} {
		if err := row.t.begin(); !errors.Is(err, row.is) {
			t.Errorf("%s: got %v, want %v", row.reason, err, row.is)
		}
	}
	unknown := takeOver{s, "/dev/null/taking-over"}
	for _, row := range []struct {
		reason string
		s      *server
		inIt   string // a file below, if it is a directory
	}{
		{"the reservations can't be listed", &server{store: hostlocal.New("/dev/null"), intents: s.intents, stateDir: s.stateDir}, ""},
		{"the intents can't be listed", &server{store: s.store, intents: intents{dir: "/dev/null"}, stateDir: s.stateDir}, ""},
		{"its file can't be removed", &server{store: s.store, intents: s.intents, stateDir: s.stateDir}, "x"},
		{"its directory can't be synced", &server{store: s.store, intents: s.intents, stateDir: "/proc"}, ""},
	} {
		file := filepath.Join(t.TempDir(), "taking-over")
		cnitest.Write(t, filepath.Join(file, row.inIt), "", 0)
		cnitest.DateBack(t, file, gc.DefaultMinAge)
		if over, err := (takeOver{row.s, file}).end(t.Context()); over || err == nil {
			t.Errorf("%s: it is over: %t, %v", row.reason, over, err)
		}
	}
	if err := (&server{store: hostlocal.New("/dev/null")}).recordExisting(t.Context(), podsource.Static{}); err == nil {
		t.Error("the reservations can't be listed, and the first record is written")
	}
	over, err := unknown.end(t.Context())
	_, podsErr := unknown.Pods(t.Context())
	s.takeOver = unknown
	startErr := s.start(t.Context(), nil)
	if over || !errors.Is(err, syscall.ENOTDIR) || !errors.Is(podsErr, syscall.ENOTDIR) || !errors.Is(startErr, syscall.ENOTDIR) {
		t.Errorf("it is unknown whether there is one: over: %t, %v; asked: %v; a start: %v", over, err, podsErr, startErr)
	}
}

// A first start records the attachments of reservations younger than the minimum age. An
// attachment has the age of its youngest reservation.
func TestHazard52YoungReservations(t *testing.T) {
	n := newNode(t)
	const margin = 20 * time.Second
	for ip, r := range map[string]struct {
		id  string
		age time.Duration
	}{
		"10.9.1.2": {"young", 0}, "10.9.1.3": {"nearly", gc.DefaultMinAge - margin}, "10.9.1.4": {sandbox("old"), gc.DefaultMinAge + margin},
		"10.9.1.5": {"known", time.Hour}, "10.9.1.6": {"future", -time.Hour},
		"10.9.1.7": {"both", time.Hour}, "fd00:1::7": {"both", gc.DefaultMinAge - margin},
	} {
		cnitest.Reserve(t, n.dataDir(), "one", ip, r.id, r.age)
	}
	other := n.reserve("three", "10.9.3.2", "other")
	cnitest.Write(t, filepath.Join(n.dataDir(), "one", "10.9.1.9"), "not an owner", 0)
	cnitest.Write(t, filepath.Join(n.dataDir(), "one", "10.9.1.10"), "older", 0) // in the format of host-local before v0.8
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
		t.Errorf("an attachment has the time of its oldest reservation: %v", e.Time)
	}
	if !cnitest.Exists(other) || cnitest.Exists(filepath.Join(n.dataDir(), "one", "10.9.1.4")) {
		t.Error("the hook released in a network that is not served, or did not release an old address")
	}
}

// A starting pod may have any address that was reserved since its start. One without such a
// reservation does not prevent the start of the server, for which it waits.
func TestFirstRecordBesideStartingPods(t *testing.T) {
	start := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, row := range []struct {
		reason, pods string
		want         []string
	}{
		{"started before the younger reservation", `{"name":"web","startedAt":"` + start + `"}`, []string{"a", "since"}},
		{"an unknown time of its start", `{"name":"web"}`, []string{"a", "before", "since"}},
		{"a start in the future", `{"name":"web","startedAt":"` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `"}`, []string{"a", "before", "since"}},
		{"it has more addresses than the listed ones", `{"name":"web","ips":["10.9.1.99"],"moreIPs":true,"startedAt":"` + start + `"}`, []string{"a", "since"}},
		{"started after all reservations", `{"name":"web","startedAt":"` + time.Now().UTC().Format(time.RFC3339) + `"}`, []string{"a"}},
		{"it has finished", `{"name":"web","finished":true}`, []string{"a"}},
		{"in the host network", `{"name":"web","hostNetwork":true,"ips":["10.9.1.3"]}`, []string{"a"}},
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

// withContainers adds the containers with a pod's addresses.
func TestWithContainers(t *testing.T) { synctest.Test(t, testWithContainers) } // the time stands still

func testWithContainers(t *testing.T) {
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
		{"its own containers", podsource.Pod{ContainerIDs: []string{"x", "y"}}, []string{"x", "y"}, false},
		{"the container of its second address", podsource.Pod{IPs: []netip.Addr{ip("10.9.1.99"), ip("fd00:1::2")}}, []string{"a"}, false},
		{"reserved at the time of its start", podsource.Pod{StartedAt: at}, []string{"b"}, false},
		{"reserved before its start: nothing to record", podsource.Pod{StartedAt: at.Add(1)}, nil, true},
		{"a start right now, which is not in the future", podsource.Pod{StartedAt: time.Now()}, nil, true},
		{"a start in the future", podsource.Pod{StartedAt: time.Now().Add(1)}, []string{"a", "b"}, false},
		{"none, and not starting", podsource.Pod{IPs: []netip.Addr{ip("10.9.1.99")}}, nil, false},
	} {
		given := []podsource.Pod{row.pod}
		got := withContainers(given, all)
		if diff := cmp.Diff(row.want, got[0].ContainerIDs); diff != "" || got[0].HostNetwork != row.host {
			t.Errorf("%s: in the host network: %t (-want +got):\n%s", row.reason, got[0].HostNetwork, diff)
		}
		if len(given[0].ContainerIDs) != len(row.pod.ContainerIDs) {
			t.Errorf("%s: the pod of the source was changed: %+v", row.reason, given)
		}
	}
}

// An attachment has all addresses of its interface, and the time of its youngest reservation.
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

// The first record has the pods of each of several sources. If one fails, there is none.
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
		t.Errorf("the context ends: got %v, want %v", err, context.Canceled)
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

// A pass between requests keeps unrecorded addresses for the minimum age, since an ADD may be
// in flight, and then releases them.
func TestMinimumAge(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	const margin = 20 * time.Second
	young := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.2", sandbox("young"), gc.DefaultMinAge-margin)
	old := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.3", sandbox("old"), gc.DefaultMinAge+margin)
	begun := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.4", "begun", time.Hour)
	if err := s.intents.write(&intent{request: request{ContainerID: "begun", IfName: "eth0"}, Network: "one"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.loop.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !cnitest.Exists(young) || cnitest.Exists(old) || !cnitest.Exists(begun) {
		t.Errorf("reserved are the young one: %t, the old one: %t, the old one of an unfinished ADD: %t; want the old one released",
			cnitest.Exists(young), cnitest.Exists(old), cnitest.Exists(begun))
	}
}
