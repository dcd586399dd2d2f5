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
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// reserve makes an unrecorded reservation, as host-local does.
func (n *node) reserve(network, ip, id string) (file string) {
	n.t.Helper()
	return cnitest.Reserve(n.t, n.dataDir(), network, ip, id, 0)
}

// afterAnswer is a source that calls then after each answer.
type afterAnswer struct {
	podsource.Source
	then func()
}

func (a afterAnswer) Pods(ctx context.Context) (podsource.Answer, error) {
	defer a.then()
	return a.Source.Pods(ctx)
}

func (a afterAnswer) Rank() podsource.Rank {
	if r, ok := a.Source.(podsource.Ranked); ok {
		return r.Rank()
	}
	return podsource.RankPods
}

// An ADD ends between a pass's questions to the intents and to the record: it is recorded,
// and its intent is removed. In any order of the union, one of the two has the container. Its
// age does not protect it here.
func TestHazard58AnADDEndsBetweenTwoQuestions(t *testing.T) {
	for _, row := range []struct {
		reason string
		unite  func(s *server, end func()) podsource.Source
	}{
		{"as the server has it", func(s *server, end func()) podsource.Source {
			return podsource.Union(afterAnswer{s.record, end}, afterAnswer{s.intents, end})
		}},
		{"in the other order", func(s *server, end func()) podsource.Source {
			return podsource.Union(afterAnswer{s.intents, end}, afterAnswer{s.record, end})
		}},
	} {
		n := newNode(t)
		s := n.newServer()
		file := n.reserve("one", "10.9.1.7", "c")
		unfinished := &intent{request: request{ContainerID: "c", IfName: "eth0"}, Network: "one"}
		if err := s.intents.write(unfinished); err != nil {
			t.Fatal(err)
		}
		key := unfinished.key("one")
		end := sync.OnceFunc(func() {
			e := checkpoint.Entry{Key: key, IPs: []netip.Addr{netip.MustParseAddr("10.9.1.7")}}
			if err := errors.Join(s.record.Add(e), s.intents.remove(key)); err != nil {
				t.Error(err)
			}
		})
		r, err := gc.New(s.store, []string{"one"}, row.unite(s, end), gc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		report, err := r.AtStartup(t.Context(), gc.NoADDInFlight)
		if err != nil || !cnitest.Exists(file) {
			t.Errorf("%s: the live container lost its address, or the pass failed: %v, %+v", row.reason, err, report.Counts())
		}
		if left, err := s.intents.all(); err != nil || len(left) > 0 {
			t.Errorf("%s: the ADD did not end: %v, %v", row.reason, left, err)
		}
	}
}

// serveOptions are those of a server of this process.
func (n *node) serveOptions() *serveOptions {
	n.t.Helper()
	o := &serveOptions{stateDir: n.state(), dataDir: n.dataDir(), networks: []string{"one", "two"}, timeout: time.Hour}
	if err := os.MkdirAll(filepath.Join(o.stateDir, "intents"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	return o
}

// newServer returns a server of this process, with an empty record.
func (n *node) newServer() *server {
	n.t.Helper()
	s, err := n.serveOptions().newServer()
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = s.record.Close() })
	if err := s.firstRecord(n.t.Context(), nil); err != nil {
		n.t.Fatal(err)
	}
	return s
}

// A GC releases unrecorded addresses at once, in its own network and in no other.
func TestHazard74GCOfOneNetwork(t *testing.T) {
	n := newNode(t)
	n.restart()
	one, two := n.list("one", dual), n.list("two", kind{"1.1.0", "ptp", true})
	n.mustAdd(one, "a")
	n.mustAdd(two, "b")
	n.removeCache()
	here, there := n.reserve("one", "10.9.1.200", sandbox("lost")), n.reserve("two", "10.9.2.200", sandbox("gone"))
	unserved := n.reserve("three", "10.9.3.200", "c")
	valid := n.reserve("one", "10.9.1.201", "valid") // in the list of the GC, and not in the record
	if err := n.gcNow(one, "a", "valid"); err != nil {
		t.Fatal(err)
	}
	if !cnitest.Exists(valid) {
		t.Error("a valid container lost its address")
	}
	if err := os.Remove(valid); err != nil {
		t.Fatal(err)
	}
	if cnitest.Exists(here) || !cnitest.Exists(there) || !cnitest.Exists(unserved) {
		t.Errorf("reserved in the network of the request: %t, in the other: %t, in one that is not served: %t; want only the last two",
			cnitest.Exists(here), cnitest.Exists(there), cnitest.Exists(unserved))
	}
	if err := n.gcNow(two, "b"); err != nil {
		t.Fatal(err)
	}
	if cnitest.Exists(there) || !cnitest.Exists(unserved) {
		t.Errorf("after a GC of the other network, reserved there: %t, in one that is not served: %t", cnitest.Exists(there), cnitest.Exists(unserved))
	}
	if err := os.RemoveAll(filepath.Dir(unserved)); err != nil {
		t.Fatal(err)
	}
	n.agree(2, "a", "b")
}

// The runtime made its list before an ADD ended, and sends it after that: young attachments
// stay.
func TestGCWithAnOldList(t *testing.T) {
	n := newNode(t)
	if !n.start("", "--gc-min-age", "1h") {
		t.Fatal("the server does not start")
	}
	list := n.list("one", dual)
	n.mustAdd(list, "a")
	n.removeCache()
	if err := n.gcNow(list); err != nil {
		t.Fatal(err)
	}
	n.agree(2, "a")
}

// A GC detaches nothing if the valid attachments are unknown, and no container of a valid pod.
func TestGCDetachesNothing(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	if err := s.record.Add(checkpoint.Entry{Key: checkpoint.Key{Network: "one", ContainerID: "a", IfName: "eth0"}}); err != nil {
		t.Fatal(err)
	}
	unknown := errors.New("unknown")
	for _, row := range []struct {
		reason string
		valid  podsource.Source
		want   error
	}{
		{"the list can't be read", podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{}, unknown }), unknown},
		{"a pod of two containers", podsource.Static{{ContainerIDs: []string{"x", "a"}}}, nil},
	} {
		if err := s.detachInvalid(t.Context(), row.valid, n.request("GC", ""), n.delegation()); !errors.Is(err, row.want) || len(s.record.Entries()) != 1 {
			t.Errorf("%s: %v; recorded: %v", row.reason, err, s.record.Entries())
		}
	}
	if err := s.release(t.Context(), podsource.Static{}, "../one"); err == nil || !strings.Contains(err.Error(), "../one") {
		t.Errorf("the name of the network is invalid: %v", err)
	}
}

// At its start the server releases unrecorded addresses in the served networks, however
// young, and none in other networks. Addresses that were reserved while no server ran are
// kept, since it does not know about them (hazard 51).
func TestStartReleases(t *testing.T) {
	n := newNode(t)
	unserved := n.reserve("three", "10.9.3.200", "c") // which does not prevent the first record
	n.restart()
	lost := n.reserve("two", "10.9.2.200", sandbox("lost"))
	cnitest.DateBack(t, lost, time.Minute) // by more than the granularity of a file's timestamp
	cnitest.DateBack(t, unserved, time.Minute)
	n.mustAdd(n.list("one", dual), "a")
	n.kill()
	meanwhile := n.reserve("two", "10.9.2.201", sandbox("meanwhile"))
	n.restart()
	if cnitest.Exists(lost) || !cnitest.Exists(unserved) || !cnitest.Exists(meanwhile) {
		t.Errorf("reserved in a served network: %t, there while no server ran: %t, in another network: %t",
			cnitest.Exists(lost), cnitest.Exists(meanwhile), cnitest.Exists(unserved))
	}
	if err := os.Remove(meanwhile); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(n.log.String(), "ERROR") {
		t.Errorf("errors:\n%s", n.log)
	}
	if err := os.RemoveAll(filepath.Dir(unserved)); err != nil {
		t.Fatal(err)
	}
	n.agree(2, "a")
}

// The first start releases no young reservation, since an ADD of another server may be in
// flight.
func TestFirstStartKeepsYoungReservations(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.mustAdd(n.list("one", dual), "a")
	n.kill()
	n.dateBack()
	if err := os.RemoveAll(n.state()); err != nil {
		t.Fatal(err)
	}
	runtime := filepath.Join(n.dir, "runtime.json")
	if err := os.WriteFile(runtime, []byte(`[{"name":"web-a","containerIDs":["a"]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := n.reserve("one", "10.9.1.200", "")
	cnitest.DateBack(t, empty, time.Minute) // by more than the granularity of a file's timestamp
	if !n.start("", "--existing", "file:"+runtime) {
		t.Fatal("the server does not start")
	}
	if !cnitest.Exists(empty) {
		t.Error("an empty file, which a plugin of another server may be writing, is gone")
	}
	n.restart()
	if !cnitest.Exists(empty) {
		t.Error("the second start, during the take-over, removed the empty file")
	}
	cnitest.DateBack(t, filepath.Join(n.state(), "taking-over"), gc.DefaultMinAge)
	n.restart()
	if cnitest.Exists(empty) {
		t.Error("after the take-over the empty file is still there")
	}
	n.agree(2, "a")
}

// The intent of an ADD is removed after its attachment is recorded, and not before: if the
// record can't be written and the ADD can't be undone either, the intent is all that is left
// to name the container, for each pass and for the next start.
func TestHazard58IntentOutlivesAFailedRecord(t *testing.T) {
	n := newNode(t)
	fails, _ := n.failing()
	s := n.newServer()
	n.Make("c")
	if err := os.MkdirAll(filepath.Join(n.recordFile()+".tmp", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	cnitest.Write(t, fails, "DEL", 0)
	if _, err := s.handle(t.Context(), n.request("ADD", "c")); err == nil {
		t.Fatal("an ADD succeeds that is not recorded")
	}
	if left, err := s.intents.all(); err != nil || len(left) != 1 || left[0].ContainerID != "c" {
		t.Errorf("%d intents are left: %v", len(left), err)
	}
}
