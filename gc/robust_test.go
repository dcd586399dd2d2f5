// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A finished pod that has neither name, UID nor container ID.
func TestFinishedWithoutName(t *testing.T) {
	for name, p := range map[string]podsource.Pod{
		"by address": {IPs: ips("10.0.0.2"), Finished: true},
		"by nothing": {Finished: true},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "dead", 24*time.Hour)
			r := n.reconciler(podsource.Static{other, p}, Options{})
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": map[bool]Verdict{true: InUse, false: Starting}[len(p.IPs) > 0]})
			time.Sleep(time.Hour)
			n.check(n.reconcile(r), map[string]Verdict{"10.0.0.2": Released})
		}))
	}
}

// A finished pod of the same name, without a UID, one after the other.
func TestFinishedSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var p podsource.Pod
		r := n.reconciler(podsource.Func(func(context.Context) ([]podsource.Pod, error) { return []podsource.Pod{other, p}, nil }), Options{})
		p = podsource.Pod{NamespacedName: named("job"), ContainerIDs: []string{"first"}, Finished: true}
		n.reconcile(r)
		n.reserve("10.0.0.2", "second", 0)
		time.Sleep(10 * time.Minute)
		p = podsource.Pod{NamespacedName: named("job"), ContainerIDs: []string{"second"}, Finished: true} // seen finished for the first time
		n.reconcile(r)
		if !n.exists("10.0.0.2") {
			t.Error("released at the first sight of its pod's end")
		}
	})
}

// A step back that is too small to be seen, and R4.
func TestSmallStepAndStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		clk := &clocks{uptime: 30 * 24 * time.Hour}
		web := startingPod("web", time.Time{})
		r := newReconciler(t, n.store, []string{network1}, podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			return []podsource.Pod{other, web}, nil
		}), Options{}, clk)
		web.StartedAt = clk.wall()
		clk.step = -90 * time.Millisecond
		time.Sleep(50 * time.Millisecond)
		n.fileAt(network1, "10.0.0.2", "web\r\neth0", clk.wall())
		time.Sleep(8 * time.Minute)
		n.reconcile(r)
		if !n.exists("10.0.0.2") {
			t.Error("released although the starting pod may hold it")
		}
	})
}

// A file system that stamps whole seconds.
func TestWholeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		time.Sleep(300 * time.Millisecond)
		web := startingPod("web", time.Now())
		time.Sleep(200 * time.Millisecond)
		n.fileAt(network1, "10.0.0.2", "web\r\neth0", time.Now().Truncate(time.Second))
		r := n.reconciler(podsource.Static{other, web}, Options{})
		time.Sleep(8 * time.Minute)
		n.reconcile(r)
		if !n.exists("10.0.0.2") {
			t.Error("released although the starting pod may hold it")
		}
	})
}

// The networks of Names are the source's memory in the first look.
func TestSourceReusesNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", 24*time.Hour)
		nets := []string{"elsewhere"}
		asked := 0
		record := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			asked++
			nets[0] = "elsewhere"
			if asked == 2 {
				nets[0] = network1
			}
			a := podsource.Answer{Source: "record", Authoritative: true, Names: []podsource.Names{{Form: podsource.AnyForm, Networks: nets}}}
			return a, nil
		})
		n.network("elsewhere")
		n.reserveIn("elsewhere", "10.1.0.2", "leaked2", 24*time.Hour) // wants the second look
		r := n.reconcilerOf([]string{network1, "elsewhere"}, podsource.Union(record, answers(netnsAnswer()), podsource.Static{startingPod("stuck", time.Now().Add(-48*time.Hour))}), Options{})
		report := n.reconcile(r)
		if report.Looks == 2 && !n.exists("10.0.0.2") {
			t.Error("released on R4's second end, although the first look did not declare it")
		}
	})
}

// An answer that says of itself that it is none.
func TestErrorInAnAnswer(t *testing.T) {
	broken := errors.New("broken")
	for name, src := range map[string]podsource.Source{
		"alone": podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			return podsource.Answer{Pods: []podsource.Pod{other}, Err: broken}, nil
		}),
		"in a part": podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			return podsource.Answer{Parts: []podsource.Answer{{Pods: []podsource.Pod{other}}, {Supplementary: true, Err: broken}}}, nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "web", 24*time.Hour)
			if _, err := n.reconciler(src, Options{}).Reconcile(t.Context()); !errors.Is(err, broken) {
				t.Errorf("error %v, want it refused; still there: %v", err, n.exists("10.0.0.2"))
			}
		})
	}
}

func TestLoggerPanicsInStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "web", 24*time.Hour)
		log := funcr.New(func(prefix, args string) { panic("logger") }, funcr.Options{Verbosity: 2})
		r := n.reconciler(podsource.Static{}, Options{Logger: log})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("Start panicked: %v", p)
			}
		}()
		_ = r.Start(ctx)
	})
}

// A date that is centuries old, and a step.
func TestAncientDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		clk := &clocks{uptime: 30 * 24 * time.Hour}
		src := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			return podsource.Answer{Source: "file", Pods: []podsource.Pod{other}, AsOf: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC)}, nil
		})
		n.reserve("10.0.0.2", "web", 0)
		r := newReconciler(t, n.store, []string{network1}, src, Options{}, clk)
		n.reconcile(r)
		clk.step = time.Hour // or a suspend
		time.Sleep(10 * time.Minute)
		n.reconcile(r)
		if !n.exists("10.0.0.2") {
			t.Error("released on a list of the year 1")
		}
	})
}

// Two looks at the same list.
func TestTwoLooksAtOneList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("between two plugins"), 2*time.Minute)
		n.reserve("10.0.0.3", hex64("web"), time.Hour)
		time.Sleep(time.Minute)
		date := time.Now()
		member := func(a podsource.Answer) podsource.Source {
			a.AsOf = date
			return podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return a, nil })
		}
		r := n.reconciler(podsource.Union(
			member(netnsAnswer(configured("10.0.0.3"))),
			member(cacheAnswer([]podsource.Pod{attached(network1, hex64("web"), "10.0.0.3")})),
			member(criAnswer(sandbox("web", hex64("web"), "10.0.0.3"))),
		), Options{MinAge: time.Second})
		report := n.reconcile(r)
		if !n.exists("10.0.0.2") {
			t.Errorf("released on %d looks, both of which are one list of one moment", report.Looks)
		}
	})
}

// A form that is none.
func TestFormTypo(t *testing.T) {
	n := newNode(t)
	if _, err := New(n.store, []string{network1}, podsource.Static{other}, Options{Foreign: []podsource.Form{"default-"}}); err == nil {
		t.Error("a form that matches nothing is accepted: what it was to release is kept for ever")
	}
}
