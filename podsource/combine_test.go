// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// errNoSocket is what a source on a socket that is missing returns.
var errNoSocket = fmt.Errorf("listing pods: %w", &fs.PathError{Op: "dial", Path: "/run/kubelet.sock", Err: os.ErrNotExist})

func ips(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, ip := range list {
		all = append(all, netip.MustParseAddr(ip))
	}
	return all
}

func TestUnion(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "web"}
	early := time.Date(2025, 1, 1, 12, 0, 0, 0, time.UTC)
	late := early.Add(time.Hour)
	for _, row := range []struct {
		reason  string
		sources []Source
		want    []Pod
	}{
		{"one source says it all", []Source{Static{named("a"), named("b")}}, []Pod{named("a"), named("b")}},
		{"live where any says so, in the order in which they say it",
			[]Source{Static{named("b")}, Static{}, Static{named("a"), named("c")}},
			[]Pod{named("b"), named("a"), named("c")}},
		{"nobody has seen a pod", []Source{Static{}, Static{}}, nil},
		{"one UID: the API knows the addresses and the start, the runtime the container", []Source{
			Static{{NamespacedName: name, UID: "1", IPs: ips("10.0.0.1"), StartedAt: early}},
			Static{{UID: "1", ContainerIDs: []string{"abc"}, IPs: ips("10.0.0.1", "fd00::1")}},
		}, []Pod{{NamespacedName: name, UID: "1", ContainerIDs: []string{"abc"}, IPs: ips("10.0.0.1", "fd00::1"), StartedAt: early}}},
		{"the same, asked the other way round", []Source{
			Static{{UID: "1", ContainerIDs: []string{"abc"}, IPs: ips("10.0.0.1", "fd00::1")}},
			Static{{NamespacedName: name, UID: "1", IPs: ips("10.0.0.1"), StartedAt: early}},
		}, []Pod{{NamespacedName: name, UID: "1", ContainerIDs: []string{"abc"}, IPs: ips("10.0.0.1", "fd00::1"), StartedAt: early}}},
		{"one source lists two sandboxes of a pod, the third source a third", []Source{
			Static{{UID: "1", ContainerIDs: []string{"a", "b"}}, {UID: "1", ContainerIDs: []string{"b", "c"}}},
			Static{},
			Static{{UID: "1", ContainerIDs: []string{"d", "a"}}},
		}, []Pod{{UID: "1", ContainerIDs: []string{"a", "b", "c", "d"}}}},
		{"a name that is known is kept", []Source{
			Static{{NamespacedName: name, UID: "1"}},
			Static{{NamespacedName: types.NamespacedName{Namespace: "x", Name: "y"}, UID: "1"}},
		}, []Pod{{NamespacedName: name, UID: "1"}}},
		{"the earliest start: what was reserved since may be the pod's", []Source{
			Static{{UID: "1", StartedAt: late}}, Static{{UID: "1", StartedAt: early}}, Static{{UID: "1", StartedAt: late}},
		}, []Pod{{UID: "1", StartedAt: early}}},
		{"zero is no start", []Source{
			Static{{UID: "1"}}, Static{{UID: "1", StartedAt: late}}, Static{{UID: "1"}},
		}, []Pod{{UID: "1", StartedAt: late}}},
		{"host network, says one", []Source{
			Static{{UID: "1"}}, Static{{UID: "1", HostNetwork: true}}, Static{{UID: "1"}},
		}, []Pod{{UID: "1", HostNetwork: true}}},
		{"what a finished pod's status still lists is no claim of its running sandbox", []Source{
			Static{{UID: "1", IPs: ips("10.0.0.1"), FinishedAt: late}},
			Static{{UID: "1", ContainerIDs: []string{"abc"}, IPs: ips("10.0.0.2")}},
			Static{{UID: "1", IPs: ips("10.0.0.3"), FinishedAt: early}},
			Static{{UID: "1", ContainerIDs: []string{"def"}}},
		}, []Pod{
			{UID: "1", IPs: ips("10.0.0.1", "10.0.0.3"), FinishedAt: late},
			{UID: "1", ContainerIDs: []string{"abc", "def"}, IPs: ips("10.0.0.2")},
		}},
		{"the latest end: until MinAge after it the pod is live", []Source{
			Static{{UID: "1", FinishedAt: early}}, Static{{UID: "1", FinishedAt: late}},
		}, []Pod{{UID: "1", FinishedAt: late}}},
		{"two UIDs of one name are two pods: it was made anew", []Source{
			Static{{NamespacedName: name, UID: "1", IPs: ips("10.0.0.1")}},
			Static{{NamespacedName: name, UID: "2", IPs: ips("10.0.0.2")}},
		}, []Pod{
			{NamespacedName: name, UID: "1", IPs: ips("10.0.0.1")},
			{NamespacedName: name, UID: "2", IPs: ips("10.0.0.2")},
		}},
		{"without a UID nobody knows that two are one", []Source{
			Static{{NamespacedName: name, IPs: ips("10.0.0.1")}, {ContainerIDs: []string{"abc"}}},
			Static{{NamespacedName: name, IPs: ips("10.0.0.1")}, {ContainerIDs: []string{"abc"}}},
		}, []Pod{
			{NamespacedName: name, IPs: ips("10.0.0.1")}, {ContainerIDs: []string{"abc"}},
			{NamespacedName: name, IPs: ips("10.0.0.1")}, {ContainerIDs: []string{"abc"}},
		}},
		{"a union of unions", []Source{
			Union(Static{{UID: "1", ContainerIDs: []string{"a"}}}, Static{named("x")}),
			Union(Static{{UID: "1", ContainerIDs: []string{"b"}}}),
		}, []Pod{{UID: "1", ContainerIDs: []string{"a", "b"}}, named("x")}},
	} {
		s := Union(row.sources...)
		for range 2 { // asking changes nothing
			got, err := s.Pods(t.Context())
			if err != nil {
				t.Errorf("%v: %s", err, row.reason)
			}
			if diff := cmp.Diff(row.want, got, equal); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
		}
	}
}

// TestUnionOfErrors: one silent witness, and nobody knows who lives here (R2).
func TestUnionOfErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, row := range []struct {
		reason  string
		sources []Source
		want    error
		says    string
	}{
		{"the only one fails", []Source{failing(broken)}, broken, "pod source 1 of 1"},
		{"the last one fails", []Source{Static{named("a")}, Static{named("b")}, failing(broken)}, broken, "pod source 3 of 3"},
		{"the first one fails, and the others need not be asked", []Source{failing(broken), unasked(t)}, broken, "pod source 1 of 2"},
		{"a source that is not there is silent too", []Source{Static{named("a")}, failing(errNoSocket)}, fs.ErrNotExist, "kubelet.sock"},
		{"a list that is not complete", []Source{Static{named("a")}, failing(ErrIncomplete)}, ErrIncomplete, "pod source 2 of 2"},
	} {
		got, err := Union(row.sources...).Pods(t.Context())
		if got != nil || !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.says) {
			t.Errorf("got %v, %v, want %v that says %q: %s", got, err, row.want, row.says, row.reason)
		}
	}
	if got, err := Union().Pods(t.Context()); got != nil || err == nil {
		t.Errorf("a union of nothing has seen nothing: got %v, %v, want an error", got, err)
	}
}

// TestUnionLeavesItsSources: what sources return stays theirs, and so does what
// lies behind the end of their slices.
func TestUnionLeavesItsSources(t *testing.T) {
	roomy := func(id, ip string) Pod {
		return Pod{
			UID:          "1",
			ContainerIDs: append(make([]string, 0, 8), id),
			IPs:          append(make([]netip.Addr, 0, 8), netip.MustParseAddr(ip)),
		}
	}
	sources := []Static{
		append(make(Static, 0, 8), roomy("a", "10.0.0.1")),
		{roomy("b", "10.0.0.2"), roomy("c", "10.0.0.3")},
		{roomy("d", "10.0.0.4")},
	}
	s := Union(sources[0], sources[1], sources[2])
	first, err := s.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Pod{{UID: "1", ContainerIDs: []string{"a", "b", "c", "d"}, IPs: ips("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")}}
	if diff := cmp.Diff(want, first, equal); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	for i, want := range []Static{{roomy("a", "10.0.0.1")}, {roomy("b", "10.0.0.2"), roomy("c", "10.0.0.3")}, {roomy("d", "10.0.0.4")}} {
		if diff := cmp.Diff(want, sources[i], equal); diff != "" {
			t.Errorf("source %d was changed (-want +got):\n%s", i, diff)
		}
		for _, p := range sources[i] {
			if id, ip := p.ContainerIDs[:2][1], p.IPs[:2][1]; id != "" || ip.IsValid() {
				t.Errorf("source %d was written to behind its end: %q, %v", i, id, ip)
			}
		}
	}
	if p := sources[0][:2][1]; p.UID != "" {
		t.Errorf("source 0 was written to behind its end: %v", p)
	}

	// Nor does one answer share what it merged with the next.
	first[0].ContainerIDs[0], first[0].IPs[0] = "changed", netip.IPv6Loopback()
	second, err := s.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, second, equal); diff != "" {
		t.Errorf("the second answer (-want +got):\n%s", diff)
	}
}

func TestFallback(t *testing.T) {
	broken := errors.New("broken")
	for _, row := range []struct {
		reason string
		first  Source
		then   Source
		want   []Pod
		errs   []error
		says   string
	}{
		{reason: "the first is there", first: Static{named("a")}, then: unasked(t), want: []Pod{named("a")}},
		{reason: "the first is there and has nothing to tell: an answer", first: Static{}, then: unasked(t), want: []Pod{}},
		{reason: "the first is not there", first: failing(fs.ErrNotExist), then: Static{named("b")}, want: []Pod{named("b")}},
		{reason: "the first is not there, as a client says it", first: failing(errNoSocket), then: Static{named("b")}, want: []Pod{named("b")}},
		{reason: "one of several errors", first: failing(errors.Join(broken, errNoSocket)), then: Static{named("b")}, want: []Pod{named("b")}},
		{reason: "the first is broken: the second may know less", first: failing(broken), then: unasked(t), errs: []error{broken}},
		{reason: "the first is not ready", first: failing(ErrIncomplete), then: unasked(t), errs: []error{ErrIncomplete}},
		{reason: "the first may not be read", first: failing(fs.ErrPermission), then: unasked(t), errs: []error{fs.ErrPermission}},
		{reason: "the first was out of time", first: failing(context.DeadlineExceeded), then: unasked(t), errs: []error{context.DeadlineExceeded}},
		{reason: "neither answers: both are told", first: failing(errNoSocket), then: failing(broken), errs: []error{broken, fs.ErrNotExist}, says: "kubelet.sock"},
		{reason: "neither is there", first: failing(errNoSocket), then: failing(fs.ErrNotExist), errs: []error{fs.ErrNotExist}},
		{reason: "the third is", first: failing(errNoSocket), then: Fallback(failing(errNoSocket), Static{named("c")}), want: []Pod{named("c")}},
		{reason: "neither of two, then the third", first: Fallback(failing(errNoSocket), failing(errNoSocket)), then: Static{named("c")}, want: []Pod{named("c")}},
	} {
		got, err := Fallback(row.first, row.then).Pods(t.Context())
		if (err != nil) != (row.errs != nil) {
			t.Errorf("%v: %s", err, row.reason)
			continue
		}
		for _, want := range row.errs {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("got %v, want %v that says %q: %s", err, want, row.says, row.reason)
			}
		}
		if diff := cmp.Diff(row.want, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

func TestRequire(t *testing.T) {
	agent := types.NamespacedName{Namespace: "kube-system", Name: "agent-x7k2p"}
	here := Pod{NamespacedName: agent, UID: "1", HostNetwork: true}
	broken := errors.New("broken")
	for _, row := range []struct {
		reason string
		source Source
		want   []Pod
		err    error
	}{
		{"the agent is there", Static{named("a"), here}, []Pod{named("a"), here}, nil},
		{"the agent alone", Static{here}, []Pod{here}, nil},
		{"nobody is there", Static{}, nil, ErrIncomplete},
		{"others are there", Static{named("a"), named("b")}, nil, ErrIncomplete},
		{"another of its name", Static{named(agent.Name)}, nil, ErrIncomplete},
		{"another in its namespace", Static{{NamespacedName: types.NamespacedName{Namespace: agent.Namespace, Name: "agent"}}}, nil, ErrIncomplete},
		{"a sandbox without a name", Static{{UID: "1", ContainerIDs: []string{"abc"}}}, nil, ErrIncomplete},
		{"the source fails", failing(broken), nil, broken},
	} {
		got, err := Require(row.source, agent).Pods(t.Context())
		if !errors.Is(err, row.err) {
			t.Errorf("got %v, want %v: %s", err, row.err, row.reason)
		}
		if diff := cmp.Diff(row.want, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if errors.Is(row.err, ErrIncomplete) && !strings.Contains(err.Error(), agent.String()) {
			t.Errorf("%q does not name %s: %s", err, agent, row.reason)
		}
	}
	for _, unset := range []types.NamespacedName{{}, {Namespace: "kube-system"}} {
		if pods, err := Require(Static{{ContainerIDs: []string{"abc"}}, here}, unset).Pods(t.Context()); err == nil {
			t.Errorf("a required pod without a name is found: %v", pods)
		}
	}
}
