// SPDX-License-Identifier: Apache-2.0

package podsource

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// A store of attachments speaks of what was reserved in this boot since it is complete, and of
// everything from before the boot. An empty one speaks only of the latter (hazard 111).
func TestAttachments(t *testing.T) {
	broken := errors.New("not restored yet")
	now := time.Now().Round(0)
	hour := now.Add(-time.Hour)
	served, some := []string{"other", "podnet"}, []Attachment{{Network: "podnet", ContainerID: "web", IfName: "eth0"}}
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
		{"empty, as the caller says it may be", AllowEmpty(Attachments(served, Always, list(nil, nil))), time.Time{}, true, ""},
		{"... for an hour", AllowEmpty(Attachments(served, hour, list(nil, nil))), hour, false, ""},
		{"an error of the store", Attachments(served, Always, list(some, broken)), time.Time{}, false, "not restored yet"},
		{"one without a container ID", Attachments(served, Always, list(append(some, Attachment{Network: "podnet"}), nil)), time.Time{}, false,
			`network "podnet" has no container ID`},
		{"no networks, as of an empty configuration (hazard 85)", Attachments(nil, Always, list(some, nil)), time.Time{}, false, "no network"},
		{"all networks", Attachments([]string{"podnet", EveryNetwork}, Always, list(some, nil)), time.Time{}, false, "no network, or all"},
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
		if (len(a.Gaps) == 0) != c.noGap {
			t.Errorf("%s: got gaps %v", c.reason, a.Gaps)
		}
		booted := now.Add(-boottime.Since())
		for _, g := range a.Gaps {
			if !g.To.Equal(c.gapTo) || g.From.After(booted) || g.From.Before(booted.Add(-10*time.Second)) {
				t.Errorf("%s: got the gap %v, want it from the boot on, at %v, to %v", c.reason, g, booted, c.gapTo)
			}
		}
	}
	if r, ok := Attachments(nil, Always, nil).(Ranked); !ok || r.Rank() != RankCache {
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
