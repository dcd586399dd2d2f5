// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestBackfillOfWhatTheSourceSpeaksOf: a record declares that no other container is
// live in its networks, so a Backfill needs sources that speak of all of them.
//
// Guard: [backfill.checkMembers].
func TestBackfillOfWhatTheSourceSpeaksOf(t *testing.T) {
	pods := []podsource.Pod{{ContainerIDs: []string{"a"}}}
	for _, row := range []struct {
		reason  string
		members []podsource.Answer
		says    string // part of the error; empty: none
	}{
		{"a list of pods speaks of both", []podsource.Answer{{Pods: pods, Networks: every}}, ""},
		{"a member for each network", []podsource.Answer{{Pods: pods, Networks: []string{network1}}, {Pods: pods, Networks: []string{"storage"}}}, ""},
		{"a GC request of one network", []podsource.Answer{{Source: "cnigc", Pods: pods, Networks: []string{network1}, Authoritative: true}}, `of network "storage"`},
		{"a cache of results alone, which may have been wiped", []podsource.Answer{{Pods: pods, Networks: every, Supplementary: true}}, `of network "podnet"`},
		{"no network at all", []podsource.Answer{{Pods: pods}}, `of network "podnet"`},
		{"network namespaces, without container IDs", []podsource.Answer{{Pods: pods, Supplementary: true, Networks: []string{network1, "storage"}}}, `of network "podnet"`},
		{"... beside a list of pods", []podsource.Answer{{Pods: pods, Networks: every, Supplementary: true}, {Pods: pods, Networks: every}}, ""},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := opened(t, filepath.Join(t.TempDir(), "attachments"), Options{Networks: []string{network1, "storage"}})
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Parts: row.members}, nil })
			err := c.Backfill(t.Context(), source, func(podsource.Pod) ([]Entry, error) { return nil, nil })
			if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Errorf("got %v, want an error with %q", err, row.says)
			}
		})
	}
}

// Two members list one attachment: the first one's is recorded.
func TestBackfillOfAnAttachmentListedTwice(t *testing.T) {
	c := opened(t, filepath.Join(t.TempDir(), "attachments"), served)
	first, second := runtimeOf("web"), runtimeOf("web")
	first.Pods[0].UID, second.Pods[0].UID = "first", "second"
	source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return podsource.Answer{Parts: []podsource.Answer{first, second}}, nil
	})
	err := c.Backfill(t.Context(), source, func(p podsource.Pod) ([]Entry, error) {
		e := entry("web", "10.0.0.2")
		e.UID = p.UID
		return []Entry{e}, nil
	})
	if e, _ := c.Get(key("web")); err != nil || e.UID != "first" {
		t.Errorf("UID %q is recorded, want that of the first member; error %v", e.UID, err)
	}
}

// TestBackfillFromAnotherRecord: gaps of the source are gaps of the record, unless
// another source lists all containers.
//
// Guard: [backfill.checkMembers] collects the gaps of the source.
func TestBackfillFromAnotherRecord(t *testing.T) {
	at := time.Now()
	gap := podsource.Gap{From: at.Add(-3 * time.Hour).Round(0), To: at.Add(-2 * time.Hour).Round(0)}
	old := podsource.Answer{Names: podsource.AnyContainer, Authoritative: true, Networks: []string{network1}, Gaps: []podsource.Gap{gap}}
	for _, row := range []struct {
		reason  string
		members []podsource.Answer
		want    []podsource.Gap
	}{
		{"a record with a gap", []podsource.Answer{old}, []podsource.Gap{gap}},
		{"beside a supplementary source", []podsource.Answer{old, {Networks: every, Supplementary: true}}, []podsource.Gap{gap}},
		{"beside a runtime", []podsource.Answer{old, runtimeOf("a")}, nil},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := opened(t, filepath.Join(t.TempDir(), "attachments"), noLag)
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Parts: row.members}, nil })
			for range 2 {
				if err := c.Backfill(t.Context(), source, func(podsource.Pod) ([]Entry, error) { return nil, nil }); err != nil {
					break // no gap is left
				}
			}
			if diff := cmp.Diff(row.want, c.state.Load().gaps); diff != "" {
				t.Errorf("gaps (-want +got):\n%s", diff)
			}
		})
	}
}

// A runtime lists only containers made through the CRI. The record does not speak of an
// address that a container of nerdctl got before the record began, however often the
// runtime is asked.
//
// Guard: [narrowed] keeps a gap for all containers but [podsource.SandboxContainers].
func TestHazard49BackfillFromRuntime(t *testing.T) {
	n := newNode(t, t.TempDir())
	n.allow = nil
	sandbox, leaked, nerdctl := strings.Repeat("5a", 32), strings.Repeat("1e", 32), "default-"+strings.Repeat("ed", 32)
	n.reserve("10.0.0.2", sandbox)
	n.reserve("10.0.0.3", leaked)
	n.reserve("10.0.0.4", nerdctl)
	cri := runtimeOf(sandbox)
	cri.Names = podsource.SandboxContainers
	kubelet := podsource.Answer{Pods: []podsource.Pod{{UID: "1", HostNetwork: true}}, Networks: every}
	for _, members := range [][]podsource.Answer{{cri}, {kubelet, cri}, {cri, {Pods: cri.Pods, Networks: every}}} {
		source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Parts: members}, nil })
		path := filepath.Join(t.TempDir(), "attachments")
		c := opened(t, path, noLag)
		fill := func() error {
			return c.Backfill(t.Context(), source, func(p podsource.Pod) (of []Entry, err error) {
				for _, id := range p.ContainerIDs {
					of = append(of, entry(id, "10.0.0.2"))
				}
				return of, nil
			})
		}
		if err := errors.Join(fill(), fill()); err != nil {
			t.Fatal(err)
		}
		if err := fill(); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a gap is left: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for _, source := range []podsource.Source{opened(t, path, noLag), reader(t, path, served)} {
			if err := n.hook(podsource.Union(source, podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return cri, nil }))); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.4"}, n.left()); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if err := n.hook(source); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"10.0.0.2", "10.0.0.4"}, n.left()); diff != "" {
				t.Errorf("left by the record alone (-want +got):\n%s", diff)
			}
		}
	}
}
