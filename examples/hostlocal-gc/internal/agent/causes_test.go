// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A leak counts once, however many passes see it, and its cause is logged once if it is known. Here libcni's entry
// of all leaks but one is damaged.
func TestLeaksCountOnce(t *testing.T) {
	away := errors.New("away")
	for _, dryRun := range []bool{true, false} {
		const n = maxLogged + 1
		dir, cache, log := leaks(t, n), t.TempDir(), logged(nil)
		cnitest.Reserve(t, dir, "n", "10.0.2.1", sandbox("gone"), time.Hour)
		cnitest.Write(t, filepath.Join(cache, "n-"+sandbox("leaked")+"-eth0"), `{"kind":`, 0)
		var refused error
		a, err := New(Options{
			DataDir: dir, Networks: []string{"n"}, SourceNames: []string{"cnicache:" + cache},
			Source: podsource.Func(func(context.Context) ([]podsource.Pod, error) { return livePod(), refused }),
			Passes: gc.Options{DryRun: dryRun, Logger: funcr.New(func(_, line string) { log = append(log, line) }, funcr.Options{})},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []struct {
			reason string
			err    error
			hidden bool // the data directory can't be listed
			leaks  float64
			lines  int
		}{
			{"nothing is judged", away, false, 0, 0},
			{"they are found", nil, false, n, 1},
			{"they stay, or are gone", nil, false, n, 0},
			{"a refused pass forgets none", away, false, n, 0},
			{"nor does one that can't list", nil, true, n, 0},
			{"so they are not found again", nil, false, n, 0},
		} {
			log, refused = nil, row.err
			if row.hidden {
				if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = a.reconciler.Reconcile(t.Context()) // the error is the row's
			if row.hidden {
				if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
					t.Fatal(err)
				}
			}
			lines := log.with(`"network"="n" "cause"="torn" "count"=65 "IPs"=["10.0.1.1" `)
			said := strings.Count(fmt.Sprint(lines), `"10.0.1.`)
			if len(lines) != row.lines || len(log.with("cause")) != row.lines || said != maxLogged*row.lines {
				t.Errorf("dry run %v, %s: logged %q, want %d with the cause", dryRun, row.reason, log, row.lines)
			}
			var want []string
			for _, cause := range []string{"no-del", "no-entry", "other-runtime", "reboot", "torn", "unknown"} {
				n := map[string]float64{"torn": row.leaks, "unknown": 1}[cause]
				if row.leaks > 0 {
					want = append(want, fmt.Sprintf(`hostlocal_gc_leaks_total{cause=%q,network="n"} %v`, cause, n))
				}
			}
			metrics := get(a, "/metrics").Body.String()
			if diff := cmp.Diff(want, regexp.MustCompile(`(?m)^hostlocal_gc_leaks_total.*`).FindAllString(metrics, -1)); diff != "" {
				t.Errorf("dry run %v, %s: leaks (-want +got):\n%s", dryRun, row.reason, diff)
			}
			if row.lines == 0 {
				continue
			}
			report, page := get(a, debugPath).Body.String(), get(a, debugPath+"?format=html").Body.String()
			if got := strings.Count(report, `"cause": "torn"`); got != n {
				t.Errorf("dry run %v: %d causes in the JSON:\n%s", dryRun, got, report)
			}
			verdictsOf(t, report) // by the schema
			const cell, head = `<td title="file or cache entry cut short">torn</td>`, "<th>Cause</th>"
			if got := strings.Count(page, cell); got != n || strings.Count(page, head) != 1 {
				t.Errorf("dry run %v: %d causes in the page:\n%s", dryRun, got, page)
			}
		}
	}
}
