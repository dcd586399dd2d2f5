// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// equal compares answers without Took.
var equal = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateApproxTime(0), cmpopts.EquateErrors(), cmpopts.IgnoreFields(Answer{}, "Took"),
}

// named returns a pod with nothing but a name.
func named(name string) Pod {
	return Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
}

// plain returns the answer of a list of plain pods.
func plain(pods ...Pod) Answer { return Answer{Pods: pods, Networks: []string{EveryNetwork}} }

// failing returns a source that returns an error, and pods that must not be used.
func failing(err error) Source {
	return Func(func(context.Context) ([]Pod, error) { return []Pod{named("half-a-list")}, err })
}

// unasked returns a source that must not be called.
func unasked(t *testing.T) Source {
	return Func(func(context.Context) ([]Pod, error) {
		t.Error("a source was called that must not be")
		return nil, errors.New("unasked")
	})
}

// TestContext: each source gets the caller's context, and a union calls none with one that has
// ended.
func TestContext(t *testing.T) {
	agent := types.NamespacedName{Namespace: "default", Name: "a"}
	combined := func(s Source) map[string]Source {
		return map[string]Source{
			"union":       Union(s, Static{}),
			"fallback":    Fallback(s, Static{}),
			"then":        Fallback(failing(ErrNotHere), s),
			"require":     Require(s, agent),
			"allow empty": AllowEmpty(s),
			"sandboxes": Union(Sandboxes(func(ctx context.Context) ([]Pod, error) {
				a, err := s.Pods(ctx)
				return a.Pods, err
			})),
			"attachments": Union(Attachments([]string{"podnet"}, Always, func(ctx context.Context) ([]Attachment, error) {
				_, err := s.Pods(ctx)
				return nil, err
			})),
			"all": Union(AllowEmpty(Require(Fallback(failing(ErrNotHere), s), agent))),
		}
	}
	asked := 0
	for name, s := range combined(Func(func(ctx context.Context) ([]Pod, error) {
		asked++
		if ctx != t.Context() {
			t.Error("the context is not the caller's")
		}
		return []Pod{{NamespacedName: agent, ContainerIDs: []string{strings.Repeat("a1", 32)}}}, nil
	})) {
		asked = 0
		if _, err := s.Pods(t.Context()); err != nil || asked != 1 {
			t.Errorf("%s: asked %d times, %v", name, asked, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, s := range combined(unasked(t)) {
		for range 20 { // select chooses at random
			if _, err := Union(s).Pods(ended); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "earlier call") {
				t.Errorf("%s: %v, want %v", name, err, context.Canceled)
			}
		}
	}
}

func TestKindHas(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for _, row := range []struct {
		reason      string
		kind        Kind
		containerID string
		want        bool
	}{
		{"a sandbox of Kubernetes", SandboxContainers, hex, true},
		{"one digit too few", SandboxContainers, hex[1:], false},
		{"one digit too many", SandboxContainers, hex + "0", false},
		{"runtimes do not use upper case", SandboxContainers, strings.ToUpper(hex), false},
		{"the character before the digits", SandboxContainers, "/" + hex[1:], false},
		{"the character after the digits", SandboxContainers, ":" + hex[1:], false},
		{"the character after the letters", SandboxContainers, "g" + hex[1:], false},
		{"64 bytes that are 32 characters", SandboxContainers, strings.Repeat("é", 32), false},
		{"an ID of nerdctl is not one of Kubernetes", SandboxContainers, "default-" + hex, false},
		{"any ID", AnyContainer, "cnitool-77383ca0a0715733ca6f", true},
		{"a list of pods has no containers", KubernetesPods, hex, false},
		{"no owner is of any kind of containers", AnyContainer, "", true},
		{"... of sandboxes, too", SandboxContainers, "", true},
		{"... and not of pods", KubernetesPods, "", false},
	} {
		if got := row.kind.Has(row.containerID); got != row.want {
			t.Errorf("%d has %q: %t, want %t: %s", row.kind, row.containerID, got, row.want, row.reason)
		}
	}
}

// No list of networks has none of them.
func TestCovers(t *testing.T) {
	for _, networks := range [][]string{nil, {}, {"other"}} {
		if Covers(networks, "podnet") {
			t.Errorf("%v covers podnet", networks)
		}
	}
	if !Covers([]string{"other", "podnet"}, "podnet") || !Covers([]string{"other", EveryNetwork}, "podnet") {
		t.Error("podnet is not covered by its name or by EveryNetwork")
	}
}

func TestMembers(t *testing.T) {
	a, b, c := Answer{Source: "a"}, Answer{Source: "b"}, Answer{Source: "c"}
	for _, row := range []struct {
		reason string
		answer Answer
		want   []Answer
	}{
		{"an answer is its own only member", a, []Answer{a}},
		{"the members of a union, in the order of its parts", Answer{Parts: []Answer{b, a}}, []Answer{b, a}},
		{"the members of a nested union", Answer{Parts: []Answer{a, {Parts: []Answer{b, c}}}}, []Answer{a, b, c}},
		{"a union of which no member was called", Answer{Parts: []Answer{}}, nil},
		{"pods beside the parts are not lost",
			Answer{Source: "union", Authoritative: true, Pods: []Pod{named("x")}, Parts: []Answer{a}},
			[]Answer{a, {Source: "union", Authoritative: true, Pods: []Pod{named("x")}}}},
	} {
		if diff := cmp.Diff(row.want, row.answer.Members(), equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// A store of attachments speaks of what was reserved in this boot since it is complete, and of
// everything from before the boot. An empty one speaks only of the latter (hazard 111).
func TestAttachments(t *testing.T) {
	broken := errors.New("not restored yet")
	now := time.Now().Round(0)
	hour := now.Add(-time.Hour)
	served, another := []string{"other", "podnet"}, []Attachment{{Network: "third", ContainerID: "web"}}
	some := slices.Concat(another, []Attachment{{Network: "podnet", ContainerID: "web", IfName: "eth0"}})
	for _, c := range []struct {
		reason string
		source Source
		gapTo  time.Time // zero: it has no end
		noGap  bool
		err    string
	}{
		{"always complete", Attachments(served, Always, list(some, nil)), time.Time{}, true, ""},
		{"complete for an hour", Attachments(served, hour, list(some, nil)), hour, false, ""},
		{"empty", Attachments(served, Always, list(nil, nil)), time.Time{}, false, ""},
		{"... but for another network", Attachments(served, Always, list(another, nil)), time.Time{}, false, ""},
		{"empty, as the caller says it may be", AllowEmpty(Attachments(served, Always, list(nil, nil))), time.Time{}, true, ""},
		{"... for an hour", AllowEmpty(Attachments(served, hour, list(nil, nil))), hour, false, ""},
		{"an error of the store", Attachments(served, Always, list(some, broken)), time.Time{}, false, "not restored yet"},
		{"one without a container ID", Attachments(served, Always, list(append(some, Attachment{Network: "podnet"}), nil)), time.Time{}, false,
			`network "podnet" has no container ID`},
		{"no networks, as of an empty configuration (hazard 85)", Attachments(nil, Always, list(some, nil)), time.Time{}, false, "needs the"},
		{"all networks", Attachments([]string{"podnet", EveryNetwork}, Always, list(some, nil)), time.Time{}, false, "needs the"},
		{"no time", Attachments(served, time.Time{}, list(some, nil)), time.Time{}, false, "or Always"},
	} {
		a, err := c.source.Pods(t.Context())
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got error %v, want one that says %q", c.reason, err, c.err)
			}
			continue
		}
		if err != nil || !a.Authoritative || a.Names != AnyContainer || !a.AtOnce || !slices.Equal(a.Networks, served) {
			t.Errorf("%s: got %+v, %v", c.reason, a, err)
		}
		if noEnd := !c.noGap && c.gapTo.IsZero(); (len(a.Gaps) == 0) != c.noGap || (a.Note != "") != noEnd {
			t.Errorf("%s: got gaps %v, and the note %q", c.reason, a.Gaps, a.Note)
		}
		booted := now.Add(-boottime.Since())
		for _, g := range a.Gaps {
			if !g.To.Equal(c.gapTo) || g.From.After(booted) || g.From.Before(booted.Add(-10*time.Second)) {
				t.Errorf("%s: got the gap %v, want it from the boot on, at %v, to %v", c.reason, g, booted, c.gapTo)
			}
		}
	}
	if a, _ := Attachments(served, Always, list(some, nil)).Pods(t.Context()); len(a.Pods) != 2 || a.Pods[1].Network != "podnet" {
		t.Errorf("got %v, want one pod for each attachment", a.Pods)
	}
	if rankOf(Attachments(nil, Always, nil)) != RankCache {
		t.Error("the rank is not that of a record")
	}
}

func list(all []Attachment, err error) func(context.Context) ([]Attachment, error) {
	return func(context.Context) ([]Attachment, error) { return all, err }
}

// A list of sandboxes names them, late, in every network.
func TestSandboxes(t *testing.T) {
	ask := func(pods ...Pod) (Answer, error) {
		return Sandboxes(func(context.Context) ([]Pod, error) { return pods, nil }).Pods(t.Context())
	}
	whole := Pod{ContainerIDs: []string{strings.Repeat("a1", 32)}}
	a, err := ask(whole)
	if err != nil || a.Names != SandboxContainers || a.AtOnce || a.Authoritative || !Covers(a.Networks, "podnet") {
		t.Errorf("got %+v, %v", a, err)
	}
	for _, ids := range [][]string{nil, {""}, {whole.ContainerIDs[0], "ee3b0f0c1a2b3"}, {strings.Repeat("A1", 32)}} { // cut short
		if _, err := ask(whole, Pod{UID: "1", ContainerIDs: ids}); err == nil || !strings.Contains(err.Error(), "must be whole") {
			t.Errorf("a sandbox with the IDs %q: %v", ids, err)
		}
	}
	if rankOf(Sandboxes(nil)) != RankRuntime {
		t.Error("the rank is not that of a runtime")
	}
}
