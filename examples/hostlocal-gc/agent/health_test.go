// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

func TestMissing(t *testing.T) {
	lost := []gc.Unreserved{{IP: netip.MustParseAddr("10.0.0.8")}, {IP: netip.MustParseAddr("10.0.0.9")}}
	for _, row := range []struct {
		reason string
		report gc.Report
		want   string
	}{
		{"all is well", gc.Report{Networks: []gc.Network{{Name: "a"}}}, ""},
		{"nothing was ever reserved there, and no live pod has an address", gc.Report{Networks: []gc.Network{{Name: "a", Missing: true}}}, ""},
		{"host-local has no part in those addresses", gc.Report{Networks: []gc.Network{{Name: "a"}}, Unreserved: lost}, ""},
		{
			"both at once", gc.Report{DataDir: "/d", Networks: []gc.Network{{Name: "a", Missing: true}, {Name: "b"}}, Unreserved: lost},
			"missing: " + filepath.Join("/d", "a") + ", while live pods have 2 addresses that no network has reserved; are --network and --data-dir right?",
		},
	} {
		if got := missing(&row.report); got != row.want {
			t.Errorf("%s: %q, want %q", row.reason, got, row.want)
		}
	}
}

// A name with a typing error releases nothing, and does not look like success:
// log, metric, health and page tell of it.
func TestHazard63NetworkWithATypingError(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24"})
	live, leaked := add(t, n, "live", time.Hour), add(t, n, "leaked", time.Hour)
	pods := filepath.Join(t.TempDir(), "pods.json")
	p := start(t, nil, "--data-dir", filepath.Dir(n.DataDir), "--network", "podnet", "--source", "file:"+pods, "--interval", "1s")
	const want = "podnet, while live pods have 1 address that no network has reserved"
	p.eventually("health tells of it", func() bool {
		writePods(t, pods, pod{Namespace: "shop", Name: "web", ContainerIDs: []string{"live"}, IPs: []netip.Addr{live}})
		return strings.Contains(p.get("/healthz").body, want)
	})
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := p.get(path); got.status != http.StatusOK || !strings.HasPrefix(got.body, "ok\n") || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %q; a restart would mend nothing", path, got.status, got.body)
		}
	}
	if page := p.get(debugPath + "?format=html"); !strings.Contains(page.body, "Directories are missing.") {
		t.Errorf("the page does not tell of it:\n%s", page.body)
	}
	if got := p.get("/metrics"); !strings.Contains(got.body, "\nhostlocal_gc_missing_networks 1\n") {
		t.Errorf("the metric does not tell of it:\n%s", got.body)
	}
	if !strings.Contains(p.log.String(), "missing") {
		t.Errorf("the log does not tell of it:\n%s", p.log)
	}
	p.terminate()
	if !there(n, live) || !there(n, leaked) {
		t.Error("something was released in a directory that is not the data directory's")
	}
}
