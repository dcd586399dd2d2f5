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

// An apiServer speaks as much of the events API as client-go needs: it takes new
// Events, and patches of those that it has.
type apiServer struct {
	*httptest.Server
	config string // a kubeconfig

	mu     sync.Mutex // guards what follows
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
	// A strategic merge patch of an Event is its fields that changed.
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

// told is an Event, as far as tests look at it.
type told struct {
	Type, Reason, Message, Kind, Name, UID, Component string
}

// told returns the Events, and how often each was told.
func (s *apiServer) told() map[told]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[told]int)
	for _, e := range s.events {
		o := e.InvolvedObject
		out[told{e.Type, e.Reason, e.Message, o.Kind, o.Name, string(o.UID), e.Source.Component}] += int(e.Count)
	}
	return out
}

// The agent tells of a release once, however many addresses it was, and of
// passes that are refused in one Event with a count.
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
	released := told{"Normal", eventReleased, "Released what no live pod holds: 20 addresses in network podnet", "Node", "node-1", "node-1", "hostlocal-gc"}
	p.eventually("it told what it released", func() bool { return api.told()[released] > 0 })
	writePods(t, pods)
	refusal := func() (e told, n int) {
		for e, n := range api.told() {
			if e.Reason == eventRefused {
				return e, n
			}
		}
		return told{}, 0
	}
	p.eventually("it told twice what it refused", func() bool {
		_, n := refusal()
		return n >= 2
	})
	p.terminate()

	e, times := refusal()
	if !strings.HasPrefix(e.Message, gc.ErrRefused.Error()) || !strings.Contains(e.Message, gc.ErrNoPods.Error()) || e.Type != "Warning" || e.Name != "node-1" {
		t.Errorf("the refusal: %+v", e)
	}
	if diff := cmp.Diff(map[told]int{released: 1, e: times}, api.told()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for _, a := range api.asked {
		if !strings.HasPrefix(a, "POST ") && !strings.HasPrefix(a, "PATCH ") {
			t.Errorf("it also asked %s, for which it has no right", a)
		}
	}
	if len(api.asked) != 1+times || len(api.wrong) > 0 {
		t.Errorf("%d requests for %d Events; errors: %v", len(api.asked), 1+times, api.wrong)
	}
	if !there(n, live) {
		t.Error("the live container lost its address")
	}
}

// A refusal while the sources come up is worth no word.
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
	p.eventually("it told what it released", func() bool { return len(api.told()) > 0 })
	for e := range api.told() {
		if e.Reason != eventReleased || e.Message != "Released what no live pod holds: 1 address in network podnet" {
			t.Errorf("%+v", e)
		}
	}
	if there(n, leaked) {
		t.Error("what leaked is still there")
	}
	p.terminate()
}

// An API server that is away, or that hangs, keeps no pass from going on and the
// agent not from ending.
func TestEventsBlockNothing(t *testing.T) {
	hanging := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hanging:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(hanging) })
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, row := range []struct{ reason, url string }{
		{"nobody listens there", gone.URL},
		{"it takes the request and says nothing", hangs.URL},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
			pods := filepath.Join(t.TempDir(), "pods.json")
			writePods(t, pods, pod{ContainerIDs: []string{"live"}})
			p := start(t, nil, "--data-dir", n.DataDir, "--source", "file:"+pods, "--network", "podnet", "--node", "node-1",
				"--events", "--kubeconfig", kubeconfig(t, row.url), "--interval", "1s")
			for i := range 3 { // each a pass after one that had an Event
				leaked := add(t, n, fmt.Sprintf("leaked-%d", i), time.Hour)
				p.eventually("what leaked is released", func() bool {
					writePods(t, pods, pod{ContainerIDs: []string{"live"}}) // a list that is old is refused
					return !there(n, leaked)
				})
			}
			p.terminate()
		})
	}
}
