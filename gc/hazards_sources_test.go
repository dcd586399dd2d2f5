// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// This file tests the hazards about answers that don't count (R2, R9, R13).

// R9 and R2: each source that is not supplementary must list a pod, or nothing is released.
func TestHazard06NoPods(t *testing.T) {
	empty := podsource.Answer{Source: "docker", Networks: every}
	host := podsource.Pod{NamespacedName: named("kube-proxy"), HostNetwork: true}
	for _, c := range []struct {
		reason string
		source podsource.Source
		err    error
		says   string
	}{
		{"an empty list", podsource.Static{}, ErrNoPods, "source 1"},
		{"the caller asserts that this is normal", podsource.AllowEmpty(podsource.Static{}), nil, ""},
		{"a pod in the node's network is listed", podsource.Static{host}, nil, ""},
		{"the agent's own pod is required", podsource.AllowEmpty(podsource.Require(podsource.Static{host}, named("agent"))),
			podsource.ErrIncomplete, "agent"},
		{"42 one member sees nobody", answers(criAnswer(), empty), ErrNoPods, "docker"},
		{"42 one without a name is identified by its position", answers(criAnswer(), podsource.Answer{Networks: every}), ErrNoPods, "source 2"},
		{"42 an authoritative one", answers(criAnswer(), podsource.Answer{Networks: every, Authoritative: true}), nil, ""},
		{"42 supplementary answers may be empty", answers(criAnswer(), netnsAnswer(), cacheAnswer(nil)), nil, ""},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("leaked"), old)
			report, err := n.reconciler(c.source, Options{}).Reconcile(t.Context())
			if !errors.Is(err, c.err) || errors.Is(err, ErrRefused) != (c.err != nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got error %v, want %v that says %q", err, c.err, c.says)
			}
			want := ReleasedLeak
			if c.err != nil {
				want = SourceFailed
			}
			n.checkReasons(report, map[string]Reason{"10.0.0.2": want})
		})
	}
}

// R2: one item that is not valid makes the whole list an error, and so does what contradicts itself.
func TestHazard07OneItemFails(t *testing.T) {
	errAway := errors.New("server is away")
	web := named("web")
	list := func(p podsource.Pod) podsource.Answer {
		return podsource.Answer{Networks: every, Pods: []podsource.Pod{other, p}}
	}
	union := func(parts ...podsource.Answer) podsource.Answer { return podsource.Answer{Parts: parts} }
	for _, c := range []struct {
		reason string
		answer podsource.Answer
		says   string
	}{
		{"an address that is not valid", list(podsource.Pod{NamespacedName: web, IPs: append(ips("10.0.0.9"), netip.Addr{})}), "default/web"},
		{"a container ID that is empty", list(podsource.Pod{NamespacedName: web, ContainerIDs: []string{""}}), "default/web"},
		{"a container ID with a scheme", list(podsource.Pod{NamespacedName: web, ContainerIDs: []string{"containerd://abc"}}), "default/web"},
		{"a container ID with white space", list(podsource.Pod{NamespacedName: web, ContainerIDs: []string{"abc", "abc\n"}}), "default/web"},
		{"in a union", union(list(other), list(podsource.Pod{NamespacedName: web, ContainerIDs: []string{""}})), "default/web"},
		{"no network of which it speaks", podsource.Answer{Source: "mine", Pods: []podsource.Pod{other}}, "mine"},
		{"its error is only in the answer", podsource.Answer{Networks: every, Pods: []podsource.Pod{other}, Err: errAway}, "server is away"},
		{"its error is only in a part", union(list(other), podsource.Answer{Supplementary: true, Err: errAway}), "server is away"},
		{"it has a list of parts, which is empty", podsource.Answer{Parts: []podsource.Answer{}}, "no parts"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return c.answer, nil })
			report, err := n.reconciler(source, Options{}).Reconcile(t.Context())
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got error %v, want one that says %s", err, c.says)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Failed})
		})
	}
}

// R2: an answer that doesn't count in the second look is an error, as in the first one.
func TestHazard07SecondLookFails(t *testing.T) {
	for _, c := range []struct {
		reason string
		second podsource.Answer
		want   string
	}{
		{"an item that is not valid", criAnswer(podsource.Pod{NamespacedName: named("web"), ContainerIDs: []string{"containerd://abc"}}), "default/web"},
		{"a list without pods", podsource.Answer{Source: "cri", Networks: every}, ErrNoPods.Error()},
	} {
		t.Run(c.reason, inBubble(func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("leaked"), old)
			source := inTurn(
				[]podsource.Answer{netnsAnswer(), recordAnswer(every), kubeletAnswer(starts()), criAnswer()},
				[]podsource.Answer{netnsAnswer(), recordAnswer(every), kubeletAnswer(starts()), c.second})
			report, err := n.reconciler(source, Options{}).Reconcile(t.Context())
			if report.Looks != 2 || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v after %d looks, want one with %s after two", err, report.Looks, c.want)
			}
			n.check(report, map[string]Verdict{"10.0.0.2": Failed})
		}))
	}
}

// R2: if a source fails in any way, nothing is released, and the error and the report say
// why.
func TestHazard64SourceFails(t *testing.T) {
	errAway := errors.New("server is away")
	fails := func(context.Context) ([]podsource.Pod, error) { return []podsource.Pod{other}, errAway }
	for _, c := range []struct {
		reason string
		source podsource.Source
		want   string
	}{
		{"an error", podsource.Func(fails), "server is away"},
		{"one of two fails, and the other has no pod", podsource.Union(podsource.Static{}, podsource.Func(fails)), "source 2: "},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "leaked", old)
			logs := newLogs(0)
			r := n.reconciler(c.source, Options{Logger: logs.logger()})
			for range 2 { // the next pass is not blocked
				report, err := r.Reconcile(t.Context())
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) || report.Err != err {
					t.Errorf("got error %v, and %v in the report; want one with %q", err, report.Err, c.want)
				}
				n.checkReasons(report, map[string]Reason{"10.0.0.2": SourceFailed})
				for i, s := range report.Sources {
					if failed := i == len(report.Sources)-1; (s.Error != "") != failed {
						t.Errorf("source %d failed: %t; its error in the report is %q", i+1, failed, s.Error)
					}
				}
			}
			if len(logs.lines) != 0 { // its caller has the error
				t.Errorf("a pass that compared nothing logs %v", logs.lines)
			}
		})
	}
}

// R13: a call of the source ends after SourceTimeout, or with the caller's context before. The
// error and the report say so.
func TestHazard64SourceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		hangs := podsource.Func(func(ctx context.Context) ([]podsource.Pod, error) { <-ctx.Done(); return nil, ctx.Err() })
		r := n.reconciler(hangs, Options{SourceTimeout: 7 * time.Second})
		report, err := r.Reconcile(t.Context())
		if !errors.Is(err, ErrRefused) || !errors.Is(err, ErrSourceTimeout) || errors.Is(err, ErrNoPods) {
			t.Errorf("got error %v, want %v", err, ErrSourceTimeout)
		}
		s := report.Sources
		if len(s) != 1 || s[0].Name != "source 1" || s[0].Took != 7*time.Second || !strings.Contains(s[0].Error, "within 7s") {
			t.Errorf("the report has %+v", s)
		}
		n.check(report, map[string]Verdict{"10.0.0.2": Failed})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Reconcile(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrSourceTimeout) {
			t.Errorf("got error %v, want the context's, which ends first", err)
		}
	})
}

// A source that reuses its memory changes neither the first look nor a report that was
// returned.
func TestHazard64SourceReusesItsSlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", hex64("web"), old)
		n.reserve("10.0.0.9", hex64("db"), old)
		calls := 0
		ids := [][]string{{""}, {""}}
		pods := make([]podsource.Pod, 2)
		reuses := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			calls++
			ids[0][0], ids[1][0] = hex64("web"), hex64("db")
			pods[0] = podsource.Pod{NamespacedName: named("web"), ContainerIDs: ids[0], Origin: "process 1"}
			pods[1] = podsource.Pod{NamespacedName: named("db"), ContainerIDs: ids[1]}
			if calls > 1 { // web's ADD is between two plugins
				ids[0][0] = hex64("third")
				pods[0].NamespacedName = named("third")
			}
			a := netnsAnswer(pods...)
			a.Pods = pods // the same memory each time
			return a, nil
		})
		source := podsource.Union(answers(recordAnswer([]string{network1}), kubeletAnswer(starts())), reuses)
		n.reserve("10.0.0.8", hex64("leaked"), old)
		r := n.reconciler(source, Options{})
		report := n.reconcile(r)
		n.check(report, map[string]Verdict{"10.0.0.2": InUse, "10.0.0.8": Released, "10.0.0.9": InUse})
		for i := range pods {
			pods[i] = podsource.Pod{NamespacedName: named("changed")}
		}
		for _, e := range report.Reservations {
			if e.Pod != nil && e.Pod.Name == "changed" {
				t.Errorf("%s: the report changed after it was returned: %v", e.IP, e.Pod)
			}
		}
	})
}

// A source that reuses its memory changes nothing of the first look.
func TestHazard64FirstLookIsKept(t *testing.T) {
	answer := func() podsource.Answer {
		day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		pod := func() podsource.Pod {
			return podsource.Pod{ContainerIDs: []string{"a", "b"}, IPs: ips("10.0.0.2", "10.0.0.3")}
		}
		return podsource.Answer{
			Pods: []podsource.Pod{pod(), pod()}, Networks: []string{"x", "y"}, SeesADDs: []string{"z"}, Gaps: []podsource.Gap{{From: day}, {To: day}},
		}
	}
	given := answer()
	d := declaration{Answer: given}
	d.keep()
	for i := range given.Pods {
		clear(given.Pods[i].ContainerIDs)
		clear(given.Pods[i].IPs)
	}
	clear(given.Pods)
	clear(given.Networks)
	clear(given.SeesADDs)
	clear(given.Gaps)
	if want := answer(); !reflect.DeepEqual(d.Answer, want) {
		t.Errorf("got %+v, want %+v", d.Answer, want)
	}
}

// A source reuses the cache of its answer in the second look (hazard 64).
func TestCacheOfOneMemory(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", hex64("wiped"), time.Hour) // no entry
			n.reserve("10.0.0.3", hex64("dead"), time.Hour)  // so there is a second look
			cache, looks := &podsource.Cache{}, 0
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
				a := cacheAnswer(nil, stale(network1, hex64("dead")))
				if !reuse {
					cache = &podsource.Cache{}
				}
				if *cache = *a.Cache; looks == 0 {
					cache.Since = time.Now().Add(-time.Minute)
				}
				a.Cache = cache
				looks++
				return podsource.Answer{Parts: []podsource.Answer{netnsAnswer(), a}}, nil
			})
			n.checkReasons(n.pass(source, Options{}), map[string]Reason{"10.0.0.2": NotRecorded, "10.0.0.3": ReleasedLeak})
		})
	}
}
