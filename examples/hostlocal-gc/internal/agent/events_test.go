// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// An apiServer implements as much of the events API as client-go needs: it creates and patches
// Events.
type apiServer struct {
	*httptest.Server
	config string // a kubeconfig

	mu     sync.Mutex // guards the fields below
	events map[string]*corev1.Event
	asked  []string // method and path, of each request
	wrong  []error
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{events: make(map[string]*corev1.Event)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(s.Close)
	s.config = kubeconfig(t, s.URL)
	return s
}

func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	return put(t, filepath.Join(t.TempDir(), "kubeconfig"), fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, url))
}

func (s *apiServer) handle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	const path = "/api/v1/namespaces/default/events"
	var e *corev1.Event
	switch name := strings.TrimPrefix(r.URL.Path, path+"/"); {
	case r.Method == http.MethodPost && r.URL.Path == path:
		e = &corev1.Event{}
	case r.Method == http.MethodPatch && s.events[name] != nil:
		e = s.events[name]
	default:
		http.NotFound(w, r)
		return
	}
	// A strategic merge patch of an Event consists of the changed fields.
	if err := json.NewDecoder(r.Body).Decode(e); err != nil {
		s.wrong = append(s.wrong, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.events[e.Name] = e
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
	}
	_ = json.NewEncoder(w).Encode(e)
}

// eventKey is the part of an Event that tests check.
type eventKey struct {
	Type, Reason, Message, Kind, Name, UID, Component string
}

// counts returns the Events with their counts.
func (s *apiServer) counts() map[eventKey]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[eventKey]int)
	for _, e := range s.events {
		o := e.InvolvedObject
		out[eventKey{e.Type, e.Reason, e.Message, o.Kind, o.Name, string(o.UID), e.Source.Component}] += int(e.Count)
	}
	return out
}

// A release of many addresses makes one Event. Repeated refusals make one Event with a count.
func TestEvents(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	for i := range 20 {
		add(t, n, fmt.Sprintf("leaked-%d", i), time.Hour)
	}
	live := add(t, n, "live", time.Hour)
	pods := filepath.Join(t.TempDir(), "pods.json")
	writePods(t, pods, pod{ContainerIDs: []string{"live"}})
	api := newAPIServer(t)
	p := start(t, []string{"NODE_NAME=node-1"}, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+pods,
		"--events", "--kubeconfig", api.config, "--interval", "1s")
	released := eventKey{"Normal", eventReleased, "Released what no live pod holds: 20 addresses in network podnet", "Node", "node-1", "node-1", "hostlocal-gc"}
	p.eventually("an Event for the release exists", func() bool { return api.counts()[released] > 0 })
	writePods(t, pods)
	refusal := func() (e eventKey, n int) {
		for e, n := range api.counts() {
			if e.Reason == eventRefused {
				return e, n
			}
		}
		return eventKey{}, 0
	}
	p.eventually("the Event for the refusal counts two", func() bool {
		_, n := refusal()
		return n >= 2
	})
	p.terminate()

	e, times := refusal()
	if !strings.HasPrefix(e.Message, gc.ErrRefused.Error()) || !strings.Contains(e.Message, gc.ErrNoPods.Error()) || e.Type != "Warning" || e.Name != "node-1" {
		t.Errorf("the refusal: %+v", e)
	}
	if diff := cmp.Diff(map[eventKey]int{released: 1, e: times}, api.counts()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for _, a := range api.asked {
		if !strings.HasPrefix(a, "POST ") && !strings.HasPrefix(a, "PATCH ") {
			t.Errorf("it requested %s, for which it has no right", a)
		}
	}
	if len(api.asked) != 1+times || len(api.wrong) > 0 {
		t.Errorf("%d requests for %d Events; errors: %v", len(api.asked), 1+times, api.wrong)
	}
	if !there(n, live) {
		t.Error("the live container lost its address")
	}
}

// A refusal while sources become available at the start makes no Event.
func TestNoEventsAtStart(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	leaked := add(t, n, "leaked", time.Hour)
	pods := filepath.Join(t.TempDir(), "pods.json")
	api := newAPIServer(t)
	p := start(t, []string{"NODE_NAME=node-1"}, "--data-dir", n.DataDir, "--network", "podnet", "--source", "file:"+pods,
		"--events", "--kubeconfig", api.config, "--startup-timeout", "1h")
	p.eventually("a pass was refused", func() bool {
		refused := regexp.MustCompile(`hostlocal_gc_passes_total{result="refused"} [1-9]`)
		return refused.MatchString(p.get("/metrics").body)
	})
	writePods(t, pods, pod{ContainerIDs: []string{"live"}})
	p.eventually("an Event for the release exists", func() bool { return len(api.counts()) > 0 })
	for e := range api.counts() {
		if e.Reason != eventReleased || e.Message != "Released what no live pod holds: 1 address in network podnet" {
			t.Errorf("%+v", e)
		}
	}
	if there(n, leaked) {
		t.Error("what leaked is still there")
	}
	p.terminate()
}
