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

// reserve makes a reservation as host-local does, of which nobody was told.
func (n *node) reserve(network, ip, id string) (file string) {
	n.t.Helper()
	return cnitest.Reserve(n.t, n.dataDir(), network, ip, id, 0)
}

// An asked source does something once it has answered.
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

// An ADD ends between the two questions of a pass: its record is written, and
// then its intent goes. In whatever order the sources are united, one of them
// names the container, and age protects nothing here.
func TestHazard58AnADDEndsBetweenTwoQuestions(t *testing.T) {
	for _, row := range []struct {
		reason string
		unite  func(s *server, end func()) podsource.Source
	}{
		{"as the server has it", func(s *server, end func()) podsource.Source {
			return podsource.Union(afterAnswer{s.record, end}, afterAnswer{s.intents, end})
		}},
		{"the other way round", func(s *server, end func()) podsource.Source {
			return podsource.Union(afterAnswer{s.intents, end}, afterAnswer{s.record, end})
		}},
	} {
		n := newNode(t)
		s := n.newServer()
		file := n.reserve("one", "10.9.1.7", "c")
		doing := &intent{request: request{ContainerID: "c", IfName: "eth0"}, Network: "one"}
		if err := s.intents.write(doing); err != nil {
			t.Fatal(err)
		}
		key := doing.key("one")
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
			t.Errorf("%s: the test is of no use: the ADD did not end: %v, %v", row.reason, left, err)
		}
	}
}

// serving is what the flags of a server of this process would say.
func (n *node) serveOptions() *serveOptions {
	n.t.Helper()
	o := &serveOptions{stateDir: n.state(), dataDir: n.dataDir(), networks: []string{"one", "two"}, timeout: time.Hour}
	if err := os.MkdirAll(filepath.Join(o.stateDir, "intents"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	return o
}

// newServer is a server of this process, with an empty record.
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

// A GC releases at once what nobody recorded, in its own network and in no other.
func TestHazard74GCOfOneNetwork(t *testing.T) {
	n := newNode(t)
	n.restart()
	one, two := n.list("one", dual), n.list("two", kind{"1.1.0", "ptp", true})
	n.mustAdd(one, "a")
	n.mustAdd(two, "b")
	n.removeCache()
	here, there, unserved := n.reserve("one", "10.9.1.200", "lost"), n.reserve("two", "10.9.2.200", "gone"), n.reserve("three", "10.9.3.200", "c")
	valid := n.reserve("one", "10.9.1.201", "valid") // the runtime knows it, and the record does not
	if err := n.gcNow(one, "a", "valid"); err != nil {
		t.Fatal(err)
	}
	if !cnitest.Exists(valid) {
		t.Error("what the request calls valid has lost its address")
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

// The runtime made its list before an ADD ended, and sends it then: what was
// attached a moment ago stays.
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

// At its start the server releases what nobody recorded in the networks that it
// serves, however young it is, and nothing in others. Of what was reserved while no
// server held the record it does not know (hazard 51).
func TestStartReleases(t *testing.T) {
	n := newNode(t)
	unserved := n.reserve("three", "10.9.3.200", "c") // no reason not to write the first record either
	n.restart()
	lost := n.reserve("two", "10.9.2.200", "lost")
	cnitest.DateBack(t, lost, time.Minute) // by more than a file's timestamp may be wrong
	cnitest.DateBack(t, unserved, time.Minute)
	n.mustAdd(n.list("one", dual), "a")
	n.kill()
	meanwhile := n.reserve("two", "10.9.2.201", "meanwhile")
	n.restart()
	if cnitest.Exists(lost) || !cnitest.Exists(unserved) || !cnitest.Exists(meanwhile) {
		t.Errorf("reserved in a network that is served: %t, while nobody served it: %t, in one that is not: %t",
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

// At the first start of all, nothing that is young is released: another server
// may be in the middle of an ADD.
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
	cnitest.DateBack(t, empty, time.Minute) // the record is kept since
	if !n.start("", "--existing", "file:"+runtime) {
		t.Fatal("the server does not start")
	}
	if !cnitest.Exists(empty) {
		t.Error("a file that a plugin of another server may be about to fill is gone")
	}
	n.restart()
	if !cnitest.Exists(empty) {
		t.Error("the next start, a moment later, is no safer, and the file is gone")
	}
	cnitest.DateBack(t, filepath.Join(n.state(), "taking-over"), gc.DefaultMinAge)
	n.restart()
	if cnitest.Exists(empty) {
		t.Error("the take-over is over, and the server still keeps it")
	}
	n.agree(2, "a")
}
