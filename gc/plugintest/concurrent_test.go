// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A liveList is a source that is always right: workers add a container before its ADD, and
// remove it after its DEL.
type liveList struct {
	mu   sync.Mutex
	live map[string]podsource.Pod
}

func (l *liveList) set(id string, ips []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[id] = podsource.Pod{ContainerIDs: []string{id}, IPs: ips}
}

func (l *liveList) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, id)
}

func (l *liveList) Pods(context.Context) (podsource.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pods := []podsource.Pod{someone}
	for _, p := range l.live {
		pods = append(pods, p)
	}
	return podsource.Answer{Pods: pods}, nil
}

// passes counts passes, and lets goroutines wait for the next one.
type passes struct {
	mu   sync.Mutex
	next *sync.Cond
	n    int
}

func (p *passes) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	p.next.Broadcast()
}

// awaitPass returns when a pass that began after the call has ended.
func (p *passes) awaitPass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for until := p.n + 2; p.n < until; { // the first to end may have begun before
		p.next.Wait()
	}
}

// Workers call the plugin's ADD and DEL while passes run back to back. Some containers get
// no DEL. No live reservation may be released, and each leak must be released once (R12).
// The time of each reservation is set back as soon as its ADD has ended, so that its age
// does not keep it (R5).
func TestPassesBesideAddAndDel(t *testing.T) {
	const workers, rounds, loseEvery, lostPrefix = 4, 40, 5, "lost-"
	p := plugintest.New(t, "podnet",
		plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.31"},
		plugintest.Range{Subnet: "fd00:1::/64", Start: "fd00:1::2", End: "fd00:1::1f"})
	live := &liveList{live: make(map[string]podsource.Pod)}
	count := &passes{}
	count.next = sync.NewCond(&count.mu)
	reconciler := reconcilerOf(t, p, live, gc.Options{})

	released := 0
	pass := func() {
		report, err := reconciler.Reconcile(t.Context())
		if err != nil {
			t.Errorf("pass: %v", err)
		}
		for _, e := range report.Reservations {
			switch e.Verdict {
			case gc.Released:
				released++
				if !strings.HasPrefix(e.ContainerID, lostPrefix) {
					t.Errorf("released %s of %s, which is no leak", e.IP, e.ContainerID)
				}
			case gc.Failed, gc.Malformed:
				t.Errorf("%s of %s: %s (%s), %v", e.IP, e.ContainerID, e.Verdict, e.Reason, e.Err)
			}
		}
		count.done()
	}

	stop := make(chan struct{})
	passing := make(chan struct{})
	go func() {
		defer close(passing)
		for {
			pass()
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var working sync.WaitGroup
	for w := range workers {
		working.Add(1)
		go func() {
			defer working.Done()
			for i := range rounds {
				lose := i%loseEvery == 0
				id := fmt.Sprintf("%d-%d", w, i)
				if lose {
					id = lostPrefix + id
				}
				live.set(id, nil)
				ips, err := p.Add(t.Context(), id, "eth0")
				if err != nil {
					t.Error(err)
					live.remove(id)
					continue
				}
				age(t, p, time.Hour, ips...)
				if w%2 == 0 { // half of the pods have their addresses in the status
					live.set(id, ips)
				}
				count.awaitPass()
				for _, ip := range ips {
					content, err := os.ReadFile(p.File(ip))
					if err != nil || string(content) != id+"\r\neth0" {
						t.Errorf("%s of live container %s holds %q, %v", ip, id, content, err)
					}
				}
				if !lose {
					if err := p.Del(t.Context(), id, "eth0"); err != nil {
						t.Error(err)
					}
				}
				live.remove(id)
			}
		}()
	}
	working.Wait()
	close(stop)
	<-passing
	pass()
	wantDiff(t, "disk", "all were deleted or lost", map[string]string{}, reservations(t, p))
	if want := 2 * workers * rounds / loseEvery; released != want {
		t.Errorf("released %d reservations, want %d: each leak once, in both families", released, want)
	}
}
