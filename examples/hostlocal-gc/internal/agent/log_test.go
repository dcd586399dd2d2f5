// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A leak counts once, however many passes see it, and its cause is logged once if it is known. Only a dry run logs what
// it would have released, in each pass. Here libcni's entry of all leaks but one is damaged.
func TestLeaks(t *testing.T) {
	away := errors.New("away")
	for _, dryRun := range []bool{true, false} {
		const n = maxLogged + 1
		dir, cache := t.TempDir(), t.TempDir()
		cnitest.Reserve(t, dir, "n", "10.0.0.2", sandbox("live"), time.Hour)
		cnitest.Reserve(t, dir, "other", "10.1.0.2", sandbox("leaked"), time.Hour) // only read
		for i := range n {
			cnitest.Reserve(t, dir, "n", fmt.Sprintf("10.0.1.%d", i+1), sandbox("leaked"), time.Hour)
		}
		cnitest.Reserve(t, dir, "n", "10.0.2.1", sandbox("gone"), time.Hour)
		cnitest.Write(t, filepath.Join(cache, "n-"+sandbox("leaked")+"-eth0"), `{"kind":`, 0)
		var refused error
		a, log := logging(t, Options{
			DataDir: dir, Networks: []string{"n"}, SourceNames: []string{"cnicache:" + cache}, Passes: gc.Options{DryRun: dryRun},
			Source: podsource.Func(func(context.Context) ([]podsource.Pod, error) { return livePod(), refused }),
		})
		for _, row := range []struct {
			reason string
			err    error
			leaks  int
			news   int // lines with the cause
			judged int // lines with what is released, or would have been
		}{
			{"nothing is judged", away, 0, 0, 0},
			{"they are found", nil, n, 1, 1},
			{"they stay, or are gone", nil, n, 0, 1},
			{"a refused pass forgets none", away, n, 0, 0},
			{"so they are not found again", nil, n, 0, 1},
		} {
			from := len(log.String())
			refused = row.err
			_, _ = a.reconciler.Reconcile(t.Context()) // the error is the row's
			if !dryRun {                               // what is left belongs to dry runs only
				a.log(&gc.Report{Reservations: []gc.Entry{entry("10.0.1.1", "leaked", gc.NotTried)}})
			}
			const would = `Would have released, but this is a dry run" "count"=66 "IPs"=["n/10.0.1.1" `
			want := map[string]int{
				`"network"="n" "cause"="torn" "count"=65 "IPs"=["10.0.1.1" `: row.news, `"cause"`: row.news,
				"Would have": 0, "Released a leaked reservation": 50 * row.news, `"Released more leaked reservations" "count"=16`: row.news,
			}
			if dryRun {
				want = map[string]int{would: row.judged, `"and 2 more"]`: row.judged, "Released": 0}
			}
			for text, times := range want {
				if got := with(log, from, text); len(got) != times {
					t.Errorf("dry run %v, %s: %d lines with %q, want %d: %s", dryRun, row.reason, len(got), text, times, log.String()[from:])
				}
			}
			if got := strings.Count(fmt.Sprint(with(log, from, `"cause"`)), `"10.0.1.`); got != maxLogged*row.news {
				t.Errorf("dry run %v, %s: %d addresses in a line", dryRun, row.reason, got)
			}
			var counts []string
			for _, cause := range []string{"no-del", "no-entry", "other-runtime", "reboot", "torn", "unknown"} {
				if row.leaks > 0 {
					n := map[string]int{"torn": row.leaks, "unknown": 1}[cause]
					counts = append(counts, fmt.Sprintf(`hostlocal_gc_leaks_total{cause=%q,network="n"} %d`, cause, n))
				}
			}
			metrics := get(a, "/metrics").Body.String()
			if diff := cmp.Diff(counts, regexp.MustCompile(`(?m)^hostlocal_gc_leaks_total.*`).FindAllString(metrics, -1)); diff != "" {
				t.Errorf("dry run %v, %s: leaks (-want +got):\n%s", dryRun, row.reason, diff)
			}
			if row.news > 0 {
				report, page := get(a, debugPath).Body.String(), get(a, debugPath+"?format=html").Body.String()
				valid(t, report)
				const said = `<small title="file or cache entry cut short">cause: torn</small>`
				if strings.Count(report, `"cause": "torn"`) != n || strings.Count(page, said) != n {
					t.Errorf("dry run %v: not %d causes in the JSON or page:\n%s\n%s", dryRun, n, report, page)
				}
			}
		}
	}
}
