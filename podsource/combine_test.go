// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package podsource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// errMissing is the error of a client whose socket, certificate or configuration is
// missing.
var errMissing = fmt.Errorf("listing pods: %w", &fs.PathError{Op: "open", Path: "/etc/client.pem", Err: os.ErrNotExist})

// fixed returns a source that always returns a and err.
func fixed(a Answer, err error) Source {
	return AnswerFunc(func(context.Context) (Answer, error) { return a, err })
}

// declaring returns an answer with every field set that a source sets.
func declaring(name string) Answer {
	return Answer{
		Source: name, Pods: []Pod{{UID: "1", ContainerIDs: []string{name}}}, AsOf: time.Unix(1700000000, 0), Networks: []string{"podnet"},
		Names: []Names{{Form: Hex64, Lag: RuntimeLag}}, Forms: []Form{Hex64}, SeesADDs: true, SeesAddresses: true,
		Authoritative: true, Supplementary: true, Recorded: []Attachment{{"podnet", name}}, RecordedSince: time.Unix(1600000000, 0), Note: "it rains",
	}
}

// TestUnion: the parts hold the answers unchanged, and the answer of the union
// declares nothing itself.
func TestUnion(t *testing.T) {
	for _, row := range []struct {
		reason  string
		sources []Source
		want    []Answer
	}{
		{"one source", []Source{Static{named("a"), named("b")}}, []Answer{{Pods: []Pod{named("a"), named("b")}}}},
		{"no source has a pod", []Source{Static{}, Static(nil)}, []Answer{{Pods: []Pod{}}, {}}},
		{"two entries for one pod are not merged: neither weakens the other", []Source{
			Static{{UID: "1", HostNetwork: true, Finished: true}}, Static{{UID: "1", ContainerIDs: []string{"abc"}}},
		}, []Answer{{Pods: []Pod{{UID: "1", HostNetwork: true, Finished: true}}}, {Pods: []Pod{{UID: "1", ContainerIDs: []string{"abc"}}}}}},
		{"an entry that two sources have is kept twice", []Source{Static{named("a")}, Static{named("a")}},
			[]Answer{{Pods: []Pod{named("a")}}, {Pods: []Pod{named("a")}}}},
		{"each answer keeps its declarations", []Source{fixed(declaring("a"), nil), Static{named("b")}, fixed(declaring("c"), nil)},
			[]Answer{declaring("a"), {Pods: []Pod{named("b")}}, declaring("c")}},
		{"a union of unions has the members of both", []Source{Union(Static{named("a")}, fixed(declaring("b"), nil)), Union(Static{named("c")})},
			[]Answer{{Pods: []Pod{named("a")}}, declaring("b"), {Pods: []Pod{named("c")}}}},
	} {
		s := Union(row.sources...)
		for range 2 { // the second call gets the same answer
			got, err := s.Pods(t.Context())
			if err != nil {
				t.Errorf("%v: %s", err, row.reason)
			}
			if diff := cmp.Diff(row.want, got.Members(), equal); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
			got.Parts = nil
			if diff := cmp.Diff(Answer{}, got, equal); diff != "" {
				t.Errorf("the answer of the union declares something itself: %s (-want +got):\n%s", row.reason, diff)
			}
		}
	}
}

// TestUnionOfErrors: an error of one source is an error of the union (R2). The parts
// hold the sources that were called, and their answers (R11).
func TestUnionOfErrors(t *testing.T) {
	broken := errors.New("broken")
	agent := types.NamespacedName{Namespace: "default", Name: "agent"}
	a := declaring("a")
	failed := func(a Answer, err error) Answer { a.Err = err; return a }
	half := Answer{Pods: []Pod{named("half-a-list")}}
	for _, row := range []struct {
		reason  string
		sources []Source
		want    error
		says    string
		parts   []Answer
	}{
		{"the only one fails", []Source{failing(broken)}, broken, "pod source 1 of 1: broken", []Answer{failed(half, broken)}},
		{"the last one fails after the others have answered", []Source{fixed(a, nil), Static{named("b")}, failing(broken)}, broken,
			"pod source 3 of 3: broken", []Answer{a, {Pods: []Pod{named("b")}}, failed(half, broken)}},
		{"the first one fails: the others are not called", []Source{failing(broken), unasked(t)}, broken,
			"pod source 1 of 2: broken", []Answer{failed(half, broken)}},
		{"the error has the name of the source", []Source{Static{named("b")}, fixed(Answer{Source: "kubelet"}, broken), unasked(t)}, broken,
			"pod source kubelet: broken", []Answer{{Pods: []Pod{named("b")}}, {Source: "kubelet", Err: broken}}},
		{"in a nested union the error names both positions", []Source{Static{named("b")}, Union(fixed(a, nil), fixed(Answer{Source: "kubelet"}, broken), unasked(t))},
			broken, "pod source 2 of 2: pod source kubelet: broken", []Answer{{Pods: []Pod{named("b")}}, a, {Source: "kubelet", Err: broken}}},
		{"a required pod is missing from an answer", []Source{fixed(a, nil), Require(fixed(declaring("c"), nil), agent)},
			ErrIncomplete, "pod source c: ", []Answer{a, failed(declaring("c"), ErrIncomplete)}},
		{"an incomplete list", []Source{Static{named("a")}, failing(ErrIncomplete)}, ErrIncomplete, "pod source 2 of 2",
			[]Answer{{Pods: []Pod{named("a")}}, failed(half, ErrIncomplete)}},
		{"a source lacks a file", []Source{Static{named("a")}, failing(errMissing)}, fs.ErrNotExist, "client.pem",
			[]Answer{{Pods: []Pod{named("a")}}, failed(half, errMissing)}},
	} {
		got, err := Union(row.sources...).Pods(t.Context())
		if !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.says) {
			t.Errorf("got %v, want %v that says %q: %s", err, row.want, row.says, row.reason)
		}
		if diff := cmp.Diff(row.parts, got.Members(), equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
	if got, err := Union().Pods(t.Context()); err == nil {
		t.Errorf("a union of no sources: got %v, want an error", got)
	}
}

// TestTook: each part has its duration, also one that failed.
func TestTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(d time.Duration, err error) Source {
			return AnswerFunc(func(context.Context) (Answer, error) {
				time.Sleep(d)
				return Answer{Took: time.Hour}, err
			})
		}
		got, _ := Union(slow(time.Second, nil), Union(slow(2*time.Second, nil)), slow(3*time.Second, errors.New("broken"))).Pods(t.Context())
		var took []time.Duration
		for _, m := range got.Members() {
			took = append(took, m.Took)
		}
		if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}; !slices.Equal(took, want) {
			t.Errorf("got %v, want %v", took, want)
		}
	})
}

// TestArgumentsAreCopied: the slice of arguments is not shared, and a source's answer
// is not changed.
func TestArgumentsAreCopied(t *testing.T) {
	arguments := []Source{Static{named("a")}, Static{named("b")}}
	s := Union(arguments...)
	arguments[0] = unasked(t)
	if _, err := s.Pods(t.Context()); err != nil {
		t.Errorf("a source of the arguments' slice was replaced after the call of Union: %v", err)
	}

	inner := Answer{Parts: []Answer{{Pods: []Pod{named("a")}}, {Pods: []Pod{named("b")}}}}
	all := AllowEmpty(fixed(inner, nil))
	got, err := all.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got.Parts[0].Source = "changed"
	if diff := cmp.Diff(Answer{Parts: []Answer{{Pods: []Pod{named("a")}}, {Pods: []Pod{named("b")}}}}, inner, equal); diff != "" {
		t.Errorf("the answer of the source was changed (-want +got):\n%s", diff)
	}
}

// A source is nil if the caller ignored the error of its constructor. The answer is then
// a permanent error.
func TestNilSource(t *testing.T) {
	for _, s := range []Source{Union(Static{named("a")}, nil), Fallback(nil, Static{named("a")}), Fallback(failing(ErrNotHere), nil), Union(nil)} {
		if a, err := s.Pods(t.Context()); !errors.Is(err, ErrPermanent) || !strings.Contains(err.Error(), "nil") {
			t.Errorf("got %v, %v", a, err)
		}
	}
}

func TestFallback(t *testing.T) {
	broken := errors.New("broken")
	notHere := fmt.Errorf("no socket of a kubelet: %w", ErrNotHere)
	for _, row := range []struct {
		reason string
		first  Source
		then   Source
		want   Answer
		errs   []error
		says   string
	}{
		{reason: "the first exists", first: fixed(declaring("a"), nil), then: unasked(t), want: declaring("a")},
		{reason: "the first exists and has no pods: an answer", first: Static{}, then: unasked(t), want: Answer{Pods: []Pod{}}},
		{reason: "the first does not exist: the answer of the second", first: failing(notHere), then: fixed(declaring("b"), nil), want: declaring("b")},
		{reason: "the first returns several errors, one of which is ErrNotHere", first: failing(errors.Join(broken, notHere)), then: Static{named("b")}, want: Answer{Pods: []Pod{named("b")}}},
		{reason: "the first is broken: the second might know less", first: failing(broken), then: unasked(t), errs: []error{broken}},
		{reason: "the first is not ready", first: failing(ErrIncomplete), then: unasked(t), errs: []error{ErrIncomplete}},
		{reason: "the first may not be read", first: failing(fs.ErrPermission), then: unasked(t), errs: []error{fs.ErrPermission}},
		{reason: "the first timed out", first: failing(context.DeadlineExceeded), then: unasked(t), errs: []error{context.DeadlineExceeded}},
		{reason: "neither answers: the error has both reasons", first: failing(notHere), then: failing(broken), errs: []error{broken}, says: "no socket of a kubelet"},
		{reason: "neither exists", first: failing(notHere), then: failing(ErrNotHere), errs: []error{ErrNotHere}, says: "no socket of a kubelet"},
		{reason: "the second is not ready", first: failing(notHere), then: failing(ErrIncomplete), errs: []error{ErrIncomplete}},
	} {
		for range 2 { // the second call gets the same answer
			got, err := Fallback(row.first, row.then).Pods(t.Context())
			if (err != nil) != (row.errs != nil) {
				t.Errorf("%v: %s", err, row.reason)
				continue
			}
			for _, want := range row.errs {
				if !errors.Is(err, want) || !strings.Contains(err.Error(), row.says) {
					t.Errorf("got %v, want %v that says %q: %s", err, want, row.says, row.reason)
				}
				if want != ErrNotHere && errors.Is(err, ErrNotHere) {
					t.Errorf("Fallback would take %v for a source that does not exist: %s", err, row.reason)
				}
			}
			if diff := cmp.Diff(row.want, got, equal); err == nil && diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
		}
	}
}

// TestHazard41NotReadyIsHere: the first choice exists, and is not ready or not
// complete. No wrapped error may make it look as if it did not exist.
func TestHazard41NotReadyIsHere(t *testing.T) {
	agent := types.NamespacedName{Namespace: "default", Name: "agent"}
	here := Static{named("agent")}
	for _, row := range []struct {
		reason string
		first  Source
	}{
		{"its certificate is missing", failing(errMissing)},
		{"its certificate is missing, and it is the second choice of another fallback", Fallback(failing(ErrNotHere), failing(errMissing))},
		{"a nested fallback: its second choice exists and is not ready", Fallback(failing(ErrNotHere), failing(ErrIncomplete))},
		{"one member of a union lacks a file", Union(here, failing(errMissing))},
		{"one member of a union does not exist, the others do", Union(here, failing(ErrNotHere))},
		{"the only member of a union does not exist", Union(failing(ErrNotHere))},
		{"neither of two choices of a member exists", Union(here, Fallback(failing(ErrNotHere), failing(ErrNotHere)))},
		{"a member of a nested union", Union(here, Union(here, failing(ErrNotHere)))},
		{"through Require", Require(Union(here, failing(ErrNotHere)), agent)},
		{"through AllowEmpty", AllowEmpty(Union(here, failing(ErrNotHere)))},
		{"it lacks the required pod", Require(Static{named("other")}, agent)},
	} {
		got, err := Fallback(row.first, unasked(t)).Pods(t.Context())
		if err == nil || errors.Is(err, ErrNotHere) {
			t.Errorf("got %v, %v, want an error that is not %v: %s", got, err, ErrNotHere, row.reason)
		}
	}
	for _, row := range []struct {
		reason string
		first  Source
	}{
		{"a nested fallback: neither choice exists", Fallback(failing(ErrNotHere), failing(ErrNotHere))},
		{"through Require: there was no answer to check", Require(failing(ErrNotHere), agent)},
		{"through AllowEmpty", AllowEmpty(failing(ErrNotHere))},
	} {
		got, err := Fallback(row.first, here).Pods(t.Context())
		if diff := cmp.Diff(Answer{Pods: here}, got, equal); err != nil || diff != "" {
			t.Errorf("%v: the second choice was not used: %s (-want +got):\n%s", err, row.reason, diff)
		}
	}
}

func TestRequire(t *testing.T) {
	agent := types.NamespacedName{Namespace: "kube-system", Name: "agent-x7k2p"}
	here := Pod{NamespacedName: agent, UID: "1", HostNetwork: true}
	finished := func(p Pod, at time.Time) Pod { p.Finished, p.FinishedAt = true, at; return p }
	broken := errors.New("broken")
	for _, row := range []struct {
		reason string
		source Source
		want   []Pod // of all members, when there is no error
		err    error
	}{
		{"the agent is in the list", Static{named("a"), here}, []Pod{named("a"), here}, nil},
		{"the agent alone", Static{here}, []Pod{here}, nil},
		{"one member of a union has it", Union(Static{named("a")}, Static{here}), []Pod{named("a"), here}, nil},
		{"a required member has it", Union(Static{named("a")}, Require(Static{here}, agent)), []Pod{named("a"), here}, nil},
		{"an older pod of its name has finished, and it runs", Static{finished(here, time.Time{}), here}, []Pod{finished(here, time.Time{}), here}, nil},
		{"no pods", Static{}, nil, ErrIncomplete},
		{"only other pods", Static{named("a"), named("b")}, nil, ErrIncomplete},
		{"a pod of its name in another namespace", Static{named(agent.Name)}, nil, ErrIncomplete},
		{"another pod in its namespace", Static{{NamespacedName: types.NamespacedName{Namespace: agent.Namespace, Name: "agent"}}}, nil, ErrIncomplete},
		{"a sandbox without a name", Static{{UID: "1", ContainerIDs: []string{"abc"}}}, nil, ErrIncomplete},
		{"it has finished, but this process runs: the list is old or another node's", Static{finished(here, time.Unix(1700000000, 0))}, nil, ErrIncomplete},
		{"it has finished at an unknown time", Static{finished(here, time.Time{})}, nil, ErrIncomplete},
		{"it has a FinishedAt without Finished", Static{{NamespacedName: agent, FinishedAt: time.Unix(1700000000, 0)}}, nil, ErrIncomplete},
		{"another member of the union has it, the required one does not", Union(Static{here}, Require(Static{named("a")}, agent)), nil, ErrIncomplete},
		{"it has finished in each member of a union", Require(Union(Static{finished(here, time.Time{})}, Static{}), agent), nil, ErrIncomplete},
		{"the source fails", failing(broken), nil, broken},
		{"the source fails, and returns the agent beside its error", fixed(Answer{Pods: []Pod{here}}, broken), nil, broken},
	} {
		got, err := Require(row.source, agent).Pods(t.Context())
		if !errors.Is(err, row.err) {
			t.Errorf("got %v, want %v: %s", err, row.err, row.reason)
		}
		var pods []Pod
		for _, m := range got.Members() {
			pods = append(pods, m.Pods...)
		}
		if diff := cmp.Diff(row.want, pods, equal); err == nil && diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if errors.Is(row.err, ErrIncomplete) && !strings.Contains(err.Error(), agent.String()) {
			t.Errorf("%q does not name %s: %s", err, agent, row.reason)
		}
	}
	for _, unset := range []types.NamespacedName{{}, {Namespace: "kube-system"}} {
		if got, err := Require(Static{{ContainerIDs: []string{"abc"}}, here}, unset).Pods(t.Context()); err == nil {
			t.Errorf("a required pod without a name was accepted: %v", got)
		}
	}
	got, err := Require(fixed(declaring("a"), nil), types.NamespacedName{}).Pods(t.Context())
	if diff := cmp.Diff(declaring("a"), got, equal); diff != "" || err == nil {
		t.Errorf("the answer of the source beside the error %v (-want +got):\n%s", err, diff)
	}
}

// TestAllowEmpty: the caller's assertion covers each answer of its source, and no other
// source. An error stays an error.
func TestAllowEmpty(t *testing.T) {
	plain, asserted := Answer{Pods: []Pod{named("a")}}, Answer{Pods: []Pod{named("a")}, Authoritative: true}
	broken := errors.New("broken")
	for _, row := range []struct {
		reason string
		source Source
		want   []Answer
		err    error
	}{
		{"no pods", AllowEmpty(Static{}), []Answer{{Pods: []Pod{}, Authoritative: true}}, nil},
		{"one pod: the next answer may be empty", AllowEmpty(Static{named("a")}), []Answer{asserted}, nil},
		{"its other declarations are unchanged", AllowEmpty(fixed(declaring("a"), nil)), []Answer{declaring("a")}, nil},
		{"each member of a union, also of a nested one", AllowEmpty(Union(Static{named("a")}, Union(Static{named("a")}))), []Answer{asserted, asserted}, nil},
		{"another member of the union is not covered", Union(AllowEmpty(Static{named("a")}), Static{named("a")}), []Answer{asserted, plain}, nil},
		{"an error stays an error", AllowEmpty(fixed(plain, broken)), []Answer{{Pods: plain.Pods, Err: broken}}, broken},
	} {
		got, err := row.source.Pods(t.Context())
		if !errors.Is(err, row.err) {
			t.Errorf("got %v, want %v: %s", err, row.err, row.reason)
		}
		if diff := cmp.Diff(row.want, got.Members(), equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}
