// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package podsource

import (
	std "cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

var (
	errBroken = errors.New("broken")
	// errMissing is the error of a client without its certificate.
	errMissing = fmt.Errorf("listing pods: %w", &fs.PathError{Op: "open", Path: "/etc/client.pem", Err: os.ErrNotExist})
)

// fixed returns a source that always returns a and err.
func fixed(a Answer, err error) Source {
	return AnswerFunc(func(context.Context) (Answer, error) { return a, err })
}

// declaring returns an answer with every field set that a source sets.
func declaring(name string) Answer {
	return Answer{
		Source: name, Pods: []Pod{{UID: "1", ContainerIDs: []string{name}}}, AsOf: time.Unix(1700000000, 0), Networks: []string{"podnet"},
		Names: AnyContainer, AtOnce: true, SeesADDs: []string{"podnet"}, SeesAddresses: true, Authoritative: true, Supplementary: true,
		Cache: &Cache{Entries: []Attachment{{Network: "podnet", ContainerID: name}}, Since: map[string]time.Time{"podnet": time.Unix(16e8, 0)}},
		Gaps:  []Gap{{From: time.Unix(16e8, 0)}},
		Note:  "it rains",
	}
}

// A row is a call of a source. If err is not nil, only the parts of the answer are compared.
type row struct {
	reason string
	source Source
	want   Answer
	err    error
	says   string // in err
}

// errAny, as the error of a row, is any error but ErrNotHere.
var errAny = errors.New("any error")

// run checks rows, each twice: the second call must get the same answer.
func run(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range slices.Concat(rows, rows) {
		got, err := r.source.Pods(t.Context())
		if errors.Is(r.err, errAny) && err != nil && !errors.Is(err, ErrNotHere) {
			r.err = err
		}
		if !errors.Is(err, r.err) || err != nil && !strings.Contains(err.Error(), r.says) {
			t.Errorf("got error %v, want %v that says %q: %s", err, r.err, r.says, r.reason)
		}
		if diff := cmp.Diff(r.want, got, equal); diff != "" && (err == nil || r.want.Parts != nil) {
			t.Errorf("%s (-want +got):\n%s", r.reason, diff)
		}
	}
}

// TestUnion: the parts are the answers, unchanged, and the union declares nothing itself. An
// error of one source is an error of the union that names it (R2, R11).
func TestUnion(t *testing.T) {
	a, b, c, half := declaring("a"), plain(named("b")), declaring("c"), plain(named("half-a-list"))
	one, other := plain(Pod{UID: "1", HostNetwork: true}), plain(Pod{UID: "1", ContainerIDs: []string{"abc"}})
	is := func(a Answer) Source { return fixed(a, nil) }
	parts := func(all ...Answer) Answer {
		for i := range all { // a source without a name gets its position in the order of the calls
			all[i].Source = std.Or(all[i].Source, fmt.Sprintf("source %d", i+1))
		}
		return Answer{Parts: all}
	}
	failed := func(a Answer, err error) Answer { a.Err = err; return a }
	broken, kubelet := failed(half, errBroken), failed(Answer{Source: "kubelet"}, errBroken)
	inner := Union(failing(errBroken))
	run(t, []row{
		{"no source has a pod", Union(is(Answer{}), is(Answer{})), parts(Answer{}, Answer{}), nil, ""},
		{"entries for one pod are not merged: neither weakens the other", Union(is(one), is(other)), parts(one, other), nil, ""},
		{"an entry that two sources have is kept twice", Union(is(b), is(b)), parts(b, b), nil, ""},
		{"each answer keeps its declarations", Union(is(a), is(b), is(c)), parts(a, b, c), nil, ""},
		{"a union of unions has the members of both", Union(Union(is(a), Union(is(b))), Union(is(c))), parts(a, b, c), nil, ""},
		{"the last one fails", Union(is(a), is(b), failing(errBroken)), parts(a, b, broken), errBroken, "source 3: broken"},
		{"its own name", Union(is(b), is(kubelet)), parts(b, kubelet), errBroken, "source kubelet: broken"},
		{"a nested union: its position in the whole", Union(is(b), Union(is(a), inner)), parts(b, a, broken), errBroken, "source 3: "},
		{"... and in the nested one", inner, parts(broken), errBroken, "source 1: "},
		{"it lacks a file", Union(failing(errMissing)), parts(failed(half, errMissing)), fs.ErrNotExist, "client.pem"},
		{"it is not here, but others are", Union(is(b), failing(ErrNotHere)), parts(b, failed(half, ErrNotHere)), errAny, ErrNotHere.Error()},
	})
}

// TestMisuse: what can't work is an error of each call that says what to do. A source is nil if
// the caller ignored the error of its constructor.
func TestMisuse(t *testing.T) {
	a, agent := Static{named("a"), {}}, named("a").NamespacedName
	run(t, []row{
		{"nil", Union(a, nil), Answer{}, ErrPermanent, "pod source 2: there is none, or it is nil"},
		{"nil as a choice", Fallback(failing(ErrNotHere), nil), Answer{}, ErrPermanent, "nil"},
		{"no member", Union(), Answer{}, ErrPermanent, "pod source 1: there is none"},
		{"a nested union without a member", Union(a, Union()), Answer{}, ErrPermanent, "pod source 2: there is none"},
		{"around a union", Union(Require(Union(a), agent)), Answer{Parts: []Answer{{Source: "source 1", Err: ErrPermanent}}}, ErrPermanent,
			"go around the member"},
		{"... that is nested", Union(a, AllowEmpty(Union(a))), Answer{}, ErrPermanent, "go around the member"},
		{"no name", Require(a, types.NamespacedName{}), Answer{}, ErrPermanent, "no name"},
	})
}

// A ranked source appends its name to asked in each call.
type ranked struct {
	name  string
	rank  Rank
	err   error
	asked *[]string
}

func (r ranked) Rank() Rank { return r.rank }

func (r ranked) Pods(context.Context) (Answer, error) {
	*r.asked = append(*r.asked, r.name)
	return Answer{Source: r.name, Pods: []Pod{named(r.name)}}, r.err
}

// TestRank: members are called by rank, whatever the order of arguments and the nesting, and
// none is called after an error. A Fallback is called as one.
func TestRank(t *testing.T) {
	var asked []string
	source := func(name string, rank Rank, err error) Source { return ranked{name, rank, err, &asked} }
	adds, namespaces := source("adds", RankADDs, nil), source("namespaces", RankAddresses, nil)
	cache, cache2 := source("cache", RankCache, nil), source("cache2", RankCache, nil)
	runtime, kubelet := source("runtime", RankRuntime, nil), source("kubelet", RankPods, nil)
	noCache, noKubelet := source("no-cache", RankCache, ErrNotHere), source("no-kubelet", RankPods, ErrNotHere)
	broken := source("broken", RankRuntime, errBroken)
	unranked := Func(func(context.Context) ([]Pod, error) { asked = append(asked, "unranked"); return nil, nil })
	require := func(s Source, name string) Source { return Require(s, named(name).NamespacedName) }
	for _, row := range []struct {
		reason string
		source Source
		want   string
	}{
		{"by rank", Union(kubelet, runtime, cache, namespaces, adds), "adds namespaces cache runtime kubelet"},
		{"members of one rank in the order of arguments", Union(cache2, namespaces, cache), "namespaces cache2 cache"},
		{"a source without a rank is called last", Union(unranked, kubelet, runtime), "runtime unranked kubelet"},
		{"a nested union between two members", Union(kubelet, Union(runtime, adds), namespaces), "adds namespaces runtime kubelet"},
		{"through Require and AllowEmpty", Union(require(kubelet, "kubelet"), AllowEmpty(runtime), adds), "adds runtime kubelet"},
		{"the second at the rank of the first", Union(cache2, Fallback(noCache, kubelet), namespaces), "namespaces cache2 no-cache kubelet"},
		{"... and the reverse", Union(unranked, Fallback(noKubelet, runtime), namespaces), "namespaces no-kubelet runtime unranked"},
		{"a union as one, at its earliest rank", Union(cache, Fallback(Union(kubelet, adds), unranked)), "adds kubelet cache"},
		{"... as the second choice", Union(cache, Fallback(noKubelet, Union(kubelet, adds))), "no-kubelet adds kubelet cache"},
		{"... of a second choice", Union(cache, Fallback(noKubelet, Fallback(noCache, Union(adds)))), "no-kubelet no-cache adds cache"},
		{"after an error no source is called", Union(kubelet, broken, cache), "cache broken"},
		{"... as one that does not exist and has no fallback", Union(kubelet, noCache, runtime), "no-cache"},
		{"... as a missing required pod", Union(kubelet, require(cache, "runtime"), runtime), "cache"},
		{"... of the second choice", Union(kubelet, Fallback(noCache, broken), unranked), "no-cache broken"},
	} {
		for range 2 { // the second call is like the first
			asked = nil
			_, _ = row.source.Pods(t.Context()) // TestUnion and others check the answers
			if got := strings.Join(asked, " "); got != row.want {
				t.Errorf("asked %s, want %s: %s", got, row.want, row.reason)
			}
		}
	}
}

// lateContext ends without a signal.
type lateContext struct {
	context.Context
	err error
}

func (c *lateContext) Err() error { return c.err }

// An answer from after the end of the context may be incomplete. If the source returns its own
// error then, the error has both.
func TestHazard37AnswerAfterTheEnd(t *testing.T) {
	for _, own := range []error{nil, errBroken} {
		ctx := &lateContext{Context: context.WithoutCancel(t.Context())}
		_, err := Union(Func(func(context.Context) ([]Pod, error) { ctx.err = context.Canceled; return nil, own })).Pods(ctx)
		if !errors.Is(err, context.Canceled) || own != nil && !errors.Is(err, own) || !strings.HasPrefix(err.Error(), "pod source 1: ") {
			t.Errorf("got %v, want %v and %v", err, context.Canceled, own)
		}
	}
}

// R13: a panic of a source, and an end of its goroutine, is an error, also in the next call.
func TestHazard64SourceFails(t *testing.T) {
	panics := Func(func(context.Context) ([]Pod, error) { panic("out of range") })
	exits := Func(func(context.Context) ([]Pod, error) { runtime.Goexit(); return nil, nil })
	run(t, []row{
		{"a panic", Union(panics), Answer{}, errAny, "source 1: it panicked: out of range"},
		{"... of a choice", Union(Fallback(AllowEmpty(failing(ErrNotHere)), panics)), Answer{}, errAny, "source 1: it panicked: out of range"},
		{"runtime.Goexit", Union(exits), Answer{}, errAny, "pod source 1: it ended its goroutine"},
	})
}

type stuck struct{ Source } // has a name before it answers

func (stuck) String() string { return "stuck" }

// R13: a union returns when its context ends, and does not call a source that hangs again.
func TestHazard64SourceHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, calls, wake := errors.New("no answer within 7s"), atomic.Int32{}, make(chan struct{})
		asked := Func(func(context.Context) ([]Pod, error) { calls.Add(1); <-wake; return nil, nil })
		hangs := Union(AllowEmpty(Fallback(stuck{asked}, Fallback(Static{}, stuck{}))))
		s := Union(Static{}, hangs)
		for i, says := range []string{
			"pod source stuck or stuck: no answer within 7s",
			"pod source stuck or stuck: an earlier call has not returned: no answer within 7s",
			"pod source stuck or stuck: an earlier call has not returned: no answer within 7s",
		} {
			begun := time.Now()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 7*time.Second, limit)
			got, err := []Source{s, s, hangs}[i].Pods(ctx)
			cancel()
			last := got.Parts[len(got.Parts)-1]
			if !errors.Is(err, limit) || !errors.Is(last.Err, limit) || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, and %v of the part, want %q", err, last.Err, says)
			}
			if took := time.Since(begun); took != 7*time.Second || last.Took != took || calls.Load() != 1 {
				t.Errorf("%d calls in %v, %v of the part", calls.Load(), took, last.Took)
			}
		}
		time.AfterFunc(time.Second, func() { close(wake) })
		if _, err := s.Pods(t.Context()); err != nil || calls.Load() != 2 { // it waits for the earlier call
			t.Errorf("%d calls, %v", calls.Load(), err)
		}
	})
}

func TestFallback(t *testing.T) {
	a, b := declaring("a"), declaring("b")
	notHere, then := failing(fmt.Errorf("no socket of a kubelet: %w", ErrNotHere)), fixed(b, nil)
	run(t, []row{
		{"the first exists", Fallback(fixed(a, nil), unasked(t)), a, nil, ""},
		{"the first exists and has no pods: an answer", Fallback(Static{}, unasked(t)), plain([]Pod{}...), nil, ""},
		{"the first does not exist", Fallback(notHere, then), b, nil, ""},
		{"neither of the first two does", Fallback(Fallback(notHere, notHere), then), b, nil, ""},
		{"through Require and AllowEmpty", Fallback(AllowEmpty(Require(notHere, named("a").NamespacedName)), then), b, nil, ""},
		{"one of several errors is ErrNotHere", Fallback(failing(errors.Join(errBroken, ErrNotHere)), then), b, nil, ""},
		{"neither answers: the error has both reasons", Fallback(notHere, failing(errBroken)), Answer{}, errBroken, "no socket of a kubelet"},
		{"neither exists", Fallback(notHere, failing(ErrNotHere)), Answer{}, ErrNotHere, "no socket of a kubelet"},
	})
}

// TestHazard41NotReadyIsHere: the first choice exists, and is not ready or not complete. No
// wrapped error may make it look as if it did not exist, and the second might know less.
func TestHazard41NotReadyIsHere(t *testing.T) {
	here, notHere, agent := Static{named("agent")}, failing(ErrNotHere), named("agent").NamespacedName
	var rows []row
	for reason, first := range map[string]Source{
		"broken": failing(errBroken), "not ready": failing(ErrIncomplete), "not readable": failing(fs.ErrPermission),
		"late": failing(context.DeadlineExceeded), "its certificate is missing": failing(errMissing),
		"a nested fallback": Fallback(notHere, failing(errMissing)), "one member of a union lacks a file": Union(here, failing(errMissing)),
		"one member does not exist": Union(here, notHere), "the only member": Union(notHere), "a nested union": Union(here, Union(here, notHere)),
		"neither of two choices of a member": Union(here, Fallback(notHere, notHere)), "no required pod": Require(Static{named("other")}, agent),
	} {
		rows = append(rows, row{reason, Fallback(first, unasked(t)), Answer{}, errAny, ""})
	}
	run(t, rows)
}

func TestRequire(t *testing.T) {
	agent, at := types.NamespacedName{Namespace: "kube-system", Name: "agent-x7k2p"}, time.Unix(1700000000, 0)
	here, finished := Pod{NamespacedName: agent, HostNetwork: true}, Pod{NamespacedName: agent, Finished: true}
	whole, part := Answer{Pods: []Pod{named("a"), finished, here}}, Answer{Parts: []Answer{{Supplementary: true}, {Pods: []Pod{here}}}}
	missing := func(reason string, pods ...Pod) row {
		return row{reason, Require(Static(pods), agent), Answer{}, ErrIncomplete, agent.String()}
	}
	run(t, []row{
		{"it runs, and an older pod of its name has finished", Require(fixed(whole, nil), agent), whole, nil, ""},
		{"a part has it: others may be of another node (hazard 85)", Require(fixed(part, nil), agent), Answer{}, ErrPermanent, "go around"},
		{"the source fails, and returns it", Require(fixed(whole, errBroken), agent), whole, errBroken, ""},
		missing("no pods"),
		missing("a pod of its name in another namespace", named(agent.Name)),
		missing("another pod in its namespace", Pod{NamespacedName: types.NamespacedName{Namespace: agent.Namespace, Name: "agent"}}),
		missing("a sandbox without a name", Pod{UID: "1", ContainerIDs: []string{"abc"}}),
		missing("it has finished, but this process runs: the list is old or another node's", finished),
		missing("it has a FinishedAt without Finished", Pod{NamespacedName: agent, FinishedAt: at}),
	})
}

// TestAllowEmpty: the caller's assertion covers each answer of its source, and no other
// source. An error stays an error, and the source's own answer as it is.
func TestAllowEmpty(t *testing.T) {
	kernel := Answer{Parts: []Answer{{Supplementary: true}}}
	may := func(a Answer) Answer { a.Authoritative = true; return a }
	first, second := plain(named("a")), plain(named("a"))
	some, asserted := fixed(first, nil), may(first)
	first.Source, second.Source = "source 1", "source 2"
	run(t, []row{
		{"one pod: the next answer may be empty", AllowEmpty(some), asserted, nil, ""},
		{"its other declarations are unchanged", AllowEmpty(fixed(declaring("a"), nil)), declaring("a"), nil, ""},
		{"parts that may be empty anyway, as the kernel's", AllowEmpty(fixed(kernel, nil)), may(kernel), nil, ""},
		{"a union in a choice (hazard 85)", AllowEmpty(Fallback(Union(some, some), some)), Answer{}, ErrPermanent, "go around"},
		{"another member of a union", Union(AllowEmpty(some), some), Answer{Parts: []Answer{may(first), second}}, nil, ""},
		{"an error stays an error", AllowEmpty(failing(errBroken)), Answer{}, errBroken, ""},
	})
}

// The clock is set forward while the source is there: what was made since the boot stays in its gap.
// What the caller does with its list of networks does not count.
func TestAttachmentsAfterAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		networks := []string{"podnet"}
		source := Attachments(networks, time.Now(), list([]Attachment{{Network: "podnet", ContainerID: "web"}}, nil))
		made := time.Now().Add(-time.Second)
		networks[0] = EveryNetwork
		time.Sleep(1e6 * time.Hour) // the time since the boot is real: the boot seems a hundred years later
		a, err := source.Pods(t.Context())
		if err != nil || len(a.Gaps) != 1 || !a.Gaps[0].From.Before(made) || !a.Gaps[0].To.After(made) {
			t.Errorf("got the gaps %v, %v, want one with %v", a.Gaps, err, made)
		}
	})
}
