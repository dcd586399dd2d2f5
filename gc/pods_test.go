// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A container has two entries, and one lacks a name. The other one stands for it, in a
// report and in a comparison with a claimant.
func TestOwnerIsTheEntryWithAName(t *testing.T) {
	p, nameless := podsource.Pod{NamespacedName: named("p"), ContainerIDs: []string{"a"}}, podsource.Pod{ContainerIDs: []string{"a"}}
	q := podsource.Pod{NamespacedName: named("q"), IPs: ips("10.0.0.2")}
	for _, pods := range []podsource.Static{{nameless, p, q}, {q, p, nameless}} {
		n := newNode(t)
		n.reserve("10.0.0.2", "a", old)
		n.checkReasons(n.pass(pods, Options{}), map[string]Reason{"10.0.0.2": TwoPods})
	}
	n := newNode(t)
	n.reserve("10.0.0.2", "a", old)
	if got := n.pass(podsource.Static{nameless, p}, Options{}).Reservations[0].Pod.Name; got != "p" {
		t.Errorf("the report names the pod %q, want p", got)
	}
}

// Of two entries with the same content, the first stands for the container, and of two pods
// that started together the first is the earliest.
func TestFirstOfEqualEntries(t *testing.T) {
	at := time.Now()
	entry := podsource.Pod{ContainerIDs: []string{"a"}, MoreIPs: true, StartedAt: at}
	answer := declaration{Answer: podsource.Answer{Source: "s", Pods: []podsource.Pod{entry}}}
	s := snapshot{evidence: evidence{{answer, answer}}, clock: &clock{}}
	l := s.indexPods(reading{wall: at})
	if got := l.byContainer["a"].answer; got != 0 {
		t.Errorf("the owner is that of answer %d, want the first", got)
	}
	if l.startEarliest == nil || l.startEarliest.answer != 0 {
		t.Errorf("the earliest is %+v, want that of the first answer", l.startEarliest)
	}
}

// watched counts what package context has left behind in a context that is not its own.
type watched struct {
	context.Context
	ended chan struct{}
	left  int
}

func (c *watched) Done() <-chan struct{} { return c.ended }

func (c *watched) AfterFunc(func()) (stop func() bool) {
	c.left++
	return func() bool { c.left--; return true }
}

// A pass leaves nothing behind in its caller's context, which may never end.
func TestNothingIsLeftInAContext(t *testing.T) {
	ctx := &watched{Context: t.Context(), ended: make(chan struct{})}
	n := newNode(t)
	n.reserve("10.0.0.2", "a", old)
	r := n.reconciler(podsource.Static{other}, Options{})
	if _, err := r.AtStartup(ctx); err != nil || ctx.left != 0 {
		t.Errorf("AtStartup: %v, and %d of its contexts are left", err, ctx.left)
	}
	if _, err := r.reconcileWithTimeout(ctx); err != nil || ctx.left != 0 {
		t.Errorf("a pass of the loop: %v, and %d of its contexts are left", err, ctx.left)
	}
}
