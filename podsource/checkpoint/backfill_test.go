// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestBackfillOfWhatTheSourceSpeaksOf: a record declares that nobody else lives in
// any of its networks, so it does not begin with a source that says nothing of one.
//
// Guard: [filling.complete].
func TestBackfillOfWhatTheSourceSpeaksOf(t *testing.T) {
	pods := []podsource.Pod{{ContainerIDs: []string{"a"}}}
	for _, row := range []struct {
		reason  string
		members []podsource.Answer
		says    string // an error, when there is one
	}{
		{"of both", []podsource.Answer{{Pods: pods}}, ""},
		{"... each by a member", []podsource.Answer{{Pods: pods, Networks: []string{network1}}, {Pods: pods, Networks: []string{"storage"}}}, ""},
		{"a GC request of one network", []podsource.Answer{{Source: "cnigc", Pods: pods, Networks: []string{network1}, Authoritative: true}}, `of network "storage"`},
		{"a cache of results alone, which may have been wiped", []podsource.Answer{{Pods: pods, Supplementary: true}}, `of network "podnet"`},
		{"network namespaces, which name no container", []podsource.Answer{{Pods: pods, Supplementary: true, Networks: []string{network1, "storage"}}}, `of network "podnet"`},
		{"... beside a list of pods", []podsource.Answer{{Pods: pods, Supplementary: true}, {Pods: pods}}, ""},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := opened(t, filepath.Join(t.TempDir(), "attachments"), Options{Networks: []string{network1, "storage"}})
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Parts: row.members}, nil })
			err := c.Backfill(t.Context(), source, func(podsource.Pod) ([]Entry, error) { return nil, nil })
			if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Errorf("got %v, want that says %q", err, row.says)
			}
		})
	}
}

// TestBackfillFromAnotherRecord: what the source was not told, the record does not
// know either, unless another source has listed all.
//
// Guard: [filling.ask] adds the gaps of a source to those that it leaves.
func TestBackfillFromAnotherRecord(t *testing.T) {
	at := time.Now()
	gap := podsource.Gap{From: at.Add(-3 * time.Hour).Round(0), To: at.Add(-2 * time.Hour).Round(0)}
	old := podsource.Answer{Authoritative: true, Networks: []string{network1}, Gaps: []podsource.Gap{gap}}
	for _, row := range []struct {
		reason  string
		members []podsource.Answer
		want    []podsource.Gap
	}{
		{"a record with a gap", []podsource.Answer{old}, []podsource.Gap{gap}},
		{"beside what only adds", []podsource.Answer{old, {Supplementary: true}}, []podsource.Gap{gap}},
		{"beside a runtime", []podsource.Answer{old, runtimeOf("a")}, nil},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := opened(t, filepath.Join(t.TempDir(), "attachments"), atOnce)
			source := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return podsource.Answer{Parts: row.members}, nil })
			for range 2 {
				if err := c.Backfill(t.Context(), source, func(podsource.Pod) ([]Entry, error) { return nil, nil }); err != nil {
					break // nothing is left to learn
				}
			}
			if diff := cmp.Diff(row.want, c.state.Load().gaps); diff != "" {
				t.Errorf("gaps (-want +got):\n%s", diff)
			}
		})
	}
}
