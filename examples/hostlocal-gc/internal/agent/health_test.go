// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

var errAway = fmt.Errorf("%w: the source is away", gc.ErrRefused)

// With a typing error in a network's name nothing is released. Log, metric, health and page report
// it, long before the interval ends: the hook asks no source, so a pass follows that does.
func TestHazard63NetworkWithATypingError(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	live, leaked := add(t, n, "live", time.Hour), add(t, n, "leaked", time.Hour)
	pods := filepath.Join(t.TempDir(), "pods.json")
	p := start(t, nil, "--data-dir", filepath.Dir(n.DataDir), "--network", "podnet", "--source", "file:"+pods, "--interval", "1h")
	const want = "podnet, while live pods have 1 address that is reserved nowhere"
	p.eventually("health reports it", func() bool {
		writePods(t, pods, pod{Namespace: "shop", Name: "web", ContainerIDs: []string{"live"}, IPs: []netip.Addr{live}})
		return strings.Contains(p.get("/healthz").body, want)
	})
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := p.get(path); got.status != http.StatusOK || !strings.HasPrefix(got.body, "ok\n") || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %q; it must stay 200, since a restart would not help", path, got.status, got.body)
		}
	}
	if page := p.get(debugPath + "?format=html"); !strings.Contains(page.body, "MISSING: podnet: ") {
		t.Errorf("the page does not report it:\n%s", page.body)
	}
	if got := p.get("/metrics"); !strings.Contains(got.body, "\nhostlocal_gc_findings{network=\"podnet\",word=\"MISSING\"} 1\n") {
		t.Errorf("the metric does not report it:\n%s", got.body)
	}
	if !strings.Contains(p.log.String(), "MISSING: podnet") {
		t.Errorf("the log does not report it:\n%s", p.log)
	}
	p.terminate()
	if !there(n, live) || !there(n, leaked) {
		t.Error("something was released in a directory that is not the data directory's")
	}
}

// A pass that hangs where no time limit applies, on a disk for example, is reported: at the end of
// the hook, and later.
func TestPassThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logged
		log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
		a := &Agent{opts: Options{Passes: gc.Options{Interval: time.Hour, Logger: log}}, statuses: newStatusStore(nil)}
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
