// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

var errAway = fmt.Errorf("%w: the source is away", gc.ErrRefused)

// A pass that hangs where no time limit applies, on a disk for example, is reported: at the end of
// the hook, and later.
func TestPassThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logged
		log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
		a := bare(Options{Passes: gc.Options{Interval: time.Hour, Logger: log}})
		says := func(want string) {
			t.Helper()
			w := httptest.NewRecorder()
			a.healthy(w, nil)
			var page strings.Builder
			if err := a.writePage(&page, time.Now()); err != nil {
				t.Fatal(err)
			}
			times := 2 // once each
			if want == "" {
				times = 0
			}
			if got := w.Body.String() + page.String(); strings.Count(got, "UNKNOWN: no pass has ended for "+want) != times {
				t.Errorf("that no pass has ended for %q is not %d times in\n%s", want, times, got)
			}
		}
		says("")
		time.Sleep(gc.DefaultStartupTimeout)
		a.hookEnded()
		says("30s")
		a.statuses.note(gc.Report{}, nil, nil, nil)
		a.hookEnded() // has nothing to report then
		if len(logged) != 1 || len(logged.with("UNKNOWN: no pass has ended for 30s")) != 1 {
			t.Errorf("logged is %q", logged)
		}
		says("")
		time.Sleep(time.Hour)
		says("")
		time.Sleep(passTime)
		says("1h5m")
		shared := status{found: make([]diagnose.Finding, 0, 2), err: errAway} // by requests at the same time
		if all := a.all(&shared, time.Now()); len(all) != 2 || shared.found[:1][0].Text != "" {
			t.Errorf("%v overwrite those of another request", all)
		}
	})
}
