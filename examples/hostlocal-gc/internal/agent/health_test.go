// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
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
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The hazards after passes, and their order. Their titles name no pod.
func TestHazards(t *testing.T) {
	lost := []gc.Claim{{IP: netip.MustParseAddr("10.0.0.8"), Pods: []*gc.Pod{&gc.Pod{Namespace: "ns", Name: "web"}}}, {IP: netip.MustParseAddr("10.0.0.9"), Pods: []*gc.Pod{&gc.Pod{Name: "db"}}}, {IP: netip.MustParseAddr("172.17.0.2"), Pods: []*gc.Pod{&gc.Pod{}}}}
	networks := []string{"a", "b"}
	typo := gc.Report{DataDir: "/d", Networks: networks, Missing: networks[:1], Unreserved: lost, Sources: []gc.SourceReport{{Name: "file"}}}
	unmounted := gc.Report{DataDir: "/d", DataDirMissing: true, Networks: networks, Missing: networks[:1]}
	all := gc.Report{
		DataDir: "/d", Networks: networks, Missing: networks[:1], Unreserved: lost[:1], Reservations: []gc.Entry{entry("10.0.0.2", "c", gc.TwoPods)},
		Duplicates: []gc.Claim{{IP: lost[0].IP, Pods: []*gc.Pod{lost[0].Pods[0], lost[1].Pods[0]}}},
		Sources:    []gc.SourceReport{{Name: "file"}},
	}
	from := func(sources ...gc.SourceReport) gc.Report { return gc.Report{Sources: sources} }
	answered, silent := gc.SourceReport{Name: "cri"}, gc.SourceReport{Name: "cri", Error: "no such socket"}
	type pass struct {
		report gc.Report
		err    error
	}
	const reserved = "2 addresses of live pods are not reserved, so host-local may hand them out again"
	missing := "Missing: " + filepath.Join("/d", "a") + ", while live pods have 2 addresses that no network has reserved"
	for _, row := range []struct {
		reason string
		passes []pass
		want   []string
	}{
		{"no pass yet", nil, nil},
		{"all is well", []pass{{gc.Report{Networks: networks[1:]}, nil}}, nil},
		{"nothing was ever reserved there, and no live pod has an address", []pass{{gc.Report{Networks: networks, Missing: networks[:1]}, nil}}, nil},
		{"host-local may have no part in those addresses", []pass{{gc.Report{Networks: networks[1:], Unreserved: lost}, nil}}, []string{reserved}},
		{"a directory is missing, and live pods have addresses (hazard 63)", []pass{{typo, nil}}, []string{missing, reserved}},
		{"a pass that is refused ends no hazard", []pass{{typo, nil}, {gc.Report{DataDir: "/d", Networks: networks, Missing: networks[:1]}, errAway}}, []string{missing, reserved}},
		{"a pass that could not list reservations ends no hazard", []pass{{typo, nil}, {gc.Report{}, errors.New("listing reservations")}}, []string{missing, reserved}},
		{"a refused pass has seen the directory", []pass{{typo, nil}, {gc.Report{Networks: networks[1:]}, errAway}}, []string{reserved}},
		{"a pass that judges does", []pass{{typo, nil}, {gc.Report{Networks: networks, Missing: networks[:1]}, nil}}, nil},
		{"the data directory is not mounted, or no ADD was ever made", []pass{{unmounted, nil}}, []string{"The data directory does not exist: /d"}},
		{"it is lost between two passes", []pass{{gc.Report{Networks: networks[1:]}, nil}, {unmounted, errAway}}, []string{"The data directory does not exist: /d", "No answer since the start: cri,kube, file"}},
		{"several at once", []pass{{all, nil}}, []string{
			"Missing: " + filepath.Join("/d", "a") + ", while live pods have 1 address that no network has reserved",
			"1 address belongs to several live pods", "1 address of a live pod is not reserved, so host-local may hand it out again",
			"1 reservation is in conflict with a live pod",
		}},
		{"a source that never answers", []pass{{from(answered), nil}, {from(gc.SourceReport{Name: "netns"}, gc.SourceReport{Name: "kube", Error: "away"}), errAway}}, []string{"No answer since the start: kube"}},
		{"it answered once", []pass{{from(silent), errAway}, {from(answered), nil}, {from(silent), errAway}}, nil},
		{"it hangs, and no report names it", []pass{{gc.Report{}, errAway}}, []string{"No answer since the start: cri,kube, file"}},
	} {
		s := newStatusStore([]string{"cri,kube", "file"})
		for _, p := range row.passes {
			s.note(p.report, p.err)
		}
		last := s.get()
		if diff := cmp.Diff(row.want, titles(last.hazards())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

var errAway = fmt.Errorf("%w: the source is away", gc.ErrRefused)

// With a typing error in a network's name nothing is released. Log, metric, health and page report
// it.
func TestHazard63NetworkWithATypingError(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	live, leaked := add(t, n, "live", time.Hour), add(t, n, "leaked", time.Hour)
	pods := filepath.Join(t.TempDir(), "pods.json")
	p := start(t, nil, "--data-dir", filepath.Dir(n.DataDir), "--network", "podnet", "--source", "file:"+pods, "--interval", "1s")
	const want = "podnet, while live pods have 1 address that no network has reserved"
	p.eventually("health reports it", func() bool {
		writePods(t, pods, pod{Namespace: "shop", Name: "web", ContainerIDs: []string{"live"}, IPs: []netip.Addr{live}})
		return strings.Contains(p.get("/healthz").body, want)
	})
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := p.get(path); got.status != http.StatusOK || !strings.HasPrefix(got.body, "ok\n") || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %q; it must stay 200, since a restart would not help", path, got.status, got.body)
		}
	}
	if page := p.get(debugPath + "?format=html"); !strings.Contains(page.body, "Missing: ") {
		t.Errorf("the page does not report it:\n%s", page.body)
	}
	if got := p.get("/metrics"); !strings.Contains(got.body, "\nhostlocal_gc_missing_networks 1\n") {
		t.Errorf("the metric does not report it:\n%s", got.body)
	}
	if !strings.Contains(p.log.String(), "missing") {
		t.Errorf("the log does not report it:\n%s", p.log)
	}
	p.terminate()
	if !there(n, live) || !there(n, leaked) {
		t.Error("something was released in a directory that is not the data directory's")
	}
}

// A data directory that is not mounted is reported, though no source was asked.
func TestHazard63NoDataDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "networks")
	pods := filepath.Join(t.TempDir(), "pods.json")
	writePods(t, pods, pod{Namespace: "shop", Name: "web"})
	p := start(t, nil, "--data-dir", dir, "--network", "podnet", "--source", "file:"+pods)
	p.untilReady()
	want := "The data directory does not exist: " + dir
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := p.get(path); got.status != http.StatusOK || got.body != "ok\n"+want+"\n" {
			t.Errorf("%s: %d %q", path, got.status, got.body)
		}
	}
	if page := p.get(debugPath + "?format=html"); !strings.Contains(page.body, want) {
		t.Errorf("the page does not report it:\n%s", page.body)
	}
	if got := p.get("/metrics"); !strings.Contains(got.body, "\nhostlocal_gc_missing_networks 1\n") {
		t.Errorf("the metric does not report it:\n%s", got.body)
	}
	p.terminate()
}

// A pass that hangs where no time limit applies, on a disk for example, is reported: at the end of
// the hook, and later.
func TestPassThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged lines
		log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
		a := &Agent{opts: Options{Passes: gc.Options{Interval: time.Hour, Logger: log}}, statuses: newStatusStore(nil)}
		says := func(want string) {
			t.Helper()
			w := httptest.NewRecorder()
			a.ready(w, nil)
			var page strings.Builder
			if err := a.writePage(&page, time.Now()); err != nil {
				t.Fatal(err)
			}
			times := 2 // once each
			if want == "" {
				times = 0
			}
			if got := w.Body.String() + page.String(); strings.Count(got, "No pass has ended for "+want) != times {
				t.Errorf("that no pass has ended for %q is not %d times in\n%s", want, times, got)
			}
		}
		says("")
		time.Sleep(gc.DefaultStartupTimeout)
		a.hookEnded()
		says("30s")
		a.statuses.note(gc.Report{}, nil)
		a.hookEnded() // has nothing to report then
		if len(logged) != 1 || len(logged.with("No pass has ended for 30s")) != 1 {
			t.Errorf("logged is %q", logged)
		}
		says("")
		time.Sleep(time.Hour)
		says("")
		time.Sleep(passTime)
		says("1h5m")
	})
}

// Which addresses of live pods are host-local's follows from the CNI configuration.
func TestRangesOfTheConfiguration(t *testing.T) {
	conf := put(t, filepath.Join(t.TempDir(), "podnet.conf"), `{"cniVersion":"1.0.0","name":"podnet","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`)
	dataDir := t.TempDir()
	put(t, filepath.Join(dataDir, "podnet", "10.1.0.2"), "live\r\neth0")
	for _, row := range []struct {
		reason, ip string
		confs      []string
		hazards    int
	}{
		{"another plugin gave it", "192.0.2.9", []string{conf}, 0},
		{"host-local gave it", "10.1.0.9", []string{conf}, 1},
		{"the ranges are not known", "192.0.2.9", nil, 1},
	} {
		a, err := New(Options{DataDir: dataDir, Networks: []string{"podnet"}, CNIConf: row.confs, Source: podsource.Static(livePod(netip.MustParseAddr(row.ip)))})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.reconciler.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		last := a.statuses.get()
		if got := titles(last.hazards()); len(got) != row.hazards {
			t.Errorf("%s: %q, want %d", row.reason, got, row.hazards)
		}
	}
}
